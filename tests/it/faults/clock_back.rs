//! The Redis clock is set back, and in some tests corrected again: leases neither end early nor last too long.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use leasehold::domain::{
    Claim, GrantKind, Granted, Lease, LockState, NotHolder, Refused, Released, RenewOptions,
    Renewed,
};
use leasehold::service::AcquireOutcome;
use leasehold::store::ListQuery;
use tokio::time::Instant;

use super::{FOR_EVER, Replica, lasting, lasting_for};
use crate::support::fixture::{
    READ, at_depth, claim, hold_count, in_mode, lock_of, not_holder, only, permits, reader, rival,
};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{EFFECT_TIMEOUT, eventually};

/// Longer than the shortest grace after a loss, and short enough for the test to wait for it.
const TTL: Duration = Duration::from_secs(5);

/// A lease that expires soon.
const BRIEF: Duration = Duration::from_secs(2);

const AN_HOUR: Duration = Duration::from_secs(3600);

/// Time enough for all processes to check Redis after the notification, on a loaded machine too. If the clock is set right
/// before they have, nothing shows the step.
const BETWEEN_STEPS: Duration = Duration::from_millis(750);

/// The operation that accesses a lock while the clock is back.
#[derive(Clone, Copy, Debug)]
enum Look {
    Inspect,
    List,
    Refused,
    Waiting,
    Replay,
    Reenter,
    StepBack,
    Release,
    Evict,
}

/// The access makes the lease end one TTL from now, by a clock that is corrected soon after.
#[tokio::test]
async fn an_access_while_the_clock_is_back_ends_no_lease_for_others() {
    let closing = |claim| Claim {
        min_hold: Some(TTL),
        ..lasting_for(BRIEF, claim)
    };
    let delayed = |claim| Claim {
        lock_delay: Some(TTL),
        ..lasting_for(TTL, claim)
    };
    let plain = || lasting_for(TTL, claim());
    let shared = || in_mode(&plain(), permits(1, 1));
    let looks = [
        (plain(), Look::Inspect),
        (shared(), Look::Inspect),
        (delayed(claim()), Look::Inspect),
        (plain(), Look::List),
        (plain(), Look::Refused),
        (shared(), Look::Refused),
        (plain(), Look::Waiting),
        (plain(), Look::Replay),
        (shared(), Look::Replay),
        (plain(), Look::Reenter),
        (shared(), Look::Reenter),
        (at_depth(&plain(), 2), Look::StepBack),
        (at_depth(&shared(), 2), Look::StepBack),
        (closing(plain()), Look::Release),
        (closing(shared()), Look::Release),
        (delayed(plain()), Look::Evict),
        (delayed(shared()), Look::Evict),
    ];
    // Each case has a Redis of its own.
    let looks = stream::iter(looks);
    let at_once = looks.for_each_concurrent(6, |(held, look)| keeps_excluding(held, look));
    at_once.await;
}

async fn keeps_excluding(held: Claim, look: Look) {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let holding = Replica::open(&server.database(0)).await;
    let other = Replica::open(&server.database(0)).await;
    super::all_listen(&server, 2).await;
    holding.checks.abort();
    other.checks.abort();
    // This lease determines the grace after a loss.
    holding.granted(&lasting_for(TTL, claim())).await;
    let lease = holding.lease(&held).await;
    let lasts = lease.holder.expires_in;
    let held_until = Instant::now() + lasts.max(held.min_hold.unwrap_or_default());
    server.move_clock(Duration::ZERO).await;
    let next = rival(&held);
    let looking = async {
        if let Look::Waiting = look {
            queued(&holding, &held).await;
        } else {
            look_at(&held, look, &holding, &other).await;
        }
        let closed_until = match look {
            Look::Evict => Instant::now() + TTL - BETWEEN_STEPS,
            _ => held_until,
        };
        tokio::time::sleep(BETWEEN_STEPS).await;
        server.move_clock(AN_HOUR).await;
        closed_until
    };
    if let Look::Waiting = look {
        let waiting = other.acquire_within(&next, EFFECT_TIMEOUT);
        let (answer, held_until) = tokio::join!(waiting, looking);
        assert!(
            matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
            "{answer:?}"
        );
        assert!(Instant::now() >= held_until, "granted early");
    } else {
        let held_until = looking.await;
        let mode = held.mode;
        let granting = other.granted_not_before(&next, held_until);
        // The message of a panic would not say which case failed.
        println!("{look:?} in {mode:?}");
        granting.await;
    }
}

