//! Redis loses data: all or only the latest, in a restart or under live connections, alone or together with the process
//! that knew most about them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{
    Claim, GrantKind, Granted, HoldCount, Lease, Mode, Released, RenewOptions, Renewed,
};
use leasehold::service::AcquireOutcome;
use tokio::time::Instant;

use super::{
    Replica, all_listen, assert_granted_in_order, durable_redis, forgetful_redis, lasting,
    lasting_for, waiters_behind,
};
use crate::support::eventually;
use crate::support::fixture::{
    READ, claim, claim_on, claim_on_all, fresh_name, in_mode, lock_of, names, only, rival, ttl,
};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{Persistence, RedisOptions, RedisServer};

/// Longer than the shortest grace after a loss, and short enough for the test to wait for it.
const TTL: Duration = Duration::from_secs(5);

/// Holds a lock, and returns the end of the lease as its holder knows it: no other grant may be earlier.
async fn hold(replica: &Replica, claim: &Claim) -> Instant {
    let (_, held_until) = replica.lease_until(claim).await;
    held_until
}

/// Two replicas that receive each other's messages.
async fn two_replicas(server: &RedisServer) -> (Replica, Replica) {
    let one = Replica::open(&server.database(0)).await;
    let other = Replica::open(&server.database(0)).await;
    all_listen(server, 2).await;
    (one, other)
}

/// The process disappears after its grant, and the other one knows of the lease only from messages.
#[tokio::test]
async fn the_grace_covers_leases_of_a_process_that_is_lost_with_redis() {
    let mut server = forgetful_redis().await;
    let (holding, other) = two_replicas(&server).await;
    for replica in [&holding, &other] {
        replica.checks.abort();
    }
    let held = lasting_for(TTL, claim());
    let held_until = hold(&holding, &held).await;
    server.kill();
    drop(holding);
    server.restart().await;
    other.granted_not_before(&rival(&held), held_until).await;
}

/// The process runs, but its messages do not arrive any more.
#[tokio::test]
async fn the_grace_covers_leases_of_a_silent_process() {
    let mut server = forgetful_redis().await;
    let (holding, other) = two_replicas(&server).await;
    let held = lasting_for(TTL, claim());
    hold(&holding, &lasting_for(TTL, claim())).await;
    holding.checks.abort();
    // A second after the last message of the process. The lease is not the first of its length, so no message announces
    // it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held_until = hold(&holding, &held).await;
    server.kill();
    server.restart().await;
    other.granted_not_before(&rival(&held), held_until).await;
}

/// A renewal with a longer TTL counts like a grant with that TTL.
#[tokio::test]
async fn the_grace_covers_a_lease_that_was_renewed_with_a_longer_ttl() {
    let mut server = forgetful_redis().await;
    let (holding, other) = two_replicas(&server).await;
    let held = lasting_for(TTL / 10, claim());
    holding.granted(&held).await;
    for replica in [&holding, &other] {
        replica.checks.abort();
    }
    let change = leasehold::domain::RenewOptions {
        ttl: Some(lasting_for(TTL, claim()).ttl),
        ..Default::default()
    };
    let (names, token) = (held.names.clone(), held.token);
    let renewed = holding.service.renew(names, token, change).await;
    assert!(
        matches!(renewed, Ok(leasehold::domain::Renewed::Extended(_))),
        "{renewed:?}"
    );
    let held_until = Instant::now() + TTL;
    server.kill();
    drop(holding);
    server.restart().await;
    // Minus a margin, because the lease began before the answer arrived.
    let held_until = held_until - Duration::from_millis(100);
    other.granted_not_before(&rival(&held), held_until).await;
}

/// Leases of a second whose locks stay closed for a while after they expire.
fn delayed() -> [Claim; 3] {
    let claim = Claim {
        lock_delay: Some(TTL / 2),
        ..lasting_for(Duration::from_secs(1), claim())
    };
    let several = claim_on_all(names(&[fresh_name(), fresh_name()]));
    let several = Claim {
        names: several.names,
        ..claim.clone()
    };
    let shared = Claim {
        names: fresh_name().into(),
        ..in_mode(&claim, READ)
    };
    [claim, shared, several]
}

