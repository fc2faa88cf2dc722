//! Failovers between Redis whose clocks differ, and a former primary that comes back as a second one.

use std::time::Duration;

use leasehold::config::SentinelAddress;
use leasehold::domain::Claim;
use leasehold::service::AcquireOutcome;
use leasehold::store::Finding;
use tokio::time::Instant;

use super::{Replica, lasting, lasting_for};
use crate::support::fixture::{claim, lock_of, only, rival};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::sentinels::WatchedPair;
use crate::support::{eventually, stores};

/// Shorter than the clocks differ, and longer than a planned failover takes.
const TTL: Duration = Duration::from_secs(2);

/// How far one of the clocks is ahead.
const SKEW: Duration = Duration::from_secs(5);

/// What a process says about the clock of its Redis.
fn clock(replica: &Replica) -> Option<Finding> {
    let findings = replica.service.store_health().findings.into_iter();
    let mut clocks = findings.filter(|finding| finding.topic == "clock");
    clocks.next()
}

/// Waits until somebody else is granted the lock, and returns the fencing token.
async fn next_fence(replica: &Replica, held: &Claim, held_until: Instant) -> u64 {
    let next = lasting_for(TTL, rival(held));
    let granted = eventually("it is granted", async || {
        match replica.acquire(&next).await {
            Ok(AcquireOutcome::Granted(granted)) => Some(granted),
            Ok(_) | Err(_) => None,
        }
    })
    .await;
    let early = held_until.saturating_duration_since(Instant::now());
    assert!(
        early.is_zero(),
        "granted {early:?} before the lease has ended"
    );
    only(granted.leases).holder.fence.get()
}

/// In `safe` mode, with a holder that works until the end of its lease.
async fn keeps_order_and_exclusion(of_primary: Duration, of_replica: Duration) {
    let options = RedisOptions {
        has_movable_clock: true,
        ..RedisOptions::forgetful()
    };
    let pair = WatchedPair::start(options).await;
    pair.primary.move_clock(of_primary).await;
    pair.replica.move_clock(of_replica).await;
    let open = async || {
        let address = pair.sentinels.database(0);
        let store = stores::sentinel_store(&address, &stores::confirmed_by(1)).await;
        Replica::on(store.expect("the primary is found"))
    };
    let [holder, other] = [open().await, open().await];
    let held = lasting_for(TTL, claim());
    // It is the only one that is reported: one that is not confirmed in time is not.
    let granted = eventually("it is confirmed", async || {
        let asked = Instant::now();
        match holder.acquire(&held).await {
            Ok(AcquireOutcome::Granted(granted)) => Some((only(granted.leases), asked)),
            Ok(_) | Err(_) => None,
        }
    });
    let (lease, asked) = granted.await;
    let held_until = asked + lease.holder.expires_in;
    pair.sentinels.fail_over().await;
    let demoted = async {
        pair.is_promoted().await;
        // The Sentinels do so too, but only after eight seconds.
        pair.primary.follow(pair.replica.port()).await;
    };
    let (fence, ()) = tokio::join!(next_fence(&other, &held, held_until), demoted);
    assert!(fence > lease.holder.fence.get());
    let is_kept_there = pair.replica.keys(0, "lh:1:*:l:*").await.len();
    assert_eq!(is_kept_there, 1, "it was granted by the new primary");
    eventually("the clock is reported as it is", async || {
        let is_off = !of_replica.is_zero();
        (clock(&other)?.is_fine != is_off).then_some(())
    })
    .await;
}

/// Leases end early there, and the fencing tokens make a step.
#[tokio::test]
async fn a_planned_failover_to_a_clock_that_is_ahead_keeps_order_and_exclusion() {
    keeps_order_and_exclusion(Duration::ZERO, SKEW).await;
}

/// Leases end late there, and its time is before the last fencing token.
#[tokio::test]
async fn a_planned_failover_to_a_clock_that_is_behind_keeps_order_and_exclusion() {
    keeps_order_and_exclusion(SKEW, Duration::ZERO).await;
}

/// As after a restart with a configuration that does not name the new primary. It has all data until its demotion.
#[tokio::test]
async fn a_former_primary_that_comes_back_as_a_second_one_grants_nothing() {
    let mut pair = WatchedPair::start(RedisOptions::default()).await;
    let mut address = pair.sentinels.database(0);
    let open = async |address: SentinelAddress| {
        let store = stores::sentinel_store(&address, &stores::redis_config()).await;
        Replica::on(store.expect("the primary is found"))
    };
    let replica = open(address.clone()).await;
    let mut proxies = Vec::new();
    for (host, port) in &mut address.sentinels {
        let proxy = Proxy::start(format!("{host}:{port}")).await;
        *port = proxy.address().port();
        proxies.push(proxy);
    }
    let apart = open(address).await;
    let held = lasting_for(TTL, claim());
    replica.granted(&held).await;
    apart.granted(&lasting_for(TTL, claim())).await;
    pair.is_in_step().await;
    pair.sentinels.fail_over().await;
    pair.is_promoted().await;
    pair.primary.follow(pair.replica.port()).await;
    for process in [&replica, &apart] {
        eventually("the new primary grants", async || {
            match process.acquire(&lasting_for(TTL, claim())).await {
                Ok(AcquireOutcome::Granted(_)) => Some(()),
                Ok(_) | Err(_) => None,
            }
        })
        .await;
    }
    let kept = async |server: &RedisServer, claim: &Claim| {
        let (bucket, name) = (lock_of(claim).bucket().index(), lock_of(claim));
        let key = format!("lh:1:{{{bucket}}}:l:{}", name.as_str());
        server.integer(0, &["EXISTS", &key]).await
    };

    pair.primary.kill();
    pair.primary.restart().await;
    for proxy in &proxies {
        proxy.refuse(true);
        proxy.cut();
    }
    // So that everybody connects anew.
    let connected = ["CLIENT", "KILL", "TYPE", "normal"];
    pair.replica.command(&connected).await;
    let unheard = lasting(claim());
    let refused = apart.acquire(&unheard).await;
    assert!(refused.is_err(), "it cannot know the primary: {refused:?}");
    let fresh = open(pair.sentinels.database(0)).await;
    for process in [&replica, &fresh] {
        for _ in 0..20 {
            let next = lasting(claim());
            process.granted(&next).await;
            let [here, there] = [
                kept(&pair.primary, &next).await,
                kept(&pair.replica, &next).await,
            ];
            assert_eq!((here, there), (0, 1));
        }
    }
    assert_eq!(kept(&pair.primary, &unheard).await, 0);
    let role = pair.primary.info("replication", "role").await;
    assert_eq!(role, "master", "it was a second primary all the time");
}