async fn queued(replica: &Replica, held: &Claim) {
    eventually("it is queued", async || {
        let view = replica.service.inspect(lock_of(held)).await.ok()?;
        (view.queue.length == 1).then_some(())
    })
    .await;
}

/// The first request may detect the step, and then gets an unknown outcome.
async fn look_at(held: &Claim, look: Look, holding: &Replica, other: &Replica) {
    eventually("it is answered", async || match look {
        Look::Inspect => {
            let view = other.service.inspect(lock_of(held)).await.ok()?;
            matches!(view.state, LockState::Held(_)).then_some(())
        }
        Look::List => {
            let everything = ListQuery {
                prefix: String::new(),
                within: None,
                after: None,
                snapshot: None,
                page_size: 100,
            };
            other.service.list(&everything).await.ok().map(drop)
        }
        Look::Refused => {
            let answer = other.acquire(&rival(held)).await.ok()?;
            matches!(answer, AcquireOutcome::Refused(Refused::Blocked(_))).then_some(())
        }
        Look::Replay | Look::Waiting => {
            let answer = holding.acquire(held).await.ok()?;
            (answer.kind() == Some(GrantKind::Replayed)).then_some(())
        }
        Look::Reenter => {
            let answer = holding.acquire(&at_depth(held, 2)).await.ok()?;
            matches!(
                answer,
                AcquireOutcome::Granted(Granted {
                    kind: GrantKind::Reentered,
                    ..
                }) | AcquireOutcome::Granted(Granted {
                    kind: GrantKind::Replayed,
                    ..
                })
            )
            .then_some(())
        }
        Look::StepBack => {
            let (names, depth) = (held.names.clone(), Some(hold_count(1)));
            let answer = holding.service.release(names, held.token, depth, |_| {});
            let answer = only(answer.await.ok()?);
            matches!(answer, Released::SteppedBack(_)).then_some(())
        }
        Look::Release => {
            let answer = holding.release(held).await.ok()?;
            matches!(answer, Released::Freed { .. }).then_some(())
        }
        Look::Evict => {
            let evicted = other.evict(held).await.ok()?;
            (evicted.len() == 1).then_some(())
        }
    })
    .await;
}

/// After a small step no lease seems to be from the future, but the reported remaining time may be too long.
#[tokio::test]
async fn the_reported_time_of_a_lease_holds_when_the_clock_was_slightly_back_and_is_corrected() {
    tokio::join!(
        keeps_the_reported_time(Look::Replay),
        keeps_the_reported_time(Look::StepBack)
    );
}

async fn keeps_the_reported_time(look: Look) {
    let passes = Duration::from_secs(3);
    let step = passes - BETWEEN_STEPS;
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    // The next request detects a step that is longer than the operation timeout.
    let timeout = Duration::from_secs(1);
    let holding = Replica::open_within(timeout, &server.database(0)).await;
    let other = Replica::open_within(timeout, &server.database(0)).await;
    super::all_listen(&server, 2).await;
    holding.checks.abort();
    other.checks.abort();
    let held = at_depth(&lasting_for(TTL, claim()), 2);
    holding.granted(&held).await;
    // Not for synchronisation: the test is about the passing of time.
    tokio::time::sleep(passes).await;
    server.move_clock(AN_HOUR - step).await;
    let lease = eventually("it holds", async || match look {
        Look::StepBack => step_back(&holding, &held).await,
        _ => match holding.acquire(&held).await.ok()? {
            AcquireOutcome::Granted(Granted {
                kind: GrantKind::Replayed,
                leases,
                ..
            }) => Some(only(leases)),
            other => panic!("it holds, but: {other:?}"),
        },
    })
    .await;
    let held_until = Instant::now() + lease.holder.expires_in;
    assert!(lease.holder.expires_in > TTL - passes, "{lease:?}");
    tokio::time::sleep(BETWEEN_STEPS).await;
    server.move_clock(AN_HOUR).await;
    let next = rival(&held);
    eventually("it is granted", async || {
        let answer = other.acquire(&next).await.ok()?;
        (answer.kind() == Some(GrantKind::New)).then_some(())
    })
    .await;
    assert!(Instant::now() >= held_until, "granted early after {look:?}");
}