/// The processes know the length of the lease together with its `lock_delay`, although a renewal does not contain it.
#[tokio::test]
async fn the_grace_covers_a_renewed_lease_with_its_lock_delay() {
    let of_each = delayed().map(async |held| {
        let server = forgetful_redis().await;
        let (holding, other) = two_replicas(&server).await;
        holding.acquire(&held).await.expect("it is well");
        let change = RenewOptions {
            ttl: Some(ttl(TTL / 2)),
            // One of them is downgraded to shared.
            mode: (held.mode == Mode::Exclusive && held.names.len() == 1).then_some(READ),
            ..RenewOptions::default()
        };
        let names = held.names.clone();
        let renewed_at = Instant::now();
        let renewed = holding.service.renew(names, held.token, change).await;
        assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
        server.command(&["FLUSHALL"]).await;
        let next = claim_on(held.names.first().expect("it has one"));
        other.granted_not_before(&next, renewed_at + TTL).await;
    });
    join_all(of_each).await;
}

/// Requests the lease again without a change: by a repeated acquire or, if it is shared, by a release to the same hold
/// count.
async fn requested_again(replica: &Replica, held: &Claim) -> Lease {
    if held.mode == Mode::Exclusive {
        let answer = replica.acquire(held).await.expect("it is well");
        let AcquireOutcome::Granted(Granted {
            kind: GrantKind::Replayed,
            leases,
            ..
        }) = answer
        else {
            panic!("it is held, but: {answer:?}");
        };
        leases.into_iter().next().expect("it has one")
    } else {
        let (names, depth) = (held.names.clone(), Some(HoldCount::ONE));
        let released = replica
            .service
            .release(names, held.token, depth, |_| {})
            .await;
        let released = only(released.expect("it is well"));
        let Released::SteppedBack(lease) = released else {
            panic!("it is held, but: {released:?}");
        };
        lease
    }
}

/// The process that renewed it crashed before it could announce the lease, so the next process that sees it announces
/// it.
#[tokio::test]
async fn the_grace_covers_a_replayed_lease_with_its_lock_delay() {
    let of_each = delayed().map(async |held| {
        let server = forgetful_redis().await;
        let (holding, other) = two_replicas(&server).await;
        holding.acquire(&held).await.expect("it is well");
        // Loads the script into Redis.
        holding.assert_holds(&held).await;
        let change = RenewOptions {
            ttl: Some(ttl(TTL / 2)),
            ..RenewOptions::default()
        };
        let proxy = Proxy::start(server.address()).await;
        let lost = Replica::open(&proxy.database(0)).await;
        lost.checks.abort();
        proxy.swallow_replies();
        let renewed_at = Instant::now();
        let renewed = lost.service.renew(held.names.clone(), held.token, change);
        let requested = eventually("it is renewed, and requested again", async || {
            let lease = requested_again(&holding, &held).await;
            (lease.ttl != held.ttl).then_some(())
        });
        tokio::select! {
            answer = renewed => panic!("its answer is lost, but: {answer:?}"),
            () = requested => {}
        }
        drop((lost, proxy));
        server.command(&["FLUSHALL"]).await;
        let next = claim_on(held.names.first().expect("it has one"));
        other.granted_not_before(&next, renewed_at + TTL).await;
    });
    join_all(of_each).await;
}

/// The last second's data are lost, even if Redis is configured to be durable from then on.
#[tokio::test]
async fn a_power_loss_is_noticed_though_redis_is_durable_from_then_on() {
    let mut server = RedisServer::start(RedisOptions {
        persistence: Persistence::AofEverySecond,
        ..RedisOptions::default()
    })
    .await;
    let (holding, other) = two_replicas(&server).await;
    holding.granted(&lasting_for(TTL, claim())).await;
    // The file is appended to before Redis answers, and synced later.
    let synced = server.aof_len();
    let held = lasting_for(TTL, claim());
    let held_until = hold(&holding, &held).await;
    server.kill();
    server.truncate_aof(synced);
    server.options().persistence = Persistence::AofAlways;
    server.restart().await;
    // A fresh replica, and one that granted nothing.
    let fresh = Replica::open(&server.database(0)).await;
    let elsewhere = claim();
    let (next, other_next) = (rival(&held), rival(&elsewhere));
    tokio::join!(
        fresh.granted_not_before(&next, held_until),
        other.granted_not_before(&other_next, held_until),
    );
}

