//! TLS, a password and a user with few rights on all nodes of a cluster.

use std::sync::{Arc, Mutex};

use leasehold::config::{ClusterAddress, RedisConfig, Secret};
use leasehold::store::LockStore;
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use super::{config, held_on, is_renewed, lasting, locks_on, replica};
use crate::contract;
use crate::faults::rights::{PASSWORD, RIGHTS, USER};
use crate::faults::{Replica, assert_hands_over};
use crate::support::certificates::Authority;
use crate::support::cluster::{BorrowedCluster, RedisCluster};
use crate::support::eventually;
use crate::support::fixture::{Fixture, claim, claim_on, claim_on_all, names};
use crate::support::redis_server::RedisOptions;
use crate::support::stores;

/// How many contract tests run at the same time, each on a cluster.
const AT_ONCE: usize = 4;

/// What the contract tests are about that need several nodes, or rights that few others need: words in their names.
const ACROSS_NODES: [&str; 7] = [
    "several", "locks", "event", "page", "listing", "evict", "waiter",
];

/// The rights that a cluster needs beside those of every Redis.
const RIGHTS_ON_CLUSTER: &str = "&lh:1:* +cluster|nodes +asking";

async fn grant(cluster: &RedisCluster) {
    let rights = RIGHTS.split_whitespace();
    let rights = rights.chain(RIGHTS_ON_CLUSTER.split_whitespace());
    let command: Vec<_> = ["ACL", "SETUSER", USER].into_iter().chain(rights).collect();
    for node in &cluster.nodes {
        node.command(&command).await;
    }
}

/// What the nodes have refused.
async fn refusals(cluster: &RedisCluster) -> Vec<redis::Value> {
    let mut refusals = Vec::new();
    for node in &cluster.nodes {
        let log: Vec<redis::Value> =
            redis::from_redis_value(node.command(&["ACL", "LOG"]).await).expect("a list");
        refusals.extend(log);
    }
    refusals
}

fn as_user() -> RedisConfig {
    RedisConfig {
        username: Some(USER.to_owned()),
        password: Some(Secret::new(PASSWORD)),
        ..config()
    }
}

#[tokio::test]
async fn nodes_are_reached_over_tls_with_a_password() {
    let authority = Authority::new();
    let options = RedisOptions {
        tls: Some(authority.files_for("127.0.0.1")),
        ..RedisOptions::forgetful()
    };
    let cluster = RedisCluster::start(3, options).await;
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "requirepass", "secret"])
            .await;
    }
    let config = RedisConfig {
        password: Some(Secret::new("secret")),
        tls: authority.trusted(),
        ..config()
    };
    let open = async || {
        let store = stores::cluster_store(&cluster.encrypted_address(), &config).await;
        Replica::on(store.expect("the store opens"))
    };
    let [holder, other] = [open().await, open().await];
    for _ in 0..3 {
        assert_hands_over(&holder, &other).await;
    }
    let findings = other.service.store_health().findings;
    assert!(findings.iter().all(|found| found.is_fine), "{findings:?}");
    let plain = ClusterAddress {
        is_encrypted: false,
        ..cluster.encrypted_address()
    };
    let refusal = stores::cluster_store(&plain, &config).await.err();
    let error = refusal.expect("it is refused");
    assert!(error.detail().contains("expects TLS"), "{error}");
}

#[tokio::test]
async fn connections_that_were_closed_while_they_were_idle_say_nothing_about_the_nodes() {
    let cluster = super::cluster().await;
    let store = super::open(&cluster.address()).await.expect("it opens");
    for closed in [&[0][..], &[1], &[2], &[0, 1, 2]] {
        store.refresh_health().await;
        for number in closed {
            let kill = ["CLIENT", "KILL", "TYPE", "normal"];
            cluster.nodes[*number].command(&kill).await;
        }
        store.refresh_health().await;
        let health = store.health();
        assert_eq!(health.trouble, None);
        let nodes = health.findings.iter().filter(|it| it.topic == "node");
        let unwell: Vec<_> = nodes.filter(|it| !it.is_fine).collect();
        assert!(unwell.is_empty(), "{closed:?}: {unwell:?}");
    }
}

/// Its connections stay open, so only new ones show it.
#[tokio::test]
async fn a_user_who_is_switched_off_is_noticed_before_a_connection_breaks() {
    let cluster = super::cluster().await;
    grant(&cluster).await;
    let store = stores::cluster_store(&cluster.address(), &as_user()).await;
    let replica = Replica::on(store.expect("the store opens"));
    let held = lasting(claim());
    replica.granted(&held).await;
    let switch = async |to: &str| {
        for node in &cluster.nodes {
            node.command(&["ACL", "SETUSER", USER, to]).await;
        }
    };
    switch("off").await;
    let why = eventually("it is noticed", async || {
        replica.service.store_health().trouble
    })
    .await;
    assert!(why.contains("refuses the user or the password"), "{why}");
    assert!(replica.acquire(&lasting(claim())).await.is_err());
    switch("on").await;
    eventually("it works again", async || replica.renew(&held).await.ok()).await;
}

