//! Steps of the Redis clock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Acquired, Claim, GrantKind, Granted, Refused, Released};
use leasehold::service::AcquireOutcome;
use tokio::time::Instant;

use super::{Replica, assert_granted_in_order, lasting, lasting_for, waiters_behind};
use crate::support::eventually;
use crate::support::fixture::{
    READ, Waiter, claim, deadline, in_mode, lock_of, only, permits, rival,
};
use crate::support::redis_server::{Persistence, RedisOptions, RedisServer};
use crate::support::stores;

/// Longer than the shortest grace after a loss, and short enough for the test to wait for it.
const TTL: Duration = Duration::from_secs(5);

/// A lease that expires soon.
const BRIEF: Duration = Duration::from_secs(2);

const AN_HOUR: Duration = Duration::from_secs(3600);

async fn redis_with_a_movable_clock() -> RedisServer {
    RedisServer::start(RedisOptions {
        has_movable_clock: true,
        ..RedisOptions::default()
    })
    .await
}

/// One process detects the step with its own request, another one with its next check.
#[tokio::test]
async fn a_clock_that_jumps_forward_ends_no_lease_for_others() {
    let server = redis_with_a_movable_clock().await;
    let holding = Replica::open(&server.database(0)).await;
    let other = Replica::open(&server.database(0)).await;
    other.checks.abort();
    let held = lasting_for(TTL, claim());
    let (lease, held_until) = holding.lease_until(&held).await;
    server.move_clock(AN_HOUR).await;
    let (next, elsewhere) = (rival(&held), claim());
    let (granted, _) = tokio::join!(
        other.granted_not_before(&next, held_until),
        holding.granted_not_before(&elsewhere, held_until),
    );
    assert!(granted.holder.fence > lease.holder.fence);
    // The grace has ended: later requests are not delayed any more.
    other.granted(&lasting(claim())).await;
}

#[tokio::test]
async fn waiters_keep_waiting_in_order_while_the_clock_jumps_forward() {
    let server = redis_with_a_movable_clock().await;
    let replicas = [
        Arc::new(Replica::open(&server.database(0)).await),
        Arc::new(Replica::open(&server.database(0)).await),
    ];
    let held = lasting_for(TTL, claim());
    let (_, held_until) = replicas[0].lease_until(&held).await;
    let waiting = waiters_behind(&replicas, &held).await;
    server.move_clock(AN_HOUR).await;
    assert_granted_in_order(waiting, held_until).await;
}

/// No token is as large as such a time. If a new epoch began by it, it would use up the tokens of all locks for good.
#[tokio::test]
async fn a_clock_that_is_later_than_any_token_uses_up_none() {
    const THREE_HUNDRED_YEARS: Duration = Duration::from_secs(300 * 31_557_600);
    let server = redis_with_a_movable_clock().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting_for(TTL, claim());
    let asked = Instant::now();
    let lease = replica.lease(&held).await;
    let held_until = asked + lease.holder.expires_in;
    server.move_clock(THREE_HUNDRED_YEARS).await;
    eventually("a check says what is wrong", async || {
        let trouble = replica.service.store_health().trouble?;
        trouble.contains("2255").then_some(())
    })
    .await;
    server.move_clock(Duration::ZERO).await;
    // Whether Redis has expired the lease by the wrong clock depends on how soon it looked for expired keys. If not, the
    // lease is still there, and else grants wait.
    let next = rival(&held);
    let granted = eventually("the lock is granted again", async || {
        match replica.acquire(&next).await {
            Ok(AcquireOutcome::Granted(Granted { leases, .. })) => Some(only(leases)),
            _ => None,
        }
    })
    .await;
    assert!(
        Instant::now() >= held_until,
        "granted while the lease is alive"
    );
    assert!(granted.holder.fence > lease.holder.fence);
    let hour = 3_600_000_000;
    assert!(granted.holder.fence.get() < lease.holder.fence.get() + hour);
}

