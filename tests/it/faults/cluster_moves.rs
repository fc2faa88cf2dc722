//! A Redis Cluster that is down, or whose slots move, and what requests get meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::{Acquired, Attempt, Claim, LockName};
use leasehold::store::{Deadlines, ListQuery, LockStore};
use tokio::time::{Instant, sleep};

use super::redis_cluster::is_renewed;
use super::{Replica, lasting};
use crate::support::cluster::RedisCluster;
use crate::support::fixture::{
    Waiter, claim, claim_on, claim_on_all, fresh_name, lock_of, names, rival,
};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, stores};

/// Longer than a test: no check of the store finds out what requests do not.
const NO_CHECKS: Duration = Duration::from_secs(60);

async fn store(cluster: &RedisCluster, check_interval: Duration) -> Arc<dyn LockStore> {
    let config = RedisConfig {
        check_interval,
        ..stores::redis_config()
    };
    let store = stores::cluster_store(&cluster.address(), &config).await;
    store.expect("the store opens")
}

fn deadline() -> Instant {
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

async fn granted(store: &Arc<dyn LockStore>, claim: &Claim) {
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

#[tokio::test]
async fn a_listing_waits_for_a_slot_that_moves_and_has_its_locks_once() {
    let cluster = RedisCluster::start(2, RedisOptions::forgetful()).await;
    let store = store(&cluster, NO_CHECKS).await;
    let held = many_held(&store).await;
    let slot = cluster.slot_of_lock(lock_of(&held[0]).as_str()).await;
    let from = cluster.owner(slot).await;
    cluster.begin_move(slot, from, 1 - from).await;
    let moving = async {
        // Longer than all attempts to scan take, one after the other.
        sleep(Duration::from_secs(2)).await;
        cluster.move_keys(slot, from, 1 - from).await;
        cluster.end_move(slot, from, 1 - from).await;
    };
    let (listed, ()) = tokio::join!(listed(&store), moving);
    assert_eq!(listed, all_names(&held));
}

/// The connections of some parts still lead to where their slots were.
#[tokio::test]
async fn a_listing_has_all_locks_when_no_request_has_noticed_that_slots_have_moved() {
    let cluster = RedisCluster::start(2, RedisOptions::forgetful()).await;
    let store = store(&cluster, NO_CHECKS).await;
    let held = many_held(&store).await;
    let mut slots = BTreeMap::new();
    for claim in &held {
        let slot = cluster.slot_of_lock(lock_of(claim).as_str()).await;
        slots.insert(slot, cluster.owner(slot).await);
    }
    // The first parts of all are now the first ones of the second node, which a scan starts from.
    let first_parts: Vec<_> = slots.into_iter().filter(|(_, owner)| *owner == 0).collect();
    for (slot, from) in first_parts.into_iter().take(4) {
        cluster.move_slot(slot, from, 1 - from).await;
    }
    assert_eq!(listed(&store).await, all_names(&held));
}

/// Claims that hold locks in nearly all parts.
async fn many_held(store: &Arc<dyn LockStore>) -> Vec<Claim> {
    let held: Vec<_> = (0..200).map(|_| lasting(claim())).collect();
    for claim in &held {
        granted(store, claim).await;
    }
    held
}

async fn listed(store: &Arc<dyn LockStore>) -> Vec<LockName> {
    let query = ListQuery {
        prefix: String::new(),
        within: None,
        after: None,
        snapshot: None,
        page_size: 1_000,
    };
    let deadlines = Deadlines {
        step: Duration::from_secs(10),
        end: deadline(),
    };
    let listed = store.list(&query, deadlines).await;
    let listed = listed.expect("it waits until the slot has moved");
    listed.locks.into_iter().map(|lock| lock.name).collect()
}

fn all_names(held: &[Claim]) -> Vec<LockName> {
    let mut all: Vec<_> = held.iter().map(|claim| lock_of(claim).clone()).collect();
    all.sort();
    all
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
