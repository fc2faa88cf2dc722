//! Redis loses data: all of them or the last ones, in a restart or under live connections, alone or together with the
//! process that knew best what was in them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{Claim, HoldCount, Lease, Mode, Released, RenewOptions, Renewed};
use leasehold::service::AcquireOutcome;
use tokio::time::Instant;

use super::{Replica, all_listen, durable_redis, forgetful_redis, lasting, lasting_for};
use crate::support::eventually;
use crate::support::fixture::{
    READ, claim, claim_on, claim_on_all, fresh_name, in_mode, lock_of, names, only, rival, ttl,
};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{Persistence, RedisOptions, RedisServer};

/// Longer than the least time that new grants wait after a loss, and short enough to be waited out.
const TTL: Duration = Duration::from_secs(5);

/// Holds a lock. Says until when its holder counts on it: nobody may count on less.
async fn hold(replica: &Replica, claim: &Claim) -> Instant {
    let lease = replica.lease(claim).await;
    Instant::now() + lease.holder.expires_in
}

/// Two that hear each other.
async fn two_replicas(server: &RedisServer) -> (Replica, Replica) {
    let one = Replica::open(&server.database(0)).await;
    let other = Replica::open(&server.database(0)).await;
    all_listen(server, 2).await;
    (one, other)
}

/// The process is never heard of again after its grant, and nothing but messages tells the other one of it.
#[tokio::test]
async fn a_lease_of_a_process_that_is_lost_with_redis_is_waited_for() {
    let mut server = forgetful_redis().await;
    let (holding, other) = two_replicas(&server).await;
    for replica in [&holding, &other] {
        replica.surveys.abort();
    }
    let held = lasting_for(TTL, claim());
    let held_until = hold(&holding, &held).await;
    server.kill();
    drop(holding);
    server.restart().await;
    other.granted_not_before(&rival(&held), held_until).await;
}

/// It lives, and says nothing any more.
#[tokio::test]
async fn a_lease_of_a_process_that_is_silent_is_waited_for() {
    let mut server = forgetful_redis().await;
    let (holding, other) = two_replicas(&server).await;
    let held = lasting_for(TTL, claim());
    hold(&holding, &lasting_for(TTL, claim())).await;
    holding.surveys.abort();
    // A second after the last word of the process, the lease is not the first of its kind and nothing is told of it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held_until = hold(&holding, &held).await;
    server.kill();
    server.restart().await;
    other.granted_not_before(&rival(&held), held_until).await;
}

