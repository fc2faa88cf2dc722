//! A quorum of three Redis: nodes that are killed, silent, slow or empty. Without a minority all goes on, and without a
//! majority nothing is granted. How each kind of failure is survived, whichever nodes it strikes, is in `minorities`.

mod addresses;
mod changes;
mod evictions;
mod listing;
mod long_runs;
mod minorities;

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::RedisAddress;
use leasehold::domain::{Claim, Refused, Renewed};
use leasehold::service::AcquireOutcome;
use leasehold::store::quorum::QuorumStore;
use leasehold::store::{LockStore, StoreError};
use tokio::time::Instant;

use super::{Replica, lasting, lasting_for};
use crate::support::fixture::{claim, rival};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, stores};

/// Longer than the steps of a test take, and short enough for the test to wait for it.
const TTL: Duration = Duration::from_secs(6);

async fn servers(options: RedisOptions) -> [RedisServer; 3] {
    [
        RedisServer::start(options.clone()).await,
        RedisServer::start(options.clone()).await,
        RedisServer::start(options).await,
    ]
}

fn addresses(servers: &[RedisServer]) -> Vec<RedisAddress> {
    servers.iter().map(|server| server.database(0)).collect()
}

/// A process on these nodes.
async fn process(nodes: &[RedisAddress]) -> (Replica, Arc<QuorumStore>) {
    let store = Arc::new(stores::quorum_store(nodes).await);
    (Replica::on(Arc::clone(&store) as _), store)
}

fn is_granted(answer: &Result<AcquireOutcome, StoreError>) -> bool {
    matches!(answer, Ok(AcquireOutcome::Granted(_)))
}

/// The token of a claim that is granted sooner or later, and released again.
async fn next_fence(replica: &Replica, claim: &Claim) -> u64 {
    let fence = eventually("it is granted", async || {
        match replica.acquire(claim).await {
            Ok(AcquireOutcome::Granted(granted)) => Some(granted.leases[0].holder.fence.get()),
            _ => None,
        }
    })
    .await;
    eventually("it is released", async || replica.release(claim).await.ok()).await;
    fence
}

/// Renews the lease. A renewal may fail while nodes fail, but never says that the lease is lost.
async fn keep(replica: &Replica, held: &Claim) {
    eventually("the lease is renewed", async || {
        match replica.renew(held).await {
            Ok(Renewed::Extended(_)) => Some(()),
            Ok(other) => panic!("it holds, but: {other:?}"),
            Err(_) => None,
        }
    })
    .await;
}

#[tokio::test]
async fn locks_are_granted_with_growing_tokens_whichever_node_is_down_or_silent() {
    let mut servers = servers(RedisOptions::default()).await;
    let (replica, _) = process(&addresses(&servers)).await;
    let (held, contended) = (lasting(claim()), lasting(claim()));
    replica.granted(&held).await;
    let mut last = 0;
    for number in [0, 1, 2] {
        for is_silent in [false, true] {
            match is_silent {
                true => servers[number].pause(),
                false => servers[number].kill(),
            }
            for _ in 0..3 {
                let fence = next_fence(&replica, &rival(&contended)).await;
                assert!(last < fence, "{last} then {fence} without node {number}");
                last = fence;
                assert!(!is_granted(&replica.acquire(&rival(&held)).await));
            }
            match is_silent {
                true => servers[number].resume(),
                false => servers[number].restart().await,
            }
            // The next one is taken away only when this one votes again.
            eventually("all nodes vote", async || {
                let nodes = replica.service.store_health().nodes;
                nodes.iter().all(|node| node.votes).then_some(())
            })
            .await;
        }
    }
    replica.assert_holds(&held).await;
}

#[tokio::test]
async fn nothing_is_granted_without_a_majority_and_all_goes_on_with_it() {
    let mut servers = servers(RedisOptions::default()).await;
    let (replica, _) = process(&addresses(&servers)).await;
    let (held, refused) = (lasting(claim()), lasting(claim()));
    replica.granted(&held).await;
    servers[0].kill();
    servers[2].kill();
    for _ in 0..3 {
        let answer = replica.acquire(&refused).await;
        assert!(answer.is_err(), "two nodes are down, but: {answer:?}");
    }
    eventually("operators can see it", async || {
        let health = replica.service.store_health();
        let trouble = health.trouble.filter(|_| !health.up)?;
        trouble.starts_with("too few nodes vote: ").then_some(())
    })
    .await;
    for number in [0, 2] {
        servers[number].restart().await;
    }
    keep(&replica, &held).await;
    next_fence(&replica, &rival(&refused)).await;
}

