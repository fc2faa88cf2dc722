//! Nodes that change: two Redis that change places, and one that is emptied while another one pauses.

use std::time::Duration;

use leasehold::config::RedisAddress;
use leasehold::domain::Claim;
use leasehold::store::LockStore;
use tokio::time::sleep;

use super::{addresses, next_fence, process, servers};
use crate::faults::{Replica, lasting_for};
use crate::support::eventually;
use crate::support::fixture::{claim, rival};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// A node that may have forgotten leases has no vote for so long.
const TTL: Duration = Duration::from_secs(2);

/// Longer than a process may be away without that its waiters may have been forgotten.
const AWAY: Duration = Duration::from_secs(4);

/// For how long a node that was away grants nothing.
const PAUSE_MS: &[u8] = b"3000";

/// Of so many looks at a node, one began after all that was asked before, and has had its effect.
const LOOKS_MIN: usize = 3;

fn short(claim: Claim) -> Claim {
    lasting_for(TTL, claim)
}

/// Proxies in front of the first two, and the addresses by which a process uses them.
async fn behind_proxies(servers: &[RedisServer]) -> ([Proxy; 2], Vec<RedisAddress>) {
    let ways = [
        Proxy::start(servers[0].address()).await,
        Proxy::start(servers[1].address()).await,
    ];
    let mut nodes = addresses(servers);
    for (node, way) in nodes.iter_mut().zip(&ways) {
        *node = way.database(0);
    }
    (ways, nodes)
}

/// How often processes have looked at the data of a node.
async fn looks(server: &RedisServer) -> usize {
    let counted = server.info_if_any("commandstats", "cmdstat_hmget").await;
    let calls = counted.as_deref().map_or("0", |counted| {
        let calls = counted.split(',').next();
        let calls = calls.and_then(|calls| calls.strip_prefix("calls="));
        calls.expect("the calls come first")
    });
    calls.parse().expect("a number")
}

/// Fails if the pause is over, and otherwise has it begin anew.
async fn pause_goes_on(server: &RedisServer, grace: &[u8]) {
    let is_extended = server.integer(0, &[b"PEXPIRE", grace, PAUSE_MS]).await;
    assert_eq!(is_extended, 1, "the pause is over");
}

async fn until_votes(replica: &Replica, what: &str, are_all: bool) {
    eventually(what, async || {
        let nodes = replica.service.store_health().nodes;
        (nodes.iter().all(|node| node.votes) == are_all).then_some(())
    })
    .await;
}

/// The addresses lead to the same Redis as before, but each to that of the other.
#[tokio::test]
async fn two_nodes_that_have_changed_places_vote_again() {
    let servers = servers(RedisOptions::default()).await;
    let (ways, nodes) = behind_proxies(&servers).await;
    let (replica, _) = process(&nodes).await;
    let claim = short(claim());
    let before = next_fence(&replica, &claim).await;
    until_votes(&replica, "all nodes vote", true).await;
    for (way, server) in ways.iter().zip([1, 0]) {
        way.switch(servers[server].address());
    }
    until_votes(&replica, "the change is noticed", false).await;
    until_votes(&replica, "all nodes vote again", true).await;
    let after = next_fence(&replica, &rival(&claim)).await;
    assert!(before < after, "{before} then {after}");
}

/// The node that pauses has its data, and says so a moment later. Without it nobody would know how long to wait, and the
/// empty node would wait for the longest lease that a client can request.
#[tokio::test]
async fn a_node_that_is_found_empty_while_another_one_pauses_votes_when_its_leases_have_ended() {
    let servers = servers(RedisOptions::forgetful()).await;
    let (ways, nodes) = behind_proxies(&servers).await;
    let (replica, store) = process(&nodes).await;
    replica.granted(&short(claim())).await;
    for way in &ways {
        way.refuse(true);
        way.cut();
    }
    sleep(AWAY).await;
    servers[0].command(&["FLUSHALL"]).await;
    ways[1].refuse(false);
    let grace = eventually("the second node gives its processes time", async || {
        servers[1].keys(0, "*:grace").await.pop()
    })
    .await;
    // From now on, only the next process asks the nodes.
    drop(replica);
    store.close().await;
    let (late, _) = process(&addresses(&servers)).await;
    // It asks the others again, now that it has found the first node empty, and then looks at that again.
    for server in [&servers[2], &servers[1], &servers[0]] {
        let before = looks(server).await;
        eventually("it has looked at the data of the node", async || {
            pause_goes_on(&servers[1], &grace).await;
            (looks(server).await >= before + LOOKS_MIN).then_some(())
        })
        .await;
    }
    pause_goes_on(&servers[1], &grace).await;
    until_votes(&late, "all nodes vote", true).await;
    next_fence(&late, &short(claim())).await;
}