/// The process was paused, the clock did not jump: nothing was lost.
#[tokio::test]
async fn a_redis_that_answers_late_has_not_jumped() {
    let server = redis_with_a_movable_clock().await;
    let replica = Replica::open(&server.database(0)).await;
    replica.granted(&lasting(claim())).await;
    server.pause();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    server.resume();
    let answer = eventually("Redis answers", async || {
        replica.acquire(&lasting(claim())).await.ok()
    })
    .await;
    assert_eq!(answer.kind(), Some(GrantKind::New), "{answer:?}");
}

/// A claim of every kind, whose holder is gone or releases it.
fn of_every_kind() -> Vec<Claim> {
    let brief = || lasting_for(BRIEF, claim());
    let min_hold = Some(BRIEF);
    let max_hold = Some(BRIEF);
    vec![
        brief(),
        in_mode(&brief(), READ),
        in_mode(&brief(), permits(2, 3)),
        Claim {
            min_hold,
            ..brief()
        },
        Claim {
            max_hold,
            ..brief()
        },
        Claim {
            min_hold,
            ..in_mode(&brief(), READ)
        },
    ]
}

/// Times that were written before the clock went back are an hour too late by the new clock.
#[tokio::test]
async fn a_clock_that_goes_back_closes_no_lock_for_longer_than_its_settings_say() {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let replica = Replica::open(&server.database(0)).await;
    let (left, released) = (of_every_kind(), of_every_kind());
    for claim in left.iter().chain(&released) {
        replica.granted(claim).await;
    }
    server.move_clock(Duration::ZERO).await;
    for claim in &released {
        let answer = replica.release(claim).await;
        assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    }
    for claim in left.iter().chain(&released) {
        let next = rival(claim);
        eventually("the lock can be had", async || {
            let answer = replica.acquire(&next).await.ok()?;
            (answer.kind() == Some(GrantKind::New)).then_some(())
        })
        .await;
    }
}

