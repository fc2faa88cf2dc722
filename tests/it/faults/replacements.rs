//! Another Redis answers at the same address: a promoted replica, or another host behind the name.

use std::time::Duration;

use leasehold::domain::GrantKind;

use super::{Replica, all_listen, durable_redis, lasting, lasting_for};
use crate::support::eventually;
use crate::support::fixture::{claim, rival};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

/// Longer than the shortest grace after a loss, and short enough for the test to wait for it.
const TTL: Duration = Duration::from_secs(5);

/// A primary and its replica, both durable, the network between them, and one address for both.
struct Pair {
    primary: RedisServer,
    replica: RedisServer,
    between: Proxy,
    address: Proxy,
}

impl Pair {
    async fn start() -> Self {
        let (primary, replica) = (durable_redis().await, durable_redis().await);
        let between = Proxy::start(primary.address()).await;
        let address = Proxy::start(primary.address()).await;
        let to = between.address();
        let replicate = ["REPLICAOF", &to.ip().to_string(), &to.port().to_string()];
        replica.command(&replicate).await;
        eventually("the replica has everything", async || {
            let link = replica.info("replication", "master_link_status").await;
            (link == "up").then_some(())
        })
        .await;
        Self {
            primary,
            replica,
            between,
            address,
        }
    }

    /// Cuts the replication: from now on the replica misses new writes.
    async fn separate(&self) {
        // Earlier writes may still be in flight.
        eventually("the replica has caught up", async || {
            let there = self.primary.info("replication", "master_repl_offset").await;
            let here = self.replica.info("replication", "master_repl_offset").await;
            (there == here).then_some(())
        })
        .await;
        self.between.refuse(true);
        self.between.cut();
    }

    /// Kills the primary, and promotes the replica to its address.
    async fn fail_over(&mut self) {
        self.primary.kill();
        self.replica.command(&["REPLICAOF", "NO", "ONE"]).await;
        self.address.redirect(self.replica.address());
    }
}

#[tokio::test]
async fn a_promoted_replica_that_lacks_the_last_grant_deceives_nobody() {
    let mut pair = Pair::start().await;
    let holding = Replica::open(&pair.address.database(0)).await;
    let other = Replica::open(&pair.address.database(0)).await;
    holding.granted(&lasting_for(TTL, claim())).await;
    other.granted(&lasting_for(TTL, claim())).await;
    pair.separate().await;
    let held = lasting_for(TTL, claim());
    let (lease, held_until) = holding.lease_until(&held).await;
    drop(holding);
    pair.fail_over().await;
    // A fresh replica of Leasehold.
    let fresh = Replica::open(&pair.address.database(0)).await;
    let elsewhere = claim();
    let next = rival(&held);
    let (granted, _) = tokio::join!(
        fresh.granted_not_before(&next, held_until),
        other.granted_not_before(&elsewhere, held_until),
    );
    assert!(granted.holder.fence > lease.holder.fence);
}

/// The primary had the replica until a moment ago, and no process has checked it since.
#[tokio::test]
async fn a_replica_that_is_promoted_at_once_deceives_nobody() {
    let mut pair = Pair::start().await;
    // So that the stored data are marked as durable, which they were.
    pair.separate().await;
    eventually("the primary has no replica", async || {
        let replicas = pair.primary.info("replication", "connected_slaves").await;
        (replicas == "0").then_some(())
    })
    .await;
    let holding = Replica::open(&pair.address.database(0)).await;
    let other = Replica::open(&pair.address.database(0)).await;
    all_listen(&pair.primary, 2).await;
    holding.granted(&lasting_for(TTL, claim())).await;
    for replica in [&holding, &other] {
        replica.checks.abort();
    }
    pair.between.refuse(false);
    eventually("the replica has everything", async || {
        let link = pair.replica.info("replication", "master_link_status").await;
        (link == "up").then_some(())
    })
    .await;
    pair.separate().await;
    let held = lasting_for(TTL, claim());
    let (_, held_until) = holding.lease_until(&held).await;
    drop(holding);
    pair.fail_over().await;
    other.granted_not_before(&rival(&held), held_until).await;
}

/// The old Redis still answers on open connections.
#[tokio::test]
async fn no_connection_stays_where_the_address_pointed_before() {
    let (before, after) = (durable_redis().await, durable_redis().await);
    let address = Proxy::start(before.address()).await;
    let replica = Replica::open(&address.database(0)).await;
    let held = lasting_for(TTL, claim());
    let (_, held_until) = replica.lease_until(&held).await;
    address.redirect(after.address());
    eventually("everybody has moved, with the ear", async || {
        (before.connections().await == 0 && after.connections().await > 0).then_some(())
    })
    .await;
    // The leases may be lost.
    replica
        .granted_not_before(&lasting(claim()), held_until)
        .await;
}

/// It is unknown whether the address still leads to the same Redis.
#[tokio::test]
async fn connections_are_given_up_while_no_new_one_can_be_opened() {
    let server = durable_redis().await;
    let address = Proxy::start(server.address()).await;
    let replica = Replica::open(&address.database(0)).await;
    replica.granted(&lasting(claim())).await;
    address.refuse(true);
    eventually("it is not granted any more", async || {
        replica.acquire(&lasting(claim())).await.err()
    })
    .await;
    address.refuse(false);
    eventually("it is granted again", async || {
        let answer = replica.acquire(&lasting(claim())).await.ok()?;
        (answer.kind() == Some(GrantKind::New)).then_some(())
    })
    .await;
}
