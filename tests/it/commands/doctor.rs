//! `doctor`. The directory of a `file:` store has `directories`, the rights of a Redis user `rights`.

mod directories;
mod rights;

use std::fs;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::process::{Serving, leasehold};
use crate::run::assert_code;
use crate::support::cluster::RedisCluster;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::sentinels::Sentinels;

fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let arguments = [&["doctor", "--json"], arguments].concat();
    let mut command = leasehold(&arguments);
    command.envs(variables.iter().copied()).output().unwrap()
}

/// The status and the finding of each check.
fn findings(output: &Output) -> Vec<(String, String, String)> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    lines
        .map(|line| {
            (
                text(&line, "check"),
                text(&line, "status"),
                text(&line, "finding"),
            )
        })
        .collect()
}

#[track_caller]
fn assert_found(output: &Output, check: &str, status: &str, part: &str) {
    let found = findings(output);
    let is_it = |(of, is, text): &(String, String, String)| {
        (of.as_str(), is.as_str()) == (check, status) && text.contains(part)
    };
    assert!(
        found.iter().any(is_it),
        "{check} {status} {part}: {found:#?}"
    );
}

#[tokio::test]
async fn a_suitable_redis_has_nothing_to_improve() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let store = format!("redis://{}", server.address());
    let examined = doctor(&["--store", &store], &[]);
    assert_code(&examined, 0);
    for (check, part) in [
        ("configuration", "valid"),
        ("store", "answers"),
        ("version", "redis"),
        ("maxmemory-policy", "noeviction"),
        ("persistence", "append-only"),
        ("clock", "ms"),
        ("rights", "could be acquired"),
        ("latency", "ms"),
        ("locks", "0 locks are held"),
    ] {
        assert_found(&examined, check, "ok", part);
    }
    // Its lock does not lengthen what new grants would wait after a loss.
    let longest_ttl = server.command(&["GET", "lh:1:{0}:ttl"]).await;
    assert_eq!(longest_ttl, redis::Value::BulkString(b"3000".to_vec()));
    let mut command = leasehold(&["doctor", "--store", &store]);
    let table = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(table.starts_with("STATUS  CHECK"), "{table}");
}

#[tokio::test]
async fn what_is_wrong_with_a_redis_is_said_with_its_remedy() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let store = format!("redis://{}", server.address());
    server
        .command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    let refused = doctor(&["--store", &store], &[]);
    assert_code(&refused, 78);
    assert_found(&refused, "store", "error", "set it to noeviction");
    server
        .command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
        .await;
    let rights = "ACL SETUSER few reset on >pass ~lh:1:* &* +@all -publish -evalsha -eval";
    server.command(&rights.split(' ').collect::<Vec<_>>()).await;
    let user = format!("redis://few:pass@{}", server.address());
    let lacking = doctor(&["--store", &user], &[]);
    assert_code(&lacking, 78);
    assert_found(&lacking, "store", "error", "may not run evalsha");
    // Only a claim that waits needs it.
    let rights = "ACL SETUSER few reset on >pass ~lh:1:* &* +@all -pexpire";
    server.command(&rights.split(' ').collect::<Vec<_>>()).await;
    let lacking = doctor(&["--store", &user], &[]);
    assert_code(&lacking, 78);
    assert_found(&lacking, "store", "error", "may not run pexpire");
    // Only an eviction needs it, or only a look at a queue.
    for right in ["hdel", "zcard"] {
        let rights = format!("ACL SETUSER few reset on >pass ~lh:1:* &* +@all -{right}");
        server.command(&rights.split(' ').collect::<Vec<_>>()).await;
        let lacking = doctor(&["--store", &user], &[]);
        assert_code(&lacking, 78);
        let text = format!("may not run {right};");
        assert_found(&lacking, "store", "error", &text);
    }
    // Only messages need it.
    for right in ["subscribe", "publish"] {
        let rights = format!("ACL SETUSER few reset on >pass ~lh:1:* &* +@all -{right}");
        server.command(&rights.split(' ').collect::<Vec<_>>()).await;
        let lacking = doctor(&["--store", &user], &[]);
        assert_code(&lacking, 1);
        let words = format!("may not {right} on the channels");
        assert_found(&lacking, "channels", "warning", &words);
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;
    let full = doctor(&["--store", &store], &[]);
    assert_code(&full, 69);
    assert_found(&full, "store", "error", "it has no room for more data (");
    let silent = doctor(&["--store", "redis://127.0.0.1:1"], &[]);
    assert_code(&silent, 69);
    let words =
        "redis://127.0.0.1:1/0: nothing listens there; start Redis, or correct the store's URL";
    assert_found(&silent, "store", "error", words);
}

