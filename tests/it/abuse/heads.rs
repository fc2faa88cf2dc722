//! Heads: as many headers as fit into one, and long ones whose requests wait.

use std::time::Duration;

use tokio::time::timeout;

use super::{Attacked, MIB, ask};
use crate::support::http2::{HEADERS, Http2};
use crate::support::{EFFECT_TIMEOUT, eventually_within};

const CONNECTIONS: usize = 20;
/// Heads longer than a frame, of which a connection may send a few.
const LONG_HEADS: usize = 8;
const REQUESTS: usize = 100;
/// What a request that waits takes over HTTP/2, with room for what the allocator does.
const REQUEST_BYTES: usize = 16 * 1024;
/// Nearly as many headers as a head may have, and as long as may be when a connection sends so many of them at once.
const LONG_HEAD: (usize, usize) = (95, 90);

/// All requests of a test together have taken no more than their room.
fn assert_little(attacked: &Attacked, before: usize) {
    let grown = attacked.memory().saturating_sub(before);
    let bound = CONNECTIONS * REQUESTS * REQUEST_BYTES;
    assert!(grown < bound, "{} MiB", grown / MIB);
}

/// 1,900 headers of one byte fit into 64 KiB as HTTP/2 counts, and become several times as much. They are sent one after the
/// other, because those that are read together are there together for a moment.
#[tokio::test]
async fn heads_of_many_short_headers_take_no_room() {
    let attacked = Attacked::start(&["--server-body-timeout", "10m"]).await;
    let bystander = attacked.bystander().await;
    let before = attacked.memory();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = Http2::open(attacked.address, 65_535).await.unwrap();
        for _ in 0..REQUESTS {
            let asked = client.ask_with_headers("POST", "/locks/a", 1_800, 1);
            asked.await.unwrap();
            let answered = async { while client.next().await.unwrap().kind != HEADERS {} };
            timeout(EFFECT_TIMEOUT, answered)
                .await
                .expect("it is refused");
        }
        connections.push(client);
    }
    assert_little(&attacked, before);
    bystander.noticed_nothing().await;
    drop(connections);
    attacked.judge_memory().await;
}

#[tokio::test]
async fn claims_that_wait_keep_nothing_of_their_heads() {
    let attacked = Attacked::start(&[]).await;
    let bystander = attacked.bystander().await;
    super::expect(attacked.address, "POST", "/locks/wanted", "ttl=1h", 201).await;
    let before = attacked.memory();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = Http2::open(attacked.address, 65_535).await.unwrap();
        for _ in 0..REQUESTS {
            let (headers, bytes) = LONG_HEAD;
            let path = "/locks/wanted?wait=50s";
            let id = client.ask_with_headers("POST", path, headers, bytes).await;
            client.end(id.unwrap()).await.unwrap();
        }
        connections.push(client);
    }
    eventually_within(Duration::from_secs(30), "all of them wait", async || {
        let (_, lock) = ask(attacked.address, "GET", "/locks/wanted", "")
            .await
            .ok()?;
        let lock: serde_json::Value = serde_json::from_str(&lock).ok()?;
        (lock["queue_length"] == CONNECTIONS * REQUESTS).then_some(())
    })
    .await;
    assert_little(&attacked, before);
    bystander.noticed_nothing().await;
    drop(connections);
    attacked.judge_memory().await;
}

/// A body may take its time, during which its head was once kept.
#[tokio::test]
async fn requests_whose_bodies_do_not_come_keep_nothing_of_their_heads() {
    let attacked = Attacked::start(&["--server-body-timeout", "10m"]).await;
    let bystander = attacked.bystander().await;
    let before = attacked.memory();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = Http2::open(attacked.address, 65_535).await.unwrap();
        for _ in 0..REQUESTS {
            let (headers, bytes) = LONG_HEAD;
            let asked = client.ask_with_headers("POST", "/locks/a", headers, bytes);
            asked.await.unwrap();
        }
        connections.push(client);
    }
    eventually_within(
        Duration::from_secs(30),
        "all of them are there",
        async || {
            let in_flight = attacked.metric("leasehold_http_requests_in_flight").await;
            // This one and the bystander's are there, too.
            (in_flight >= (CONNECTIONS * REQUESTS) as f64).then_some(())
        },
    )
    .await;
    assert_little(&attacked, before);
    bystander.noticed_nothing().await;
    drop(connections);
    attacked.judge_memory().await;
}

/// The fields of a query string are kept until the body is there, and count with it.
#[tokio::test]
async fn long_query_strings_whose_bodies_do_not_come_count_as_bodies() {
    const BUDGET: usize = 1_048_576;
    let budget = BUDGET.to_string();
    let arguments = [
        "--server-body-timeout",
        "10m",
        "--server-body-bytes-total-max",
        &budget,
    ];
    let attacked = Attacked::start(&arguments).await;
    let bystander = attacked.bystander().await;
    let path = format!("/locks/a?owner={}", "x".repeat(30_000));
    // One address may have half of it.
    let fitting = BUDGET / 2 / path.len();
    let mut clients = Vec::new();
    while clients.len() * LONG_HEADS <= 2 * fitting {
        let mut client = Http2::open(attacked.address, 65_535).await.unwrap();
        for _ in 0..LONG_HEADS {
            client.ask_with_headers("POST", &path, 0, 0).await.unwrap();
        }
        clients.push(client);
    }
    let beyond = clients.len() * LONG_HEADS - fitting;
    eventually_within(Duration::from_secs(30), "they are refused", async || {
        let refused = attacked.refused("body_bytes_per_peer").await;
        (refused >= beyond as f64).then_some(())
    })
    .await;
    bystander.noticed_nothing().await;
    drop(clients);
    attacked.judge_memory().await;
}