/// The lease is at two nodes. One of them loses its data while no process runs that remembers the lease.
#[tokio::test]
async fn an_empty_node_makes_no_second_majority_with_a_process_that_was_just_started() {
    let mut servers = servers(RedisOptions::forgetful()).await;
    let proxy = Proxy::start(servers[2].address()).await;
    let mut without_last = addresses(&servers);
    without_last[2] = proxy.database(0);
    let (replica, store) = process(&without_last).await;
    proxy.refuse(true);
    proxy.cut();
    let held = lasting_for(TTL, claim());
    let granted_at = Instant::now();
    replica.granted(&held).await;
    drop(replica);
    store.close().await;
    drop(store);
    servers[1].kill();
    servers[1].restart().await;

    let (replica, _) = process(&addresses(&servers)).await;
    let rival = lasting(rival(&held));
    while granted_at.elapsed() < TTL {
        let answer = replica.acquire(&rival).await;
        let is_held = granted_at.elapsed() < TTL;
        assert!(!is_held || !is_granted(&answer), "two hold it: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually("the node votes when the lease has ended", async || {
        let nodes = replica.service.store_health().nodes;
        nodes.iter().all(|node| node.votes).then_some(())
    })
    .await;
    next_fence(&replica, &rival).await;
}

#[tokio::test]
async fn a_new_quorum_grants_at_once() {
    let servers = servers(RedisOptions::forgetful()).await;
    let [first, second] = [
        process(&addresses(&servers)).await.0,
        process(&addresses(&servers)).await.0,
    ];
    for replica in [first, second] {
        let answer = replica.acquire(&lasting(claim())).await;
        assert!(is_granted(&answer), "{answer:?}");
    }
}

#[tokio::test]
async fn a_node_that_lost_its_data_has_no_vote_until_its_leases_have_ended() {
    let mut servers = servers(RedisOptions::forgetful()).await;
    let (replica, _) = process(&addresses(&servers)).await;
    let held = lasting_for(TTL, claim());
    replica.granted(&held).await;
    servers[0].kill();
    servers[0].restart().await;
    eventually("it has no vote", async || {
        let nodes = replica.service.store_health().nodes;
        (!nodes[0].votes).then_some(())
    })
    .await;
    let recovering = replica.service.store_health();
    assert_eq!(recovering.recovering_for, None, "the others are enough");
    replica.granted(&lasting(claim())).await;
    // The two others may be slow, and then nobody knows.
    eventually("the lock is reported as held", async || {
        match replica.acquire(&rival(&held)).await {
            Ok(AcquireOutcome::Refused(Refused::Blocked(_))) => Some(()),
            Ok(AcquireOutcome::Refused(Refused::Recovering { .. })) | Err(_) => None,
            other => panic!("it is held, but: {other:?}"),
        }
    })
    .await;
    servers[1].kill();
    let answer = replica.acquire(&lasting(claim())).await;
    let is_refused = matches!(
        answer,
        Err(_) | Ok(AcquireOutcome::Refused(Refused::Recovering { .. }))
    );
    assert!(is_refused, "{answer:?}");
}

#[tokio::test]
async fn nobody_waits_for_a_slow_node() {
    let servers = servers(RedisOptions::forgetful()).await;
    let proxy = Proxy::start(servers[1].address()).await;
    let mut nodes = addresses(&servers);
    nodes[1] = proxy.database(0);
    let (replica, store) = process(&nodes).await;
    proxy.delay_replies(Duration::from_millis(500));
    for _ in 0..3 {
        eventually(
            "a claim is granted before the slow node answers",
            async || {
                let claim = lasting(claim());
                replica.granted(&claim).await;
                let is_behind = store.in_progress() > 0;
                replica.release(&claim).await.expect("it answers");
                is_behind.then_some(())
            },
        )
        .await;
    }
    proxy.delay_replies(Duration::ZERO);
    eventually("the slow node has followed", async || {
        (store.in_progress() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_redis_with_two_names_has_one_vote() {
    let [first, second, _] = servers(RedisOptions::forgetful()).await;
    let alias = RedisAddress {
        host: "localhost".to_owned(),
        ..first.database(0)
    };
    let nodes = [first.database(0), alias, second.database(0)];
    let (replica, _) = process(&nodes).await;
    let voting = async || {
        let nodes = replica.service.store_health().nodes;
        nodes.iter().filter(|node| node.votes).count()
    };
    eventually("two nodes vote", async || {
        (voting().await == 2).then_some(())
    })
    .await;
    replica.granted(&lasting(claim())).await;
    assert_eq!(voting().await, 2);
    let findings = replica.service.store_health().findings;
    let is_said = findings
        .iter()
        .any(|finding| finding.detail.contains("another node of the quorum"));
    assert!(is_said, "{findings:?}");
}
