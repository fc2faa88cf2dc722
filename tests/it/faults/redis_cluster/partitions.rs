//! A primary that is cut off from the other nodes of its cluster, or from the processes, while all of them run: what it
//! grants meanwhile, and whether anybody is granted that again too early.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::config::RedisConfig;
use leasehold::domain::{Claim, LockName, Refused};
use leasehold::service::AcquireOutcome;
use leasehold::store::Fault;
use redis::Client;
use tokio::time::{Instant, sleep};

use super::{FOR_EVER, config, held_for, is_blocked, is_renewed, lasting, lasting_for, rival};
use crate::faults::Replica;
use crate::support::cluster::RedisCluster;
use crate::support::fixture::{claim, claim_on, lock_of};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{EFFECT_TIMEOUT, eventually, eventually_within, stores};

/// How long nodes wait for each other (`cluster-node-timeout`). On a busy machine they may be silent for half of that, and
/// a replica that takes the place of its primary for no other reason would spoil the test.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than it takes until the replica is the primary.
const TTL: Duration = Duration::from_secs(16);
/// The address from which a node that is cut off reaches the proxies of the others.
const CUT_OFF: &str = "127.0.0.9";
/// How many locks are claimed of the primary while it is cut off, and the pause between two.
const LOCKS: usize = 40;
const PAUSE: Duration = Duration::from_millis(100);

/// Three primaries, each with a replica.
async fn with_replicas() -> RedisCluster {
    let mut cluster = super::cluster().await;
    for primary in 0..3 {
        cluster.replica(primary, RedisOptions::forgetful()).await;
        cluster.nodes[primary].is_confirmed_by(1).await;
    }
    let timeout_ms = NODE_TIMEOUT.as_millis().to_string();
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "cluster-node-timeout", &timeout_ms])
            .await;
    }
    cluster
}

async fn process(cluster: &RedisCluster, config: &RedisConfig) -> Replica {
    let store = stores::cluster_store(&cluster.address(), config).await;
    Replica::on(store.expect("the store opens"))
}

/// The network between the nodes: each reaches the others through a proxy of theirs.
struct Bus {
    proxies: Vec<Proxy>,
}

impl Bus {
    async fn between(cluster: &RedisCluster) -> Self {
        let mut proxies = Vec::new();
        for node in &cluster.nodes {
            let proxy = Proxy::start(format!("127.0.0.1:{}", node.cluster_port())).await;
            let port = proxy.address().port().to_string();
            node.command(&["CONFIG", "SET", "cluster-announce-bus-port", &port])
                .await;
            proxies.push(proxy);
        }
        eventually("every node is reached through its proxy", async || {
            let others = cluster.nodes.len() - 1;
            let mut open = proxies.iter().map(Proxy::open);
            open.all(|open| open >= others).then_some(())
        })
        .await;
        cluster.is_well().await;
        Self { proxies }
    }

    /// Cuts a node off from the others, but not from the processes.
    async fn cut_off(&self, number: usize, cluster: &RedisCluster) {
        let source = ["CONFIG", "SET", "bind-source-addr", CUT_OFF];
        cluster.nodes[number].command(&source).await;
        self.proxies[number].refuse(true);
        for proxy in &self.proxies {
            proxy.refuse_from(Some(CUT_OFF.parse().expect("an address")));
            proxy.cut();
        }
    }

    async fn heal(&self, number: usize, cluster: &RedisCluster) {
        let source = ["CONFIG", "SET", "bind-source-addr", ""];
        cluster.nodes[number].command(&source).await;
        self.proxies[number].refuse(false);
        self.proxies
            .iter()
            .for_each(|proxy| proxy.refuse_from(None));
    }
}

/// Cuts the link over which a replica follows its primary.
pub(super) async fn cut_replication(primary: &RedisServer, replica: &RedisServer) {
    for [option, value] in [["masteruser", "nobody"], ["masterauth", "wrong"]] {
        replica.command(&["CONFIG", "SET", option, value]).await;
    }
    primary
        .command(&["CLIENT", "KILL", "TYPE", "replica"])
        .await;
    eventually("it cannot follow any more", async || {
        let link = replica.info("replication", "master_link_status").await;
        (link == "down").then_some(())
    })
    .await;
}

async fn has_role(node: &RedisServer, role: &str) -> bool {
    node.info("replication", "role").await == role
}

/// What a process is told by a primary that only processes reach, until its replica is promoted.
struct Reported {
    /// The claims that were granted, and when their leases end at the earliest.
    granted: Vec<(Claim, Instant)>,
    /// How many were refused because too few replicas have confirmed them.
    unconfirmed: usize,
}

/// Claims locks of the first primary, one after the other, while it is cut off.
async fn reported(cluster: &RedisCluster, process: &Replica, locks: Vec<LockName>) -> Reported {
    let (mut granted, mut unconfirmed) = (Vec::new(), 0);
    for lock in locks {
        let claim = lasting_for(TTL, claim_on(&lock));
        let sent_at = Instant::now();
        match process.acquire(&claim).await {
            Ok(AcquireOutcome::Granted(_)) => granted.push((claim, sent_at + TTL)),
            Err(error) if error.fault() == Fault::Unreplicated => unconfirmed += 1,
            // The primary has noticed that it is cut off, or the replica has taken its place.
            Ok(_) | Err(_) => {}
        }
        if has_role(&cluster.nodes[3], "master").await {
            break;
        }
        sleep(PAUSE).await;
    }
    eventually("the replica is promoted", async || {
        has_role(&cluster.nodes[3], "master").await.then_some(())
    })
    .await;
    Reported {
        granted,
        unconfirmed,
    }
}

