//! A Redis Cluster that is down, or whose slots move, and what requests get meanwhile.

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::{Acquired, Attempt, Claim, LockName};
use leasehold::store::LockStore;
use tokio::time::Instant;

use super::redis_cluster::is_renewed;
use super::{Replica, lasting};
use crate::support::cluster::RedisCluster;
use crate::support::fixture::{
    Waiter, claim, claim_on, claim_on_all, fresh_name, lock_of, names, rival,
};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, stores};

/// Longer than a test: no check of the store finds out what requests do not.
pub(super) const NO_CHECKS: Duration = Duration::from_secs(60);

pub(super) async fn store(cluster: &RedisCluster, check_interval: Duration) -> Arc<dyn LockStore> {
    let config = RedisConfig {
        check_interval,
        ..stores::redis_config()
    };
    let store = stores::cluster_store(&cluster.address(), &config).await;
    store.expect("the store opens")
}

pub(super) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Locks that are free, one on each primary.
async fn lock_on_each(cluster: &RedisCluster, store: &Arc<dyn LockStore>) -> Vec<LockName> {
    let mut locks = vec![None; cluster.nodes.len()];
    while locks.iter().any(Option::is_none) {
        let name = fresh_name();
        let owner = owner_of(cluster, store, &name).await;
        locks[owner] = Some(name);
    }
    locks.into_iter().flatten().collect()
}

/// The primary that has a lock, which is free.
async fn owner_of(cluster: &RedisCluster, store: &Arc<dyn LockStore>, name: &LockName) -> usize {
    let held = lasting(claim_on(name));
    granted(store, &held).await;
    let slot = cluster.slot_of_lock(name.as_str()).await;
    let releasing = store.release(&held.names, held.token, None, deadline());
    releasing.await.expect("it answers");
    cluster.owner(slot).await
}

pub(super) async fn granted(store: &Arc<dyn LockStore>, claim: &Claim) {
    let acquiring = store.acquire(claim, Attempt::random(), None, deadline());
    let acquired = acquiring.await;
    assert!(matches!(acquired, Ok(Acquired::Granted(_))), "{acquired:?}");
}

/// How many scripts the nodes have executed.
async fn scripts_executed(cluster: &RedisCluster) -> u64 {
    let mut all = 0;
    for node in &cluster.nodes {
        all += executed("evalsha", node).await;
    }
    all
}

/// How often a node has executed a command.
async fn executed(command: &str, node: &RedisServer) -> u64 {
    let field = format!("cmdstat_{command}");
    let calls = node.info_if_any("commandstats", &field).await;
    let calls = calls.unwrap_or_default();
    let calls = calls
        .strip_prefix("calls=")
        .and_then(|it| it.split(',').next());
    calls.map_or(0, |it| it.parse().expect("a number"))
}

#[tokio::test]
async fn a_cluster_that_is_down_refuses_at_once_and_is_used_again_when_it_is_back() {
    // Of no partition.
    const SLOT: &str = "1";
    let cluster = RedisCluster::start(1, RedisOptions::forgetful()).await;
    let replica = Replica::on(store(&cluster, NO_CHECKS).await);
    let held = lasting(claim());
    replica.granted(&held).await;
    cluster.nodes[0]
        .command(&["CLUSTER", "DELSLOTS", SLOT])
        .await;
    eventually("requests are refused at once", async || {
        let began = Instant::now();
        let refused = replica.acquire(&rival(&held)).await;
        assert!(refused.is_err(), "{refused:?}");
        (began.elapsed() < stores::OPERATION_TIMEOUT / 4).then_some(())
    })
    .await;
    cluster.nodes[0]
        .command(&["CLUSTER", "ADDSLOTS", SLOT])
        .await;
    is_renewed(&replica, &held).await;
}

/// The beginning of a move is known to one of them alone, so each passes every request for a missing key on to the other.
#[tokio::test]
async fn two_primaries_that_name_each_other_are_not_asked_without_a_pause() {
    let cluster = RedisCluster::start(2, RedisOptions::forgetful()).await;
    let store = store(&cluster, NO_CHECKS).await;
    let held = lasting(claim());
    granted(&store, &held).await;
    let slot = cluster.slot_of_lock(lock_of(&held).as_str()).await;
    let owner = cluster.owner(slot).await;
    let releasing = store.release(&held.names, held.token, None, deadline());
    releasing.await.expect("it answers");
    let [from, to] = [&cluster.nodes[owner], &cluster.nodes[1 - owner]];
    let before = executed("asking", to).await;
    let (slot, id) = (slot.to_string(), cluster.id(1 - owner).await);
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id])
        .await;
    let soon = Instant::now() + Duration::from_secs(1);
    let inspected = store.inspect(lock_of(&held), soon).await;
    let error = inspected.expect_err("no node has the key");
    let asked = executed("asking", to).await - before;
    // With pauses that grow there is time for less than twenty; without a pause, for hundreds.
    assert!((2..50).contains(&asked), "{asked} times: {error}");
}

/// Otherwise a claim that comes later could get its place before.
#[tokio::test]
async fn a_claim_that_waits_for_locks_of_several_primaries_has_its_place_at_once() {
    let cluster = RedisCluster::start(2, RedisOptions::forgetful()).await;
    let store = store(&cluster, NO_CHECKS).await;
    let locks = lock_on_each(&cluster, &store).await;
    let waiter = Waiter::new(lasting(claim_on_all(names(&locks))));
    // Granted just now, so the claim of the lease might be about to be granted the other lock, too.
    granted(&store, &lasting(claim_on(&locks[0]))).await;
    let before = scripts_executed(&cluster).await;
    let request = Some(&waiter.queue_request);
    let acquiring = store.acquire(&waiter.claim, waiter.attempt, request, deadline());
    let acquired = acquiring.await;
    assert!(matches!(acquired, Ok(Acquired::Waiting(_))), "{acquired:?}");
    let executed = scripts_executed(&cluster).await - before;
    // Both partitions are asked, and then queue the claim.
    assert_eq!(executed, 4);
}

/// Redis has a limit on connections, and a barrier blocks its own.
#[tokio::test]
async fn all_parts_of_a_primary_share_one_connection_for_what_its_replicas_confirm() {
    let mut cluster = RedisCluster::start(1, RedisOptions::forgetful()).await;
    cluster.replica(0, RedisOptions::forgetful()).await;
    cluster.nodes[0].is_confirmed_by(1).await;
    let connected = async || {
        let count = cluster.nodes[0].info("clients", "connected_clients").await;
        count.parse::<u32>().expect("a number")
    };
    let before = connected().await;
    let config = RedisConfig {
        wait_replicas: 1,
        // Longer than a replica takes on a busy machine.
        wait_timeout: Duration::from_secs(5),
        ..stores::redis_config()
    };
    let store = stores::cluster_store(&cluster.address(), &config).await;
    let store = store.expect("the store opens");
    for _ in 0..100 {
        granted(&store, &lasting(claim())).await;
    }
    let opened = connected().await - before;
    // The others carry requests; `RedisConfig::connections` bounds them.
    assert!(opened <= 8, "{opened} connections");
}
