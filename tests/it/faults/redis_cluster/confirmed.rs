//! Replicas that confirm what is reported, and what a failover loses if none has to.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::config::RedisConfig;
use leasehold::service::AcquireOutcome;
use leasehold::store::{Fault, StoreError};

use super::partitions::cut_replication;
use super::{config, held_on, is_recovering, is_renewed, lasting, rival};
use crate::faults::{Replica, lasting_claims};
use crate::support::cluster::RedisCluster;
use crate::support::fixture::claim;
use crate::support::redis_server::RedisOptions;
use crate::support::{EFFECT_TIMEOUT, eventually, eventually_within, stores};

/// How long replicas may take, also on a busy machine. A health check has to find out within its time that one takes longer.
const WAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// A cluster in which every primary has a replica, and a process to which the replicas have to confirm.
async fn confirmed(primaries: usize) -> (RedisCluster, Replica) {
    confirmed_within(WAIT_TIMEOUT * 5, primaries, 1).await
}

/// The same, with this `redis.wait_timeout` and this number of replicas of each primary.
async fn confirmed_within(
    wait_timeout: Duration,
    primaries: usize,
    replicas: usize,
) -> (RedisCluster, Replica) {
    let mut cluster = RedisCluster::start(primaries, RedisOptions::forgetful()).await;
    for primary in 0..primaries {
        for _ in 0..replicas {
            cluster.replica(primary, RedisOptions::forgetful()).await;
        }
        cluster.nodes[primary].is_confirmed_by(replicas).await;
    }
    let config = RedisConfig {
        wait_replicas: replicas,
        wait_timeout,
        ..config()
    };
    let store = stores::cluster_store(&cluster.address(), &config).await;
    let store = store.expect("the store opens");
    store.refresh_health().await;
    (cluster, Replica::within(wait_timeout * 5, store))
}

#[tokio::test]
async fn what_is_reported_is_confirmed_by_the_replicas_of_its_primary() {
    let (mut cluster, replica) = confirmed_within(WAIT_TIMEOUT, 1, 1).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    cluster.nodes[1].kill();
    eventually("nothing is granted without the replica", async || {
        let answer = replica.acquire(&claim()).await;
        let error = answer.err()?;
        (error.fault() == Fault::Unreplicated).then_some(())
    })
    .await;
}

/// The replica that takes over is the one that misses writes, and the other one follows it.
#[tokio::test]
async fn of_two_replicas_a_failover_to_either_loses_nothing_that_was_reported() {
    const LOCKS: usize = 20;
    let (mut cluster, replica) = confirmed_within(WAIT_TIMEOUT, 1, 2).await;
    let reported = lasting_claims("before", LOCKS);
    for held in &reported {
        replica.granted(held).await;
    }
    for [primary, behind] in [[0, 1], [1, 2]] {
        cut_replication(&cluster.nodes[primary], &cluster.nodes[behind]).await;
        // Some of these wait for the grace of the failover before.
        let claims = lasting_claims(&format!("while-{behind}-is-behind"), LOCKS);
        let answers = join_all(claims.iter().map(|claim| replica.acquire(claim))).await;
        let is_granted = |answer: &Result<AcquireOutcome, StoreError>| {
            let outcome = answer.as_ref().ok();
            outcome.and_then(AcquireOutcome::kind).is_some()
        };
        assert!(!answers.iter().any(is_granted), "{answers:?}");
        let renewals = join_all(reported.iter().map(|held| replica.renew(held))).await;
        let faults = renewals.into_iter().map(|renewal| {
            let error = renewal.expect_err("one of the two lacks it");
            error.fault()
        });
        // Nothing but that one was missing.
        let faults: Vec<_> = faults.collect();
        assert!(faults.contains(&Fault::Unreplicated), "{faults:?}");
        cluster.nodes[primary].kill();
        let take_over = ["CLUSTER", "FAILOVER", "TAKEOVER"];
        cluster.nodes[behind].command(&take_over).await;
        cluster.nodes[primary].restart().await;
        cluster.nodes[behind].is_confirmed_by(2).await;
        for held in &reported {
            is_renewed(&replica, held).await;
        }
    }
    println!("{LOCKS} leases, kept through two failovers");
}