#[tokio::test]
async fn one_primary_that_refuses_the_process_is_named_and_the_others_go_on() {
    const REFUSED: &str = "it refuses the user or the password";
    let cluster = super::cluster().await;
    let locks = locks_on([0, 1, 2], &cluster, &replica(&cluster).await).await;
    let [well, of_refusing, also_well] = locks.map(|lock| lasting(claim_on(&lock)));
    grant(&cluster).await;
    let open = async || stores::cluster_store(&cluster.address(), &as_user()).await;
    let store = open().await.expect("the store opens");
    store.refresh_health().await;
    let refusing = &cluster.nodes[1];
    let switch = async |to: &str| refusing.command(&["ACL", "SETUSER", USER, to]).await;
    switch("off").await;
    refusing.command(&["CLIENT", "KILL", "USER", USER]).await;
    store.refresh_health().await;
    let health = store.health();
    assert_eq!(health.trouble, None);
    let unwell = health
        .findings
        .iter()
        .filter(|it| it.topic == "node" && !it.is_fine);
    let unwell: Vec<_> = unwell.map(|it| it.detail.as_str()).collect();
    let is_named = |it: &str| it.starts_with(&refusing.address()) && it.contains(REFUSED);
    assert!(unwell.len() == 1 && is_named(unwell[0]), "{unwell:?}");
    let replica = Replica::on(store);
    for claim in [&well, &also_well] {
        replica.granted(claim).await;
    }
    let answer = replica.acquire(&of_refusing).await;
    assert!(answer.is_err(), "{answer:?}");

    // A process that starts can still end with an exit code that says so.
    let refusal = open().await.err();
    let refusal = refusal.expect("it is refused");
    assert!(is_named(refusal.detail()), "{refusal}");
    switch("on").await;
    eventually("it grants again", async || {
        replica.acquire(&of_refusing).await.ok()?.kind()
    })
    .await;
}

#[tokio::test]
async fn every_primary_at_which_a_right_to_channels_is_missing_is_named() {
    let cluster = super::cluster().await;
    grant(&cluster).await;
    let store = stores::cluster_store(&cluster.address(), &as_user()).await;
    let store = store.expect("the store opens");
    let set_right = async |numbers: &[usize], right: &str| {
        for number in numbers {
            let node = &cluster.nodes[*number];
            node.command(&["ACL", "SETUSER", USER, right]).await;
        }
        store.refresh_health().await;
    };
    for (right, at) in [
        ("publish", &[1][..]),
        ("publish", &[0, 2]),
        ("publish", &[0, 1, 2]),
        ("pubsub|numsub", &[1]),
        ("pubsub|numsub", &[0, 2]),
    ] {
        set_right(at, &format!("-{right}")).await;
        let unfit = unfit_channels(&*store);
        let [detail] = &unfit[..] else {
            panic!("one finding for {right} at {at:?}, not {unfit:?}");
        };
        for (number, node) in cluster.nodes.iter().enumerate() {
            let is_named = detail.contains(&node.address());
            assert_eq!(
                is_named,
                at.contains(&number),
                "{right} at {at:?}: {detail}"
            );
        }
        set_right(at, &format!("+{right}")).await;
        let unfit = unfit_channels(&*store);
        assert!(unfit.is_empty(), "{right} at {at:?}: {unfit:?}");
    }
}

/// What is wrong with the channels.
fn unfit_channels(store: &dyn LockStore) -> Vec<String> {
    let findings = store.health().findings.into_iter();
    let unfit = findings.filter(|it| it.topic == "channels" && !it.is_fine);
    unfit.map(|it| it.detail).collect()
}

#[tokio::test]
async fn a_user_with_the_rights_of_the_guide_keeps_the_contract() {
    let is_across = |name: &str| ACROSS_NODES.iter().any(|word| name.contains(word));
    let tests = contract::all().into_iter();
    let tests: Vec<_> = tests.filter(|(name, _)| is_across(name)).collect();
    assert!(tests.len() > 50, "only {} tests", tests.len());
    let tests = Arc::new(Mutex::new(tests.into_iter()));
    let run = move || {
        let next = || tests.lock().expect("no test panics here").next();
        while let Some((name, test)) = next() {
            let mut runtime = Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let borrowed = BorrowedCluster::new().await.with_user(USER, PASSWORD);
                grant(borrowed.cluster()).await;
                test(&Fixture::on_cluster(borrowed.clone()).await).await;
                let refusals = refusals(borrowed.cluster()).await;
                assert!(refusals.is_empty(), "{name}: {refusals:?}");
            });
        }
    };
    let threads: Vec<_> = (0..AT_ONCE).map(|_| spawn_blocking(run.clone())).collect();
    for thread in threads {
        thread.await.expect("all tests pass");
    }
}

#[tokio::test]
async fn a_user_with_the_rights_of_the_guide_follows_a_slot_that_moves() {
    let cluster = super::cluster().await;
    grant(&cluster).await;
    let store = stores::cluster_store(&cluster.address(), &as_user()).await;
    let store = store.expect("the store opens");
    store.refresh_health().await;
    let own = Replica::on(store);
    let (held, slot) = held_on(0, &cluster, &own).await;
    cluster.begin_move(slot, 0, 1).await;
    is_renewed(&own, &held).await;
    cluster.move_keys(slot, 0, 1).await;
    // This one asks the other node for the keys (`ASKING`).
    is_renewed(&own, &held).await;
    cluster.end_move(slot, 0, 1).await;
    is_renewed(&own, &held).await;
    let all = locks_on([0, 1, 2], &cluster, &replica(&cluster).await).await;
    let several = own.acquire(&lasting(claim_on_all(names(&all)))).await;
    assert!(
        several.as_ref().is_ok_and(|it| it.kind().is_some()),
        "{several:?}"
    );
    let refusals = refusals(&cluster).await;
    assert!(refusals.is_empty(), "{refusals:?}");
}
