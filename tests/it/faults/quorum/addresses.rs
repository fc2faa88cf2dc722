//! Nodes of other kinds: behind TLS, and the primaries that Sentinels name.

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::{QuorumNode, RedisConfig};
use leasehold::domain::Claim;

use super::{keep, next_fence};
use crate::faults::{Replica, lasting, lasting_for};
use crate::support::certificates::Authority;
use crate::support::fixture::{claim, rival};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::sentinels::WatchedPair;
use crate::support::{eventually, stores};

/// Longer than a failover takes, and short enough for the test to wait for it.
const TTL: Duration = Duration::from_secs(8);

async fn process(nodes: &[QuorumNode], config: &RedisConfig) -> Replica {
    Replica::on(Arc::new(stores::quorum_of(nodes, config).await))
}

/// Waits until all nodes vote, and renews the leases meanwhile.
async fn all_vote(replica: &Replica, held: &[&Claim]) {
    eventually("all nodes vote", async || {
        for held in held {
            keep(replica, held).await;
        }
        let nodes = replica.service.store_health().nodes;
        nodes.iter().all(|node| node.votes).then_some(())
    })
    .await;
}

/// Of the three nodes one has no TLS.
#[tokio::test]
async fn nodes_may_be_encrypted() {
    let authority = Authority::new();
    let encrypted = RedisOptions {
        tls: Some(authority.files_for("127.0.0.1")),
        ..RedisOptions::default()
    };
    let mut servers = [
        RedisServer::start(encrypted.clone()).await,
        RedisServer::start(encrypted).await,
        RedisServer::start(RedisOptions::default()).await,
    ];
    let nodes = [
        servers[0].encrypted_database(0),
        servers[1].encrypted_database(0),
        servers[2].database(0),
    ]
    .map(QuorumNode::Redis);
    let config = RedisConfig {
        tls: authority.trusted(),
        ..stores::redis_config()
    };
    let [holder, other] = [
        process(&nodes, &config).await,
        process(&nodes, &config).await,
    ];
    for replica in [&holder, &other] {
        all_vote(replica, &[]).await;
    }
    crate::faults::assert_hands_over(&holder, &other).await;
    // A majority of nodes with TLS.
    servers[2].kill();
    next_fence(&holder, &lasting(claim())).await;
}

/// What the failover loses is lost at one node alone.
#[tokio::test]
async fn a_node_may_be_the_primary_that_sentinels_name() {
    let mut pair = WatchedPair::start(RedisOptions::forgetful()).await;
    let others = [
        RedisServer::start(RedisOptions::forgetful()).await,
        RedisServer::start(RedisOptions::forgetful()).await,
    ];
    let nodes = [
        QuorumNode::Sentinel(pair.sentinels.database(0)),
        QuorumNode::Redis(others[0].database(0)),
        QuorumNode::Redis(others[1].database(0)),
    ];
    let replica = process(&nodes, &stores::redis_config()).await;
    all_vote(&replica, &[]).await;
    pair.separate().await;
    let [held, contended] = [claim(), claim()].map(|claim| lasting_for(TTL, claim));
    replica.granted(&held).await;
    let before = next_fence(&replica, &contended).await;
    pair.primary.kill();
    let during = next_fence(&replica, &lasting_for(TTL, rival(&contended))).await;
    pair.is_promoted().await;
    // The new primary waits for what it may have forgotten.
    all_vote(&replica, &[&held]).await;
    let after = next_fence(&replica, &lasting_for(TTL, rival(&contended))).await;
    assert!(before < during && during < after);
    keep(&replica, &held).await;
}
