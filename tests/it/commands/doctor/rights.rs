//! What `doctor` finds of a user who lacks a right, and what its trial leaves behind then.

use std::collections::BTreeSet;
use std::fs;

use redis::Value;

use super::{assert_found, doctor, findings};
use crate::run::assert_code;
use crate::support::cluster::RedisCluster;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// The commands that the scripts call, and those that run them and deliver messages.
fn commands_used() -> BTreeSet<String> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/redis/lua");
    let files = fs::read_dir(directory).unwrap();
    let scripts: String = files
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    let called = scripts.split("call('").skip(1);
    let called = called.filter_map(|after| Some(after.split_once('\'')?.0.to_lowercase()));
    let others = ["eval", "evalsha", "info", "subscribe"];
    called.chain(others.map(str::to_owned)).collect()
}

/// Makes a user who may use all commands but this one, and returns the URL for it.
async fn user_without(server: &RedisServer, command: Option<&str>) -> String {
    let lacking = command.map(|command| format!(" -{command}"));
    let lacking = lacking.unwrap_or_default();
    let user = format!("ACL SETUSER few reset on >pass ~lh:1:* &* +@all{lacking}");
    server.command(&user.split(' ').collect::<Vec<_>>()).await;
    format!("redis://few:pass@{}", server.address())
}

/// A right that only a claim that waits needs would otherwise be missed when the first one does.
#[tokio::test]
async fn a_right_to_any_command_that_is_missing_is_found() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let all = user_without(&server, None).await;
    assert_code(&doctor(&["--store", &all], &[]), 0);
    let used = commands_used();
    assert!(used.len() > 25, "{used:?}");
    let mut unnoticed = Vec::new();
    for command in &used {
        // Some commands are used only once, by the first process of an empty Redis that does not know the scripts.
        server.command(&["FLUSHALL"]).await;
        server.command(&["SCRIPT", "FLUSH"]).await;
        let store = user_without(&server, Some(command)).await;
        let examined = doctor(&["--store", &store], &[]);
        let is_noticed = findings(&examined).iter().any(|(_, status, text)| {
            let text = text.to_lowercase();
            let names_it = text.contains(&format!("may not run {command}"));
            let is_of_channels = text.contains("may not") && !text.contains("may not run");
            status != "ok" && (names_it || is_of_channels)
        });
        if !is_noticed {
            unnoticed.push(command);
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

/// Claims are granted in the shortest way only while nobody wants events. In a cluster, only a check after this process has
/// subscribed shows that nobody does.
#[tokio::test]
async fn a_right_that_only_the_shortest_grant_needs_is_found_in_a_cluster() {
    let cluster = RedisCluster::start(3, RedisOptions::default()).await;
    let store = format!("redis+cluster://few:pass@{}", cluster.nodes[0].address());
    for (lacking, topic, status, text) in [
        (None, "rights", "ok", "in each part of the cluster"),
        (Some("getset"), "store", "error", "may not run getset"),
    ] {
        for node in &cluster.nodes {
            user_without(node, lacking).await;
        }
        let examined = doctor(&["--store", &store], &[]);
        assert_found(&examined, topic, status, text);
    }
}

/// The script that enqueues a claim stops before it gives the queue a TTL.
#[tokio::test]
async fn a_trial_that_is_refused_leaves_no_queue_behind() {
    let server = RedisServer::start(RedisOptions::default()).await;
    // It announces its TTL, which would be refused before anybody waits.
    assert_code(
        &doctor(&["--store", &user_without(&server, None).await], &[]),
        0,
    );
    let store = user_without(&server, Some("pexpire")).await;
    let examined = doctor(&["--store", &store], &[]);
    assert_found(&examined, "store", "error", "may not run pexpire");
    for pattern in ["lh:1:*q:leasehold-doctor/*", "lh:1:*w:*"] {
        let keys = server.command(&["KEYS", pattern]).await;
        assert_eq!(keys, Value::Array(Vec::new()));
    }
}

/// One node lacks what the others have, which each look at the lock waits for.
#[tokio::test]
async fn a_slow_store_is_not_to_be_nearer_if_a_node_that_refuses_writes_explains_it() {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(RedisServer::start(RedisOptions::default()).await);
    }
    let mut urls = Vec::new();
    for node in &nodes {
        urls.push(user_without(node, None).await);
    }
    let store = format!("quorum:{}", urls.join(","));
    assert_code(&doctor(&["--store", &store], &[]), 0);
    user_without(&nodes[2], Some("set")).await;
    let examined = doctor(&["--store", &store], &[]);
    assert_found(&examined, "rights", "warning", "may not run set;");
    assert_found(&examined, "latency", "warning", "an operation takes");
    let advice = "run the server nearer to the store";
    let found = findings(&examined);
    assert!(
        found.iter().all(|(.., text)| !text.contains(advice)),
        "{found:#?}"
    );
}