/// Nothing depends on messages, but what they would have hastened comes late.
#[tokio::test]
async fn a_redis_that_delivers_no_messages_is_a_warning() {
    let options = RedisOptions {
        without: &["SUBSCRIBE"],
        ..RedisOptions::default()
    };
    let server = RedisServer::start(options).await;
    let store = format!("redis://{}", server.address());
    let examined = doctor(&["--store", &store], &[]);
    assert_code(&examined, 1);
    let words = "no messages could be received within operation_timeout";
    assert_found(&examined, "messages", "warning", words);
}

/// As a server says it that is started with the same settings.
#[tokio::test]
async fn a_store_of_another_kind_is_a_wrong_configuration() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let cluster = format!("redis+cluster://{}", server.address());
    let examined = doctor(&["--store", &cluster], &[]);
    assert_code(&examined, 78);
    let found = findings(&examined);
    let text = &found.iter().find(|it| it.0 == "store").unwrap().2;
    let words = "it is no node of a Redis Cluster; write redis://";
    assert!(text.contains(words), "{text}");
    assert!(!text.contains("write redis+cluster://"), "{text}");
    let port = server.port().to_string();
    let replica = RedisServer::start(RedisOptions::default()).await;
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).await;
    let store = format!("redis://{}", replica.address());
    let examined = doctor(&["--store", &store], &[]);
    assert_code(&examined, 78);
    assert_found(
        &examined,
        "store",
        "error",
        "point LEASEHOLD_STORE at the primary",
    );
}

/// A node whose clock is off votes like any other, and a process with such a node is ready.
#[tokio::test]
async fn a_clock_that_is_off_is_a_warning_and_the_service_is_ready() {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let options = RedisOptions {
            has_movable_clock: true,
            ..RedisOptions::default()
        };
        nodes.push(RedisServer::start(options).await);
    }
    nodes[1].move_clock(Duration::from_secs(10)).await;
    let [first, off, last] = [0, 1, 2].map(|number| format!("redis://{}", nodes[number].address()));
    let quorum = format!("quorum:{first},{off},{last}");
    // In another database, because the quorum is a new one only if its nodes are empty.
    let alone = format!("{off}/1");
    for (store, is_quorum) in [(&alone, false), (&quorum, true)] {
        let serving = Serving::start(&["--store", store]);
        let examined = doctor(&["--store", store, "--url", &serving.url], &[]);
        assert_code(&examined, 1);
        for prefix in ["", "service, "] {
            let of = |check| format!("{prefix}{check}");
            assert_found(&examined, &of("clock"), "warning", "in step by NTP");
            if is_quorum {
                assert_found(&examined, &of("quorum"), "ok", "3 of 3 nodes vote");
                assert_found(&examined, &of("node"), "ok", "ms ahead");
            }
        }
        let found = findings(&examined);
        let worse: Vec<_> = found.iter().filter(|it| it.1 != "ok").collect();
        assert!(worse.iter().all(|it| it.0.ends_with("clock")), "{worse:?}");
    }
}

/// Without a command to authenticate it, it would be the user `default`.
#[tokio::test]
async fn a_user_who_needs_no_password_is_the_user_of_the_store() {
    let server = RedisServer::start(RedisOptions::default()).await;
    let user = "ACL SETUSER plain reset on nopass ~lh:1:* &* +@all";
    server.command(&user.split(' ').collect::<Vec<_>>()).await;
    server.command(&["ACL", "SETUSER", "default", "off"]).await;
    let store = format!("redis://plain:@{}", server.address());
    let examined = doctor(&["--store", &store], &[]);
    let shown = format!("redis://plain@{}/0 answers", server.address());
    assert_found(&examined, "store", "ok", &shown);
    assert_code(&examined, 0);
}

#[tokio::test]
async fn every_primary_of_a_cluster_is_checked() {
    let mut cluster = RedisCluster::start(3, RedisOptions::default()).await;
    let store = format!("redis+cluster://{}", cluster.nodes[0].address());
    let examined = doctor(&["--store", &store], &[]);
    assert_code(&examined, 0);
    for node in &cluster.nodes {
        assert_found(&examined, "node", "ok", &node.address());
    }
    assert_found(&examined, "rights", "ok", "in each part of the cluster");
    assert_found(&examined, "locks", "ok", "0 locks are held");

    let place = cluster.nodes[1].address();
    let policy = |policy| ["CONFIG", "SET", "maxmemory-policy", policy];
    cluster.nodes[1].command(&policy("allkeys-lru")).await;
    let refused = doctor(&["--store", &store], &[]);
    assert_code(&refused, 78);
    assert_found(&refused, "store", "error", &format!("{place}: "));
    cluster.nodes[1].command(&policy("noeviction")).await;

    let place = cluster.nodes[2].address();
    cluster.nodes[2].kill();
    let lacking = doctor(&["--store", &store], &[]);
    assert_code(&lacking, 69);
    assert_found(&lacking, "node", "warning", &place);
    assert_found(&lacking, "store", "error", "");
}