/// The process with the reservation is gone, and by the new clock the reservation lasts for another hour.
#[tokio::test]
async fn a_clock_that_goes_back_does_not_extend_the_reservation_of_a_lost_process() {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let address = server.database(0);
    let config = stores::redis_config();
    let gone = stores::redis_store(&address, &config)
        .await
        .expect("it opens");
    let replica = Replica::open(&address).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    let waiting = Waiter::new(rival(&held));
    let asked = gone.acquire(
        &waiting.claim,
        waiting.attempt,
        Some(&waiting.queue_request),
        deadline(),
    );
    assert!(matches!(asked.await, Ok(Acquired::Waiting(_))));
    drop(gone);
    replica.release(&held).await.expect("the store answers");
    server.move_clock(Duration::ZERO).await;
    let next = rival(&held);
    let granted = replica.acquire_within(&next, Duration::from_secs(15)).await;
    assert!(
        matches!(&granted, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{granted:?}"
    );
}

/// Leases that are granted in between expire when the clock is corrected. No process may miss this because both steps
/// happen between two of its checks.
#[tokio::test]
async fn a_clock_that_goes_back_and_is_corrected_ends_no_lease_for_others() {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let holding = Replica::open(&server.database(0)).await;
    let other = Replica::open(&server.database(0)).await;
    holding.checks.abort();
    other.checks.abort();
    holding.granted(&lasting_for(TTL, claim())).await;
    other.granted(&lasting_for(TTL, claim())).await;
    server.move_clock(Duration::ZERO).await;
    let held = lasting_for(TTL, claim());
    // The request that detects the step gets an unknown outcome.
    let lease = eventually("it is granted", async || {
        match holding.acquire(&held).await.ok()? {
            AcquireOutcome::Granted(Granted {
                kind: GrantKind::New,
                leases,
                ..
            })
            | AcquireOutcome::Granted(Granted {
                kind: GrantKind::Replayed,
                leases,
                ..
            }) => Some(only(leases)),
            _ => None,
        }
    })
    .await;
    let held_until = Instant::now() + lease.holder.expires_in;
    // The other process is notified, and sends no request that would show when it has checked. The documentation
    // promises that steps at least a quarter of a second apart are detected.
    tokio::time::sleep(Duration::from_millis(250)).await;
    server.move_clock(AN_HOUR).await;
    let granted = other.granted_not_before(&rival(&held), held_until).await;
    assert!(granted.holder.fence > lease.holder.fence);
}

/// The end of the grace is stored as a time of the Redis clock.
#[tokio::test]
async fn a_clock_that_goes_back_does_not_extend_the_grace_after_a_loss() {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting_for(TTL, claim());
    let (_, held_until) = replica.lease_until(&held).await;
    server.command(&["FLUSHALL"]).await;
    let next = rival(&held);
    let answer = replica.acquire(&next).await;
    assert!(
        matches!(
            answer,
            Ok(AcquireOutcome::Refused(Refused::Recovering { .. }))
        ),
        "{answer:?}"
    );
    server.move_clock(Duration::ZERO).await;
    let fresh = Replica::open(&server.database(0)).await;
    let elsewhere = claim();
    tokio::join!(
        replica.granted_not_before(&next, held_until),
        fresh.granted_not_before(&elsewhere, held_until),
    );
}

/// The fencing token counters are lost, and the clock is behind the tokens that were granted.
#[tokio::test]
async fn a_loss_after_the_clock_went_back_leaves_the_fences_in_order() {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let replicas = [
        Replica::open(&server.database(0)).await,
        Replica::open(&server.database(0)).await,
    ];
    let held = lasting_for(BRIEF, claim());
    let mut last = replicas[0].granted(&held).await;
    server.move_clock(Duration::ZERO).await;
    for round in 0..2 {
        server.command(&["FLUSHALL"]).await;
        let now = Instant::now();
        for replica in &replicas {
            let next = lasting_for(BRIEF, rival(&held));
            let lease = replica.granted_not_before(&next, now).await;
            assert!(lease.holder.fence.get() > last, "{round}: {lease:?} {last}");
            last = lease.holder.fence.get();
            replica.release(&next).await.expect("the store answers");
        }
    }
}

/// Only the last grants are lost, so the counters remain. The clock goes back later.
#[tokio::test]
async fn a_clock_that_goes_back_after_a_loss_of_the_last_grants_leaves_the_fences_in_order() {
    let mut server = RedisServer::start(RedisOptions {
        has_movable_clock: true,
        persistence: Persistence::AofEverySecond,
        ..RedisOptions::default()
    })
    .await;
    server.move_clock(AN_HOUR).await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting_for(BRIEF, claim());
    replica.granted(&held).await;
    replica.release(&held).await.expect("the store answers");
    let synced = server.aof_len();
    let next = lasting_for(BRIEF, rival(&held));
    let last = replica.granted(&next).await;
    server.kill();
    server.truncate_aof(synced);
    server.restart().await;
    // All processes have detected the loss, and nothing is granted meanwhile.
    replica
        .granted_not_before(&lasting_for(BRIEF, claim()), Instant::now())
        .await;
    server.move_clock(Duration::ZERO).await;
    let next = rival(&held);
    let lease = replica.granted_not_before(&next, Instant::now()).await;
    assert!(lease.holder.fence.get() > last);
}

/// Places are numbered by the clock, and waiters send their numbers to the store again after a loss.
#[tokio::test]
async fn a_loss_after_the_clock_went_back_keeps_the_order_of_the_waiters() {
    let server = redis_with_a_movable_clock().await;
    server.move_clock(AN_HOUR).await;
    let replica = Arc::new(Replica::open(&server.database(0)).await);
    let holding = lasting_for(TTL, claim());
    replica.granted(&holding).await;
    let waits = |claim: &Claim| {
        let (replica, claim) = (Arc::clone(&replica), claim.clone());
        tokio::spawn(async move { replica.acquire_within(&claim, TTL * 4).await })
    };
    let queued = async |length: u64| {
        eventually("it is queued", async || {
            let view = replica.service.inspect(lock_of(&holding)).await.ok()?;
            (view.queue.length == length).then_some(())
        })
        .await;
    };
    let [first, second] = [rival(&holding), rival(&holding)].map(lasting);
    let earlier = waits(&first);
    queued(1).await;
    server.move_clock(Duration::ZERO).await;
    server.command(&["FLUSHALL"]).await;
    let later = waits(&second);
    queued(2).await;
    let answer = earlier.await.expect("it ends");
    assert!(
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{answer:?}"
    );
    assert!(!later.is_finished(), "it came later");
}