/// A grant that is made longer is as good as one that was so long from the beginning.
#[tokio::test]
async fn a_lease_that_was_renewed_for_longer_is_waited_for() {
    let mut server = forgetful_redis().await;
    let (holding, other) = two_replicas(&server).await;
    let held = lasting_for(TTL / 10, claim());
    holding.granted(&held).await;
    for replica in [&holding, &other] {
        replica.surveys.abort();
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
    // Rounded: the answer was on its way while the lease began.
    let held_until = held_until - Duration::from_millis(100);
    other.granted_not_before(&rival(&held), held_until).await;
}

/// Leases of a second whose locks stay closed for a while when they run out.
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

/// The processes know for how long it lasts together with what keeps its lock closed afterwards, which the renewal does not say.
#[tokio::test]
async fn a_renewed_lease_is_waited_for_together_with_its_lock_delay() {
    let of_each = delayed().map(async |held| {
        let server = forgetful_redis().await;
        let (holding, other) = two_replicas(&server).await;
        holding.acquire(&held).await.expect("it is well");
        let change = RenewOptions {
            ttl: Some(ttl(TTL / 2)),
            // One of them steps down.
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

/// By a request that changes nothing: it is acquired again or, if it is shared, stepped back to where it is.
async fn told_again(replica: &Replica, held: &Claim) -> Lease {
    if held.mode == Mode::Exclusive {
        let answer = replica.acquire(held).await.expect("it is well");
        let AcquireOutcome::Replayed(leases) = answer else {
            panic!("it is held, but: {answer:?}");
        };
        leases.into_iter().next().expect("it has one")
    } else {
        let (names, depth) = (held.names.clone(), Some(HoldCount::ONE));
        let released = replica.service.release(names, held.token, depth).await;
        let released = only(released.expect("it is well"));
        let Released::SteppedBack(lease) = released else {
            panic!("it is held, but: {released:?}");
        };
        lease
    }
}

/// The process that renewed it is gone before it could tell, so whoever is told of the lease next tells the others.
#[tokio::test]
async fn a_lease_that_is_told_of_again_is_waited_for_together_with_its_lock_delay() {
    let of_each = delayed().map(async |held| {
        let server = forgetful_redis().await;
        let (holding, other) = two_replicas(&server).await;
        holding.acquire(&held).await.expect("it is well");
        // So that Redis knows the script.
        holding.assert_holds(&held).await;
        let change = RenewOptions {
            ttl: Some(ttl(TTL / 2)),
            ..RenewOptions::default()
        };
        let proxy = Proxy::start(server.address()).await;
        let lost = Replica::open(&proxy.database(0)).await;
        lost.surveys.abort();
        proxy.swallow_replies();
        let renewed_at = Instant::now();
        let renewed = lost.service.renew(held.names.clone(), held.token, change);
        let told = eventually("it is renewed, and told of again", async || {
            let lease = told_again(&holding, &held).await;
            (lease.ttl != held.ttl).then_some(())
        });
        tokio::select! {
            answer = renewed => panic!("its answer is lost, but: {answer:?}"),
            () = told => {}
        }
        drop((lost, proxy));
        server.command(&["FLUSHALL"]).await;
        let next = claim_on(held.names.first().expect("it has one"));
        other.granted_not_before(&next, renewed_at + TTL).await;
    });
    join_all(of_each).await;
}

/// What the last second lost is lost even if Redis promises that there will be no next time.
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
    // One that has seen nothing of all this, and one that has not granted.
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
    // From here on nothing but requests tells the two about the store.
    for replica in [&holding, &other] {
        replica.surveys.abort();
    }
    let held = lasting_for(TTL, claim());
    let held_until = hold(&holding, &held).await;
    server.command(&["FLUSHALL"]).await;
    other.granted_not_before(&rival(&held), held_until).await;
}

/// Leases are not all that keeps a lock from others.
#[tokio::test]
async fn what_stays_closed_after_a_lease_is_waited_for() {
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
            replica.surveys.abort();
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

/// Only the counter of one bucket, in which the other process has never granted anything.
#[tokio::test]
async fn a_counter_that_is_missing_is_a_loss_for_everybody() {
    let server = durable_redis().await;
    let (holding, other) = two_replicas(&server).await;
    for replica in [&holding, &other] {
        replica.surveys.abort();
    }
    let held = lasting_for(TTL, claim());
    let held_until = hold(&holding, &held).await;
    let (name, bucket) = (lock_of(&held), lock_of(&held).bucket().index());
    for kind in ["f".to_owned(), format!("l:{name}")] {
        let key = format!("lh:1:{{{bucket}}}:{kind}");
        assert_eq!(server.integer(0, &["DEL", &key]).await, 1, "{key}");
    }
    other.granted_not_before(&rival(&held), held_until).await;
}

#[tokio::test]
async fn whoever_waits_while_redis_is_emptied_waits_on_and_keeps_the_order() {
    let server = durable_redis().await;
    let replicas = [
        Arc::new(Replica::open(&server.database(0)).await),
        Arc::new(Replica::open(&server.database(0)).await),
    ];
    let held = lasting_for(TTL, claim());
    let held_until = hold(&replicas[0], &held).await;
    let mut waiting = Vec::new();
    for length in 1..=4 {
        let replica = Arc::clone(&replicas[length % 2]);
        let waiter = lasting(rival(&held));
        waiting.push(tokio::spawn(async move {
            let answer = replica.acquire_within(&waiter, TTL * 4).await;
            let Ok(AcquireOutcome::Granted(leases)) = answer else {
                panic!("it waits on, but: {answer:?}");
            };
            let granted = Instant::now();
            replica.release(&waiter).await.expect("the store answers");
            (only(leases).holder.fence, granted)
        }));
        let replica = &replicas[0];
        eventually("it is queued", async || {
            let view = replica.service.inspect(lock_of(&held)).await.ok()?;
            (view.queue.length == length as u64).then_some(())
        })
        .await;
    }
    server.command(&["FLUSHALL"]).await;
    let mut last = None;
    for waiter in waiting {
        let (fence, granted) = waiter.await.expect("it was granted");
        assert!(granted >= held_until, "granted while the lease is alive");
        assert!(last < Some(fence), "{fence} after {last:?}");
        last = Some(fence);
    }
}

/// Somebody who comes late knows of leases of old, too. That they may be alive is over.
#[tokio::test]
async fn a_process_that_comes_back_late_does_not_close_the_fleet_anew() {
    let mut server = forgetful_redis().await;
    let (late, other) = two_replicas(&server).await;
    let held = lasting_for(TTL, claim());
    let held_until = hold(&late, &held).await;
    late.surveys.abort();
    server.kill();
    server.restart().await;
    other.granted_not_before(&rival(&held), held_until).await;
    late.granted(&lasting_for(TTL, claim())).await;
    other.granted(&lasting_for(TTL, claim())).await;
}

/// A step that ends neither with the grace of another loss nor with a longer lease than was known.
#[tokio::test]
async fn what_is_renewed_while_grants_wait_does_not_make_them_wait_longer() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting_for(TTL, claim());
    let held_until = hold(&replica, &held).await;
    let (lost, bucket) = (claim(), |claim: &Claim| lock_of(claim).bucket().index());
    assert_ne!(bucket(&lost), bucket(&held));
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