/// The nodes of a cluster replicate no messages, so a barrier is a write, and Redis refuses most writes then.
#[tokio::test]
async fn replicas_confirm_renewals_while_a_primary_is_full() {
    let (cluster, replica) = confirmed(1).await;
    let held: Vec<_> = (0..4).map(|_| lasting(claim())).collect();
    for claim in &held {
        replica.granted(claim).await;
    }
    // As if for long only other parts of the primary had begun its barriers.
    let keys = cluster.nodes[0].command(&["KEYS", "lh:1:*:barrier"]).await;
    let keys: Vec<String> = redis::from_redis_value(keys).expect("a list");
    assert!(!keys.is_empty());
    for key in &keys {
        cluster.nodes[0].command(&["DEL", key]).await;
    }
    replica.service.clone().warm_up().await;
    cluster.nodes[0]
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    let refused = replica.acquire(&claim()).await;
    let fault = refused.expect_err("it needs room").fault();
    assert_eq!(fault, Fault::Full);
    for claim in &held {
        replica.assert_holds(claim).await;
    }
    replica.release(&held[0]).await.expect("it answers");
}

#[tokio::test]
async fn replicas_of_the_primary_that_a_slot_has_moved_to_confirm() {
    let (cluster, replica) = confirmed(2).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    cluster.move_slot(slot, 0, 1).await;
    is_renewed(&replica, &held).await;
    replica.release(&held).await.expect("it answers");
    replica.granted(&rival(&held)).await;
}

/// The barrier is at the primary that still has the slot, so it says nothing about the replicas of the other one.
#[tokio::test]
async fn what_was_executed_where_a_slot_moves_to_is_confirmed_by_nobody_until_it_has_moved() {
    let (cluster, replica) = confirmed(2).await;
    let (held, slot) = held_on(0, &cluster, &replica).await;
    cluster.begin_move(slot, 0, 1).await;
    cluster.move_keys(slot, 0, 1).await;
    // Nearly every request is refused where the slot was, and only one that comes at the right moment is executed.
    let within = EFFECT_TIMEOUT * 3;
    eventually_within(
        within,
        "it is executed at the other primary",
        async || match replica.renew(&held).await {
            Err(StoreError::Unknown { detail, .. }) => {
                detail.contains("another Redis").then_some(())
            }
            Err(StoreError::Unavailable { .. }) => None,
            Ok(renewed) => panic!("nobody has confirmed it: {renewed:?}"),
        },
    )
    .await;
    cluster.end_move(slot, 0, 1).await;
    is_renewed(&replica, &held).await;
}

/// The former primary comes back with the data of its replica, which lacks what it was cut off from. The process uses it
/// all the time, and checks the store at no time in between: it knows a fencing token that the data lack.
#[tokio::test]
async fn a_failback_within_a_check_interval_is_noticed_by_a_process_that_it_took_a_lease_from() {
    let mut cluster = RedisCluster::start(2, RedisOptions::forgetful()).await;
    cluster.replica(0, RedisOptions::forgetful()).await;
    let [primary, promoted] = [&cluster.nodes[0], &cluster.nodes[2]];
    let config = RedisConfig {
        check_interval: Duration::from_secs(600),
        ..config()
    };
    let store = stores::cluster_store(&cluster.address(), &config).await;
    let replica = Replica::on(store.expect("the store opens"));
    primary.is_in_step_with(promoted).await;
    cut_replication(primary, promoted).await;
    let (held, _) = held_on(0, &cluster, &replica).await;
    for node in [promoted, primary] {
        let words = ["CLUSTER", "FAILOVER", "TAKEOVER"];
        node.command(&words).await;
        eventually("the other one follows, or cannot", async || {
            let role = primary.info("replication", "role").await;
            let link = primary
                .info_if_any("replication", "master_link_status")
                .await;
            let is_done = match std::ptr::eq(node, promoted) {
                true => role == "slave" && link.as_deref() == Some("up"),
                false => role == "master",
            };
            is_done.then_some(())
        })
        .await;
    }
    is_recovering(&replica, &rival(&held)).await;
}
