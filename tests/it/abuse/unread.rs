//! Answers that are asked for and never read.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use super::{Attacked, MIB, connect};
use crate::support::eventually_within;
use crate::support::http2::Http2;

const FILE: &str = "/docs/swagger-ui-bundle.js";
const STREAMS: usize = 100;

/// 12.7 KB of requests once took 411 MiB, for as long as PINGs were answered.
#[tokio::test]
async fn files_that_nobody_reads_take_no_memory_and_end() {
    const CONNECTIONS: usize = 10;
    let attacked = Attacked::start(&["--server-write-timeout", "2s"]).await;
    let bystander = attacked.bystander().await;
    let before = attacked.memory();
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = Http2::open(attacked.address, 0).await.unwrap();
        for _ in 0..STREAMS {
            client.ask("GET", FILE).await.unwrap();
        }
        // It goes on answering PINGs.
        clients.push(tokio::spawn(
            async move { while client.next().await.is_ok() {} },
        ));
    }
    let ended = (CONNECTIONS * STREAMS) as f64;
    let mut most = 0;
    eventually_within(Duration::from_secs(30), "all of them end", async || {
        most = most.max(attacked.memory());
        (attacked.refused("write_timeout").await >= ended).then_some(())
    })
    .await;
    // A stream with its request and the head of its answer takes less than 16 KiB, in a build for work too.
    let bound = before + CONNECTIONS * STREAMS * 16 * 1024 + 16 * MIB;
    assert!(most < bound, "{} MiB", most / MIB);
    bystander.noticed_nothing().await;
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    attacked.judge_memory().await;
}

/// 301 of 301 such connections were once open after 100 s.
#[tokio::test]
async fn connections_whose_answers_are_not_read_are_closed() {
    const CONNECTIONS: usize = 40;
    let attacked = Attacked::start(&["--server-write-timeout", "2s"]).await;
    let bystander = attacked.bystander().await;
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = connect(attacked.address).await;
        // More answers than the system takes on both ends of a connection.
        let request = format!("GET {FILE} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(30);
        stream.write_all(request.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    eventually_within(Duration::from_secs(30), "all of them end", async || {
        let ended = attacked.refused("write_timeout").await;
        (ended >= CONNECTIONS as f64).then_some(())
    })
    .await;
    bystander.noticed_nothing().await;
    drop(streams);
    attacked.judge_memory().await;
}

/// What is made anew for each answer is bounded in bytes, for one peer and for all.
#[tokio::test]
async fn large_answers_that_nobody_reads_are_bounded_in_bytes() {
    let attacked = Attacked::start(&[
        "--server-answer-bytes-max",
        "1048576",
        "--server-write-timeout",
        "10m",
    ])
    .await;
    let bystander = attacked.bystander().await;
    let mut client = Http2::open(attacked.address, 0).await.unwrap();
    for number in 0..80 {
        let path = format!("/locks/{}-{number}?ttl=10m", "n".repeat(50));
        client.ask("POST", &path).await.unwrap();
        while client.next().await.unwrap().kind != crate::support::http2::HEADERS {}
    }
    drop(client);
    let before = attacked.memory();
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = Http2::open(attacked.address, 0).await.unwrap();
        for _ in 0..STREAMS {
            client.ask("GET", "/metrics").await.unwrap();
        }
        clients.push(tokio::spawn(
            async move { while client.next().await.is_ok() {} },
        ));
    }
    eventually_within(Duration::from_secs(30), "they are refused", async || {
        (attacked.refused("answer_bytes_per_peer").await > 300.0).then_some(())
    })
    .await;
    let grown = attacked.memory().saturating_sub(before);
    assert!(
        grown < MIB + 500 * 16 * 1024 + 16 * MIB,
        "{} MiB",
        grown / MIB
    );
    bystander.noticed_nothing().await;
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    attacked.judge_memory().await;
}
