//! Listings of a Redis Cluster: while slots move, and beside the keys of others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Claim, Listing, LockName};
use leasehold::store::{Deadlines, Fault, ListQuery, LockStore, StoreError};
use tokio::time::sleep;

use super::cluster_moves::{NO_CHECKS, deadline, granted, store};
use super::lasting;
use crate::support::cluster::RedisCluster;
use crate::support::fixture::{claim, lock_of};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, stores};

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

/// `redis-cli --cluster reshard` begins a move so, and a move that was ended at one node alone leaves a mark at the other.
#[tokio::test]
async fn a_listing_does_not_wait_for_a_slot_that_its_owner_does_not_move() {
    let cluster = RedisCluster::start(2, RedisOptions::forgetful()).await;
    let store = store(&cluster, NO_CHECKS).await;
    let held = many_held(&store).await;
    let slot = cluster.slot_of_lock(lock_of(&held[0]).as_str()).await;
    let from = cluster.owner(slot).await;
    let to = 1 - from;
    cluster.import(slot, from, to).await;
    assert_eq!(listed(&store).await, all_names(&held));
    cluster.begin_move(slot, from, to).await;
    cluster.move_keys(slot, from, to).await;
    cluster.assign(slot, to, to).await;
    assert_eq!(listed(&store).await, all_names(&held));
}

/// Without its answer nobody knows whether it gives slots away, but nothing says that it does.
#[tokio::test]
async fn a_primary_that_does_not_answer_a_listing_is_not_said_to_move_slots() {
    let cluster = RedisCluster::start(3, RedisOptions::forgetful()).await;
    let store = stores::cluster_store(&cluster.address(), &stores::redis_config()).await;
    let store = store.expect("the store opens");
    let full = &cluster.nodes[1];
    let client = redis::Client::open(format!("redis://{}", full.address())).expect("an address");
    let control = client.get_multiplexed_async_connection().await;
    let limit = ["CONFIG", "SET", "maxclients", "1"];
    let limiting = redis::cmd(limit[0]).arg(&limit[1..]).to_owned();
    let limited = limiting
        .exec_async(&mut control.expect("there is room"))
        .await;
    limited.expect("Redis takes the limit");
    let refused = eventually("the listing is refused", async || {
        store.refresh_health().await;
        list(&store).await.err()
    })
    .await;
    assert_eq!(refused.fault(), Fault::Io, "{refused:?}");
    assert!(refused.detail().contains(&full.address()), "{refused:?}");
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
    let listed = list(store)
        .await
        .expect("it waits until the slot has moved");
    listed.locks.into_iter().map(|lock| lock.name).collect()
}

async fn list(store: &Arc<dyn LockStore>) -> Result<Listing, StoreError> {
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
    store.list(&query, deadlines).await
}

fn all_names(held: &[Claim]) -> Vec<LockName> {
    let mut all: Vec<_> = held.iter().map(|claim| lock_of(claim).clone()).collect();
    all.sort();
    all
}

/// Redis 7.4 and Valkey 8 visit one slot for a pattern that names it; others visit all keys, a hundred in a step.
#[tokio::test]
async fn keys_of_others_cost_a_listing_nothing_where_redis_can_leave_their_slots_out() {
    const FOREIGN: usize = 40_000;
    let cluster = RedisCluster::start(2, RedisOptions::forgetful()).await;
    let store = store(&cluster, NO_CHECKS).await;
    for node in 0..2 {
        fill(&cluster, node, FOREIGN).await;
    }
    let held = many_held(&store).await;
    let listed = listed(&store).await;
    assert_eq!(listed, all_names(&held));
    let scans = scans(&cluster).await;
    match leaves_slots_out(&cluster.nodes[0]).await {
        // One for each of the 64 slots of locks, and one for each node by which the process learns that it can.
        true => assert!(scans <= 70, "{scans} steps"),
        false => assert!(scans >= 2 * FOREIGN / 128, "{scans} steps"),
    }
    eventually("the locks are counted", async || {
        store.sweep().await;
        (store.health().held_locks == Some(held.len() as u64)).then_some(())
    })
    .await;
}

/// Adds keys to a slot of the node that no lock is in.
async fn fill(cluster: &RedisCluster, node: usize, count: usize) {
    const FILL: &str =
        "for number = 1, tonumber(ARGV[1]) do redis.call('SET', KEYS[1] .. number, 'x') end";
    for tag in 0.. {
        let key = format!("{{foreign{tag}}}:");
        if cluster.owner(cluster.slot_of(&key).await).await == node {
            let count = count.to_string();
            cluster.nodes[node]
                .command(&["EVAL", FILL, "1", &key, &count])
                .await;
            return;
        }
    }
}

async fn scans(cluster: &RedisCluster) -> usize {
    let mut scans = 0;
    for node in &cluster.nodes {
        let stats = node.info_if_any("commandstats", "cmdstat_scan").await;
        let calls = stats.as_deref().and_then(|it| it.strip_prefix("calls="));
        scans += calls.map_or(0, |it| it.split(',').next().unwrap().parse().unwrap());
    }
    scans
}

async fn leaves_slots_out(node: &RedisServer) -> bool {
    let version = node.info("server", "redis_version").await;
    let mut numbers = version.split('.').map(|it| it.parse::<u32>().unwrap());
    let version = [numbers.next().unwrap(), numbers.next().unwrap()];
    node.info_if_any("server", "valkey_version").await.is_some() || version >= [7, 4]
}
