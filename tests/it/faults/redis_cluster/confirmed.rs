//! Replicas that confirm what is reported, and what a failover loses if none has to.

use leasehold::config::RedisConfig;
use leasehold::store::Fault;

use super::{config, held_on, is_renewed, lasting, rival};
use crate::faults::Replica;
use crate::support::cluster::RedisCluster;
use crate::support::fixture::claim;
use crate::support::redis_server::RedisOptions;
use crate::support::{eventually, stores};

/// A cluster in which every primary has a replica, and a process to which the replicas have to confirm.
async fn confirmed(primaries: usize) -> (RedisCluster, Replica) {
    let mut cluster = RedisCluster::start(primaries, RedisOptions::forgetful()).await;
    for primary in 0..primaries {
        cluster.replica(primary, RedisOptions::forgetful()).await;
        cluster.nodes[primary].is_confirmed_by(1).await;
    }
    let config = RedisConfig {
        wait_replicas: 1,
        ..config()
    };
    let store = stores::cluster_store(&cluster.address(), &config).await;
    (cluster, Replica::on(store.expect("the store opens")))
}

#[tokio::test]
async fn what_is_reported_is_confirmed_by_the_replicas_of_its_primary() {
    let (mut cluster, replica) = confirmed(1).await;
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

/// The nodes of a cluster replicate no messages, so a barrier is a write, and Redis refuses most writes then.
#[tokio::test]
async fn replicas_confirm_renewals_while_a_primary_is_full() {
    let (cluster, replica) = confirmed(1).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    cluster.nodes[0]
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    let refused = replica.acquire(&claim()).await;
    let fault = refused.expect_err("it needs room").fault();
    assert_eq!(fault, Fault::Full);
    for _ in 0..3 {
        replica.assert_holds(&held).await;
    }
    replica.release(&held).await.expect("it answers");
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