/// Free locks of the first primary. A grace is as long as the longest lease, so they were held for no longer.
async fn locks_of_first(cluster: &RedisCluster, process: &Replica) -> Vec<LockName> {
    let mut locks = Vec::new();
    for _ in 0..LOCKS {
        let (held, _) = held_for(TTL, 0, cluster, process).await;
        process.release(&held).await.expect("it answers");
        locks.push(lock_of(&held).clone());
    }
    locks
}

/// The same with a process that asks nobody but the primaries that it knows.
async fn reported_by_the_cut_off(
    config: RedisConfig,
) -> (RedisCluster, Bus, Reported, [Replica; 2]) {
    let cluster = with_replicas().await;
    let bus = Bus::between(&cluster).await;
    let rarely_checked = RedisConfig {
        check_interval: Duration::from_secs(600),
        ..config.clone()
    };
    let connected = process(&cluster, &rarely_checked).await;
    let elsewhere = process(&cluster, &super::config()).await;
    let locks = locks_of_first(&cluster, &elsewhere).await;
    cut_replication(&cluster.nodes[0], &cluster.nodes[3]).await;
    bus.cut_off(0, &cluster).await;
    let reported = reported(&cluster, &connected, locks).await;
    (cluster, bus, reported, [connected, elsewhere])
}

/// How many of these locks another claim is granted before the lease has ended. All of them wait for a grace as long as a
/// lease, which begins when the process has noticed the promotion.
async fn granted_too_early(granted: &[(Claim, Instant)], process: &Replica) -> usize {
    let granting = granted.iter().map(async |(held, ends_at)| {
        let next = lasting(rival(held));
        eventually_within(TTL + EFFECT_TIMEOUT, "it is granted again", async || {
            let kind = process.acquire(&next).await.ok()?.kind();
            if kind.is_none() {
                // There are many of them, and asking all the time would keep a busy machine from everything else.
                sleep(PAUSE).await;
            }
            kind
        })
        .await;
        usize::from(Instant::now() < *ends_at)
    });
    join_all(granting).await.into_iter().sum()
}

#[tokio::test]
async fn what_a_primary_grants_that_is_cut_off_from_the_others_is_not_granted_again_too_early() {
    let (cluster, bus, reported, [connected, elsewhere]) = reported_by_the_cut_off(config()).await;
    // Otherwise this shows nothing.
    assert!(!reported.granted.is_empty());
    assert_eq!(granted_too_early(&reported.granted, &elsewhere).await, 0);
    println!(
        "{} leases, none granted again too early",
        reported.granted.len()
    );
    bus.heal(0, &cluster).await;
    eventually(
        "it follows the primary that has taken its place",
        async || has_role(&cluster.nodes[0], "slave").await.then_some(()),
    )
    .await;
    let (held, _) = &reported.granted[0];
    eventually(
        "the first process has followed, too",
        async || match connected.acquire(&rival(held)).await {
            Ok(AcquireOutcome::Granted(_)) => panic!("it is held by another claim"),
            Ok(AcquireOutcome::Refused(Refused::Blocked(_))) => Some(()),
            Ok(_) | Err(_) => None,
        },
    )
    .await;
}

#[tokio::test]
async fn a_primary_that_is_cut_off_from_its_replica_and_the_others_reports_nothing() {
    let config = RedisConfig {
        wait_replicas: 1,
        ..config()
    };
    let (_cluster, _bus, reported, _processes) = reported_by_the_cut_off(config).await;
    assert_eq!(reported.granted.len(), 0);
    // Some have reached it, and nothing but the replica was missing.
    assert!(reported.unconfirmed > 0);
    println!("0 of {} claims reported", reported.unconfirmed);
}

/// It is no failure to the other nodes, so nobody takes its place.
#[tokio::test]
async fn a_primary_that_no_process_reaches_keeps_its_locks() {
    // An address of the same machine that no process uses.
    const HIDDEN: &str = "127.0.0.2";
    let cluster = with_replicas().await;
    let process = process(&cluster, &config()).await;
    let (held, _) = held_for(FOR_EVER, 0, &cluster, &process).await;
    let (other, _) = held_for(FOR_EVER, 1, &cluster, &process).await;
    let node = &cluster.nodes[0];
    node.command(&["CONFIG", "SET", "bind", HIDDEN]).await;
    let hidden = Client::open(format!("redis://{HIDDEN}:{}", node.port())).expect("an address");
    let hidden = hidden.get_multiplexed_async_connection().await;
    let mut hidden = hidden.expect("it listens there");
    for kind in ["normal", "pubsub"] {
        let mut kill = redis::cmd("CLIENT");
        kill.arg(&["KILL", "TYPE", kind, "SKIPME", "yes"]);
        kill.exec_async(&mut hidden).await.expect("it answers");
    }
    let until = Instant::now() + NODE_TIMEOUT * 2;
    while Instant::now() < until {
        let taken = process.acquire(&rival(&held)).await;
        assert!(taken.is_err(), "{taken:?}");
        process.assert_holds(&other).await;
        sleep(PAUSE).await;
    }
    assert!(has_role(&cluster.nodes[3], "slave").await);
    let mut bind = redis::cmd("CONFIG");
    bind.arg(&["SET", "bind", "127.0.0.1"]);
    bind.exec_async(&mut hidden).await.expect("it answers");
    is_renewed(&process, &held).await;
    is_blocked(&process, &rival(&held)).await;
    assert!(process.acquire(&claim()).await.is_ok());
}
