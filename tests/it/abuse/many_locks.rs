//! Claims on as many locks as a claim may be on: small requests for much work and large answers.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::{Attacked, MIB, connect, size};
use crate::support::eventually_within;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::waiters::http1::{Connection, Request};

const NAMES: usize = 64;

fn names(of: &str) -> Vec<String> {
    (0..NAMES).map(|number| format!("{of}/{number}")).collect()
}

fn several(body: &str) -> Request<'_> {
    Request {
        method: "POST",
        path: "/locks",
        token: None,
        body,
    }
}

async fn attacked(redis: &RedisServer, arguments: &[&str]) -> Attacked {
    let store = format!("redis://{}", redis.address());
    Attacked::start(&[&["--store", &store], arguments].concat()).await
}

/// The answer to 651 bytes once had 26 MiB, and 40 of them that nobody read took more than a gigabyte.
#[tokio::test]
async fn a_refused_claim_on_many_shared_locks_is_told_little() {
    const READERS: usize = 100;
    const UNREAD: usize = 40;
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let attacked = attacked(&redis, &[]).await;
    let mut client = Connection::open(attacked.address).await.unwrap();
    let text = "x".repeat(4_000);
    let reads = json!({
        "names": names("shared"), "mode": "shared", "ttl": "10m", "metadata": {"text": text},
    });
    for _ in 0..READERS {
        let read = client.ask(several(&reads.to_string())).await.unwrap();
        assert_eq!(read.status, 201);
    }
    let bystander = attacked.bystander().await;
    let alone = json!({"names": names("shared")}).to_string();
    let refused = client.ask(several(&alone)).await.unwrap();
    assert_eq!(refused.status, 423);
    assert!(refused.body.len() < MIB / 4, "{} bytes", refused.body.len());
    let blocked_by = &refused.json()["blocked_by"];
    assert_eq!(blocked_by.as_array().map(Vec::len), Some(NAMES));
    for lock in blocked_by.as_array().unwrap() {
        assert_eq!(lock["holders_total"], READERS, "{}", lock["name"]);
    }
    let before = attacked.memory();
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        let mut stream = connect(attacked.address).await;
        let length = alone.len();
        let request = format!(
            "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{alone}"
        );
        stream
            .write_all(request.repeat(5).as_bytes())
            .await
            .unwrap();
        unread.push(stream);
    }
    bystander.noticed_nothing().await;
    let grown = attacked.memory().saturating_sub(before);
    assert!(grown < 96 * MIB, "{} MiB", grown / MIB);
    drop(unread);
    attacked.judge_memory().await;
}

/// Two thousand of them once made everybody else wait for seconds.
#[tokio::test]
async fn a_claim_that_waits_for_many_locks_takes_as_many_places() {
    // In full size, as many as the default permits one peer.
    let (waiting_max, asking) = (size(20, 390), size(200, 2_000));
    let places = (2 * waiting_max * NAMES).to_string();
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    // A machine that is busy takes long for each, and none is to be refused for that.
    let arguments = [
        "--waiting-waiters-max",
        &places,
        "--operation-timeout",
        "20s",
        "--server-connections-max",
        "5000",
    ];
    let attacked = attacked(&redis, &arguments).await;
    let mut holder = Connection::open(attacked.address).await.unwrap();
    let held = json!({"names": names("wanted"), "ttl": "10m"}).to_string();
    assert_eq!(holder.ask(several(&held)).await.unwrap().status, 201);
    let bystander = attacked.bystander().await;
    let wanted = json!({"names": names("wanted"), "wait": "50s"}).to_string();
    let mut waiting = Vec::new();
    for _ in 0..asking {
        let mut client = Connection::open(attacked.address).await.unwrap();
        client.send(several(&wanted)).await.unwrap();
        waiting.push(client);
    }
    let refused = (asking - waiting_max) as f64;
    eventually_within(
        Duration::from_secs(30),
        "the others are refused",
        async || {
            let counted = attacked.refused("waiters_per_peer").await;
            (counted >= refused).then_some(())
        },
    )
    .await;
    let (_, lock) = super::ask(attacked.address, "GET", "/locks/wanted/0", "")
        .await
        .unwrap();
    let lock: Value = serde_json::from_str(&lock).unwrap();
    assert!(
        lock["queue_length"].as_u64() <= Some(waiting_max as u64),
        "{lock}"
    );
    bystander.noticed_nothing().await;
    drop(waiting);
    attacked.judge_memory().await;
}