/// The nodes serve all other slots, so the cluster is not down.
#[tokio::test]
async fn slots_of_a_cluster_without_a_primary_are_found() {
    let cluster = RedisCluster::start(3, RedisOptions::default()).await;
    cluster.needs_no_full_coverage().await;
    for node in &cluster.nodes {
        let words = ["CLUSTER", "DELSLOTSRANGE", "0", "500"];
        node.command(&words).await;
    }
    let store = format!("redis+cluster://{}", cluster.nodes[0].address());
    let examined = doctor(&["--store", &store], &[]);
    assert_code(&examined, 69);
    let words = "no primary of the cluster has the slots of some locks (";
    assert_found(&examined, "store", "error", words);
    assert_found(
        &examined,
        "slots",
        "warning",
        "of the locks have no primary",
    );
}

#[tokio::test]
async fn a_sentinel_that_is_silent_is_named() {
    let redis = RedisServer::start(RedisOptions::default()).await;
    let mut sentinels = Sentinels::watch(redis.port(), 3, None).await;
    let address = sentinels.database(0);
    let places = address.sentinels.iter();
    let places: Vec<_> = places
        .map(|(host, port)| format!("{host}:{port}"))
        .collect();
    let store = format!(
        "redis+sentinel://{}/{}/0",
        places.join(","),
        address.primary
    );
    let examined = doctor(&["--store", &store], &[]);
    assert_code(&examined, 0);
    assert_found(&examined, "sentinels", "ok", &redis.address());
    sentinels.kill(1);
    let lacking = doctor(&["--store", &store], &[]);
    assert_code(&lacking, 1);
    assert_found(
        &lacking,
        "sentinels",
        "warning",
        &format!("{} does not answer", places[1]),
    );
}

#[test]
fn an_invalid_configuration_is_a_finding() {
    let examined = doctor(&["--operation-timeout", "2"], &[]);
    assert_code(&examined, 78);
    assert_found(&examined, "configuration", "error", "operation_timeout");
    let hinted = doctor(&[], &[("REDIS_URL", "redis://cache")]);
    assert_code(&hinted, 1);
    assert_found(&hinted, "configuration", "warning", "LEASEHOLD_STORE");
}

#[test]
fn the_running_service_is_asked_if_a_flag_or_the_environment_names_one() {
    let serving = Serving::start(&[]);
    for examined in [
        doctor(&[], &[("LEASEHOLD_URL", &serving.url)]),
        doctor(&["--url", &serving.url], &[]),
    ] {
        assert_code(&examined, 0);
        assert_found(&examined, "service", "ok", env!("CARGO_PKG_VERSION"));
        assert_found(&examined, "key", "ok", "needs none");
        // Nobody has configured a store here, and that service has its own.
        let found = findings(&examined);
        assert!(
            found.iter().all(|(check, ..)| check != "store"),
            "{found:?}"
        );
    }
    let store = doctor(&["--url", &serving.url, "--store", "memory:"], &[]);
    assert_found(&store, "store", "ok", "memory:");
    let unready = Serving::start(&["--store", "redis://127.0.0.1:1"]);
    let examined = doctor(&[], &[("LEASEHOLD_URL", &unready.url)]);
    assert_code(&examined, 69);
    assert_found(&examined, "ready", "error", "not ready");
    let absent = doctor(&[], &[("LEASEHOLD_URL", "http://127.0.0.1:1")]);
    assert_code(&absent, 69);
    assert_found(&absent, "service", "error", "cannot connect");
}

/// The flag names the key of the server, which is that of its clients too.
#[test]
fn the_running_service_is_asked_with_the_key_of_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    let key = key.to_str().unwrap();
    let serving = Serving::start(&["--api-key-file", key]);
    let examined = doctor(&["--url", &serving.url, "--api-key-file", key], &[]);
    assert_code(&examined, 0);
    assert_found(&examined, "key", "ok", "may be used with this key");
    let without = doctor(&["--url", &serving.url], &[]);
    assert_code(&without, 78);
    assert_found(&without, "service", "error", "LEASEHOLD_API_KEY_FILE");
}