/// Checked by the stored keys, because any request would correct the lease.
#[tokio::test]
async fn a_lock_that_is_not_accessed_ends_its_ttl_after_the_clock_went_back() {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let replica = Replica::open(&server.database(0)).await;
    let brief = || lasting_for(BRIEF, claim());
    let several = lasting(in_mode(&claim(), READ));
    let reading = lasting_for(BRIEF, reader(&several));
    let closing = Claim {
        min_hold: Some(BRIEF),
        ..brief()
    };
    let capped = Claim {
        max_hold: Some(BRIEF),
        ..lasting(claim())
    };
    let plain = brief();
    for held in [&plain, &several, &reading, &closing, &capped] {
        replica.granted(held).await;
    }
    let answer = replica.release(&closing).await;
    assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    server.move_clock(Duration::ZERO).await;
    let ends = [
        (&plain, BRIEF),
        (&reading, BRIEF),
        (&closing, BRIEF),
        (&capped, BRIEF),
        (&several, FOR_EVER),
    ];
    for (held, lasts) in ends {
        eventually("the lock ends its length after the step", async || {
            let left_ms = left_ms(&server, held).await?;
            let lasts_ms = i64::try_from(lasts.as_millis()).expect("a short time");
            (left_ms <= lasts_ms).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn no_lease_outlasts_its_max_hold_after_the_clock_went_back() {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let replica = Replica::open(&server.database(0)).await;
    replica.checks.abort();
    let capped = |claim| Claim {
        max_hold: Some(BRIEF),
        ..claim
    };
    let quiet = capped(lasting(claim()));
    let brief = || lasting_for(BRIEF / 2, claim());
    let renewed = [
        capped(brief()),
        capped(in_mode(&brief(), READ)),
        capped(in_mode(&brief(), permits(2, 3))),
        capped(lasting(in_mode(&claim(), READ))),
    ];
    replica.granted(&quiet).await;
    for held in &renewed {
        replica.granted(held).await;
    }
    server.move_clock(Duration::ZERO).await;
    let view = replica.service.inspect(lock_of(&quiet)).await;
    let LockState::Held(holders) = view.expect("it answers").state else {
        panic!("somebody holds the lock");
    };
    let left = only(holders.listed).expires_in;
    assert!(left <= BRIEF, "{left:?}");
    for held in &renewed {
        eventually("it cannot be renewed any more", async || {
            let names = held.names.clone();
            let renewal = replica
                .service
                .renew(names, held.token, RenewOptions::default());
            match renewal.await.ok()? {
                Renewed::Extended(renewals) => {
                    let left = only(renewals).lease.holder.expires_in;
                    assert!(left <= BRIEF, "{left:?}");
                    None
                }
                answer => {
                    assert_eq!(answer, not_holder(held, NotHolder::Expired));
                    Some(())
                }
            }
        })
        .await;
    }
}

async fn step_back(replica: &Replica, held: &Claim) -> Option<Lease> {
    let (names, depth) = (held.names.clone(), Some(hold_count(1)));
    let answer = replica
        .service
        .release(names, held.token, depth, |_| {})
        .await;
    match only(answer.ok()?) {
        Released::SteppedBack(lease) => Some(lease),
        other => panic!("it holds, but: {other:?}"),
    }
}

async fn redis_with_a_movable_clock() -> RedisServer {
    RedisServer::start(RedisOptions {
        has_movable_clock: true,
        ..RedisOptions::forgetful()
    })
    .await
}

/// How long the store still keeps a lock closed for a claim, by the record of its lease or the end of its cool-down.
async fn left_ms(server: &RedisServer, claim: &Claim) -> Option<i64> {
    const LEFT: &str = "local time = redis.call('TIME')
        local slot, name, claim = KEYS[1], ARGV[1], ARGV[2]
        local lock, holder = slot .. 'l:' .. name, slot .. 'h:' .. claim
        local record = redis.call('MGET', holder)[1] or redis.call('MGET', lock)[1]
        local ends = record and struct.unpack('>I6', record, #record - 5) or redis.call('HGET', lock, 'c')
        return math.floor(ends - time[1] * 1000 - time[2] / 1000)";
    let name = lock_of(claim);
    let slot = format!("lh:1:{{{}}}:", name.bucket().index());
    let digest = claim.token.digest(name);
    let command = [
        b"EVAL",
        LEFT.as_bytes(),
        b"1",
        slot.as_bytes(),
        name.as_str().as_bytes(),
        &digest.0,
    ];
    redis::from_redis_value(server.command(&command).await).expect("a number if any")
}