#[tokio::test]
async fn emptied_under_live_connections_it_grants_nothing_that_is_held() {
    let server = durable_redis().await;
    let (holding, other) = two_replicas(&server).await;
    other.granted(&lasting_for(TTL, claim())).await;
    // From here on the two learn about the store only by their requests.
    for replica in [&holding, &other] {
        replica.checks.abort();
    }
    let held = lasting_for(TTL, claim());
    let held_until = hold(&holding, &held).await;
    server.command(&["FLUSHALL"]).await;
    other.granted_not_before(&rival(&held), held_until).await;
}

/// Besides leases, cool-downs also keep a lock from others.
#[tokio::test]
async fn the_grace_covers_cool_downs() {
    let brief = lasting_for(TTL / 5, claim());
    let min_hold = Claim {
        min_hold: Some(TTL),
        ..brief.clone()
    };
    let lock_delay = Claim {
        lock_delay: Some(TTL - TTL / 5),
        ..brief
    };
    for closing in [min_hold, lock_delay] {
        let server = durable_redis().await;
        let (holding, other) = two_replicas(&server).await;
        for replica in [&holding, &other] {
            replica.checks.abort();
        }
        let closed_until = Instant::now() + TTL;
        holding.granted(&closing).await;
        if closing.min_hold.is_some() {
            holding.release(&closing).await.expect("the store answers");
        }
        server.command(&["FLUSHALL"]).await;
        let next = lasting(rival(&closing));
        other.granted_not_before(&next, closed_until).await;
    }
}

/// Only the counter of one bucket is lost, in which the other process has never granted anything.
#[tokio::test]
async fn a_missing_counter_is_a_loss_for_all_processes() {
    let server = durable_redis().await;
    let (holding, other) = two_replicas(&server).await;
    for replica in [&holding, &other] {
        replica.checks.abort();
    }
    let held = lasting_for(TTL, claim());
    let held_until = hold(&holding, &held).await;
    let (name, bucket) = (lock_of(&held), lock_of(&held).bucket().index());
    for kind in ["f".to_owned(), format!("l:{name}")] {
        let key = format!("lh:1:{{{bucket}}}:{kind}");
        assert_eq!(server.integer(0, &["DEL", &key]).await, 1, "{key}");
    }
    other.granted_not_before(&rival(&held), held_until).await;
    let health = other.service.store_health();
    assert!(health.fencing_regressions > 0, "{health:?}");
}

#[tokio::test]
async fn waiters_keep_waiting_in_order_while_redis_is_emptied() {
    let server = durable_redis().await;
    let replicas = [
        Arc::new(Replica::open(&server.database(0)).await),
        Arc::new(Replica::open(&server.database(0)).await),
    ];
    let held = lasting_for(TTL, claim());
    let held_until = hold(&replicas[0], &held).await;
    let waiting = waiters_behind(&replicas, &held).await;
    server.command(&["FLUSHALL"]).await;
    assert_granted_in_order(waiting, held_until).await;
}

/// A process that comes back late still knows old leases, but these have expired by now.
#[tokio::test]
async fn a_process_that_comes_back_late_does_not_start_another_grace() {
    let mut server = forgetful_redis().await;
    let (late, other) = two_replicas(&server).await;
    let held = lasting_for(TTL, claim());
    let held_until = hold(&late, &held).await;
    late.checks.abort();
    server.kill();
    server.restart().await;
    other.granted_not_before(&rival(&held), held_until).await;
    late.granted(&lasting_for(TTL, claim())).await;
    other.granted(&lasting_for(TTL, claim())).await;
}

/// The wait is extended neither by another grace nor by a longer lease.
#[tokio::test]
async fn a_renewal_during_the_grace_does_not_extend_it() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting_for(TTL, claim());
    let held_until = hold(&replica, &held).await;
    let bucket = |claim: &Claim| lock_of(claim).bucket().index();
    let mut others = std::iter::repeat_with(claim);
    let lost = others.find(|other| bucket(other) != bucket(&held));
    let lost = lost.expect("there are many buckets");
    let counter = format!("lh:1:{{{}}}:f", bucket(&lost));
    server.command(&["DEL", &counter]).await;
    let wait = async {
        replica.granted_not_before(&lost, held_until).await;
        Instant::now()
    };
    let renew = async {
        for _ in 0..8 {
            tokio::time::sleep(TTL / 10).await;
            replica.assert_holds(&held).await;
        }
    };
    let (granted, ()) = tokio::join!(wait, renew);
    let waited_longer = granted.saturating_duration_since(held_until);
    assert!(waited_longer < TTL / 2, "{waited_longer:?} longer");
}
