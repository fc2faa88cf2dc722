//! Listings of a quorum, whose nodes each continue from names that they have found for the page before.

use std::sync::Arc;

use leasehold::domain::{Claim, LockName};
use leasehold::store::quorum::QuorumStore;
use leasehold::store::{Deadlines, ListQuery, LockStore};
use tokio::time::Instant;

use super::{addresses, keep, process, servers};
use crate::faults::lasting_claims;
use crate::support::fixture::lock_of;
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, stores};

const LOCKS: usize = 60;

/// How many locks each page has.
const PAGE: usize = 7;

/// The names on the pages after this one, and what the last of them continues with.
async fn page(store: &QuorumStore, query: &mut ListQuery) -> Vec<LockName> {
    let deadlines = Deadlines {
        step: stores::OPERATION_TIMEOUT,
        end: Instant::now() + stores::OPERATION_TIMEOUT * 5,
    };
    let page = store.list(query, deadlines).await.expect("nodes answer");
    (query.after, query.snapshot) = (page.next_after, page.snapshot);
    page.locks.into_iter().map(|lock| lock.name).collect()
}

fn first_page(page_size: usize) -> ListQuery {
    ListQuery {
        prefix: "listed/".to_owned(),
        within: None,
        after: None,
        snapshot: None,
        page_size,
    }
}

/// The names on all further pages.
async fn rest(store: &QuorumStore, query: &mut ListQuery) -> Vec<LockName> {
    let mut names = Vec::new();
    while query.after.is_some() {
        names.extend(page(store, query).await);
    }
    names
}

/// How many steps of scans a node has carried out.
async fn scans(server: &RedisServer) -> u64 {
    let stats = server.info_if_any("commandstats", "cmdstat_scan").await;
    let calls = stats.and_then(|stats| {
        let calls = stats.strip_prefix("calls=")?.split(',').next()?;
        calls.parse().ok()
    });
    calls.unwrap_or(0)
}

fn names_of(claims: &[Claim]) -> Vec<LockName> {
    let mut names: Vec<_> = claims.iter().map(|claim| lock_of(claim).clone()).collect();
    names.sort_unstable();
    names
}

/// Waits until the nodes have what was decided.
async fn settled(store: &Arc<QuorumStore>) {
    eventually("all nodes have followed", async || {
        (store.in_progress() == 0).then_some(())
    })
    .await;
}

/// Each page would cost as much as the whole listing otherwise.
#[tokio::test]
async fn each_node_scans_its_keys_once_for_all_pages() {
    let servers = servers(RedisOptions::forgetful()).await;
    let (replica, store) = process(&addresses(&servers)).await;
    // The service counts the locks, too.
    replica.checks.abort();
    let claims = lasting_claims("listed", LOCKS);
    for claim in &claims {
        replica.granted(claim).await;
    }
    settled(&store).await;
    let all = async || {
        let mut sum = 0;
        for server in &servers {
            sum += scans(server).await;
        }
        sum
    };
    let before = all().await;
    let mut query = first_page(LOCKS * 2);
    assert_eq!(page(&store, &mut query).await, names_of(&claims));
    assert_eq!(query.after, None);
    let of_one_page = all().await - before;
    assert!(of_one_page >= 3, "each node scans: {of_one_page}");
    let mut query = first_page(PAGE);
    let mut names = page(&store, &mut query).await;
    names.extend(rest(&store, &mut query).await);
    assert_eq!(names, names_of(&claims));
    let of_all_pages = all().await - before - of_one_page;
    // A node that is slow for a page may have to begin anew for another.
    assert!(of_all_pages < of_one_page * 3, "{of_all_pages} scans");
}

/// The names that the third node has found do not have the lock, and the first node loses it.
#[tokio::test]
async fn a_lock_that_changes_its_nodes_meanwhile_is_listed() {
    let servers = servers(RedisOptions::forgetful()).await;
    let proxy = Proxy::start(servers[2].address()).await;
    let mut nodes = addresses(&servers);
    nodes[2] = proxy.database(0);
    let (replica, store) = process(&nodes).await;
    let claims = lasting_claims("listed", LOCKS);
    let (last, others) = claims.split_last().expect("there are some");
    for claim in others {
        replica.granted(claim).await;
    }
    settled(&store).await;
    proxy.refuse(true);
    proxy.cut();
    replica.granted(last).await;
    settled(&store).await;
    proxy.refuse(false);
    eventually("all nodes vote", async || {
        let nodes = replica.service.store_health().nodes;
        nodes.iter().all(|node| node.votes).then_some(())
    })
    .await;

    let mut query = first_page(PAGE);
    let mut names = page(&store, &mut query).await;
    assert!(query.snapshot.is_some(), "the nodes have found names");
    keep(&replica, last).await;
    settled(&store).await;
    let lost = format!("lh:1:*{}*", lock_of(last).as_str());
    let keys = servers[0].command(&["KEYS", &lost]).await;
    let keys: Vec<String> = redis::from_redis_value(keys).expect("names of keys");
    assert!(!keys.is_empty());
    for key in &keys {
        servers[0].command(&["DEL", key]).await;
    }
    names.extend(rest(&store, &mut query).await);
    names.sort_unstable();
    assert_eq!(names, names_of(&claims));
}
