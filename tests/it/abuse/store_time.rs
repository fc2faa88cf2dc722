//! Requests that keep Redis busy for long: claims that wait for a moment, and answers that list many holders.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bare_handler::BareHandler;
use super::bystander::{Bystander, Use};
use super::{Attacked, MIB, ask, is_full, size};
use crate::support::eventually_within;
use crate::support::http2::{DATA, Http2};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::waiters::http1::{Connection, Request};

/// So many requests are in flight on each connection.
const IN_FLIGHT: usize = 100;
/// Large enough to read everything.
const WINDOW: u32 = 1 << 30;

/// There may be enough connections for those that have just been closed, too.
async fn attacked(redis: &RedisServer) -> Attacked {
    let store = format!("redis://{}", redis.address());
    Attacked::start(&["--store", &store, "--server-http2-connections-max", "250"]).await
}

/// A lock that many claims share, with texts to list.
async fn crowd(address: SocketAddr) {
    let mut client = Connection::open(address).await.unwrap();
    let text = "x".repeat(200);
    let holder = json!({"mode": "shared", "ttl": "10m", "owner": text}).to_string();
    for _ in 0..100 {
        let joined = client.ask(Request {
            method: "POST",
            path: "/locks/crowded",
            token: None,
            body: &holder,
        });
        assert_eq!(joined.await.unwrap().status, 201);
    }
}

/// Sends this request again and again on many connections, and returns how many were answered.
async fn repeat(address: SocketAddr, method: &'static str, path: &'static str) -> usize {
    let end = Instant::now() + Duration::from_secs(size(2, 8) as u64);
    let mut clients = JoinSet::new();
    for _ in 0..size(4, 18) {
        clients.spawn(async move {
            let mut client = Http2::open(address, WINDOW).await.unwrap();
            client.widen(0, WINDOW).await.unwrap();
            let (mut asked, mut answered) = (0, 0);
            while Instant::now() < end {
                while asked < answered + IN_FLIGHT {
                    client.ask(method, path).await.unwrap();
                    asked += 1;
                }
                let frame = client.next().await.unwrap();
                answered += usize::from(frame.ends_stream());
            }
            answered
        });
    }
    clients.join_all().await.into_iter().sum()
}

/// Entering a queue and leaving it takes Redis several times as long as a refusal. It once cost others a lease.
#[tokio::test]
async fn claims_that_wait_for_a_moment_leave_the_store_to_others() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let attacked = attacked(&redis).await;
    crowd(attacked.address).await;
    for path in ["/locks/crowded?wait=1ms", "/locks/one?ttl=10m&wait=1ms"] {
        let bystander = attacked.bystander().await;
        let answered = repeat(attacked.address, "POST", path).await;
        assert!(answered > 20, "hardly an attack");
        bystander.noticed_nothing().await;
    }
    attacked.judge_memory().await;
}

/// Each of them takes Redis as long as twenty short ones.
#[tokio::test]
async fn answers_that_list_many_holders_leave_the_store_to_others() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let attacked = attacked(&redis).await;
    crowd(attacked.address).await;
    for method in ["GET", "POST"] {
        let bystander = attacked.bystander().await;
        let answered = repeat(attacked.address, method, "/locks/crowded").await;
        assert!(answered > 20, "hardly an attack");
        bystander.noticed_nothing().await;
    }
    attacked.judge_memory().await;
}

/// Thousands of claims leave the queues when their connections close. In the moments in which they come and go, the attacker
/// keeps the cores busy on which everything runs, so that its bystander notices as much of a handler that does nothing.
#[tokio::test]
async fn streams_that_wait_and_close_leave_the_store_to_others() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let attacked = attacked(&redis).await;
    let elsewhere = match is_full() {
        true => beside_streams_of_a_bare_handler(&redis).await,
        false => Duration::ZERO,
    };
    crowd(attacked.address).await;
    let bystander = attacked.bystander().await;
    open_and_close_streams(attacked.address).await;
    bystander.noticed_no_more_than(elsewhere).await;
    attacked.judge_memory().await;
}

/// The 99th percentile of the cycles of a bystander.
async fn beside_streams_of_a_bare_handler(redis: &RedisServer) -> Duration {
    let handler = BareHandler::start(redis).await;
    let mut bystander = Bystander::start(handler.address, Use::Locks).await;
    open_and_close_streams(handler.address).await;
    let elsewhere = bystander.attacked().await;
    println!("bystander: p99 {elsewhere:?} beside the same attack on a bare handler");
    elsewhere
}

async fn open_and_close_streams(address: SocketAddr) {
    for _ in 0..size(3, 20) {
        let mut clients = Vec::new();
        for _ in 0..size(4, 20) {
            let mut client = Http2::open(address, WINDOW).await.unwrap();
            for _ in 0..IN_FLIGHT {
                let asked = client.ask_for("text/event-stream", "POST", "/locks/crowded", "");
                asked.await.unwrap();
            }
            clients.push(client);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Each leaves a release behind. They once took 1.3 GiB, while their leases lived on.
#[tokio::test]
async fn streams_that_close_once_they_hold_do_not_pile_up() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let attacked = attacked(&redis).await;
    let bystander = attacked.bystander().await;
    let before = attacked.memory();
    let end = Instant::now() + Duration::from_secs(size(3, 10) as u64);
    let mut clients = JoinSet::new();
    for number in 0..size(4, 18) {
        let address = attacked.address;
        clients.spawn(async move {
            let mut client = Http2::open(address, WINDOW).await.unwrap();
            client.widen(0, WINDOW).await.unwrap();
            let (mut asked, mut held) = (0, 0);
            while Instant::now() < end {
                while asked < held + IN_FLIGHT / 2 {
                    let path = format!("/locks/{number}-{asked}?ttl=1h");
                    let asking = client.ask_for("text/event-stream", "POST", &path, "");
                    asking.await.unwrap();
                    asked += 1;
                }
                let frame = client.next().await.unwrap();
                if frame.kind == DATA && !frame.ends_stream() {
                    client.reset(frame.stream).await.unwrap();
                }
                held += usize::from(frame.kind == DATA);
            }
            held
        });
    }
    let held: usize = clients.join_all().await.into_iter().sum();
    assert!(held > 100, "hardly an attack");
    let grown = attacked.memory().saturating_sub(before) / MIB;
    assert!(grown < 96, "{grown} MiB after {held} streams");
    bystander.noticed_nothing().await;
    eventually_within(Duration::from_secs(30), "the locks are free", async || {
        let (_, locks) = ask(attacked.address, "GET", "/locks", "").await.ok()?;
        let locks: serde_json::Value = serde_json::from_str(&locks).ok()?;
        locks["locks"].as_array()?.is_empty().then_some(())
    })
    .await;
    attacked.judge_memory().await;
}
