//! A principal with as many waiting claims as its quota permits, which asks for more of them without a pause.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::select_all;
use tokio::task::JoinHandle;

use super::{ANY_RATE, CONNECTIONS, FLOODING, judge_pace, principals, use_quietly};
use crate::abuse::{Attacked, size};
use crate::config::file;
use crate::support::eventually;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::waiters::http1::{Answer, Connection, Request};

/// The label of its refusals.
const LIMIT: &str = "waiters_per_principal";
/// How many claims it makes at once until all of them wait.
const BATCH: usize = 100;
/// So many requests and connections that one peer may have all the waiters.
const ARGUMENTS: [&str; 10] = [
    "--server-requests-max",
    "40000",
    "--waiting-wait-max",
    "10m",
    "--server-connections-max",
    "15000",
    "--server-connections-per-peer-max",
    "15000",
    "--auth-metrics",
    "none",
];

async fn open(address: SocketAddr) -> Connection {
    let mut connection = Connection::open(address).await.unwrap();
    connection.key = Some(FLOODING.to_owned());
    connection
}

fn request<'a>(method: &'a str, token: Option<&'a str>, body: &'a str) -> Request<'a> {
    Request {
        method,
        path: "/locks/flooding/wanted",
        token,
        body,
    }
}

/// A claim that would wait for longer than the test.
fn claim() -> Request<'static> {
    request("POST", None, "ttl=10m&wait=10m")
}

fn assert_over_quota(answer: &Answer) {
    let problem = answer.json();
    assert_eq!(answer.status, 429, "{problem}");
    assert_eq!(problem["code"], "quota_exceeded", "{problem}");
    assert_eq!(problem["quota"], "waiters_max", "{problem}");
}

/// Asks for more until the end. Returns how often, which is refused each time.
fn flood(address: SocketAddr, is_over: &Arc<AtomicBool>) -> JoinHandle<u32> {
    let is_over = Arc::clone(is_over);
    tokio::spawn(async move {
        let mut client = open(address).await;
        let mut refused = 0;
        while !is_over.load(Ordering::Relaxed) {
            assert_over_quota(&client.ask(claim()).await.unwrap());
            refused += 1;
        }
        refused
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_that_floods_the_queues_is_refused_and_can_release_and_a_quiet_one_is_served() {
    let waiters_max = size(30, 10_000);
    let quota = format!("quota = {{ {ANY_RATE}, waiters_max = {waiters_max} }}\n");
    let keys = file(&principals(&quota));
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let own = [
        "--store",
        &store,
        "--auth-keys-file",
        keys.path().to_str().unwrap(),
    ];
    let attacked = Attacked::start(&[&own[..], &ARGUMENTS].concat()).await;
    let url = attacked.serving.url.clone();
    let before = use_quietly(&url, size(1, 300)).await;

    let mut holder = open(attacked.address).await;
    let held = holder.ask(request("POST", None, "ttl=10m")).await.unwrap();
    assert_eq!(held.status, 201);
    let mut waiting = Vec::new();
    while waiting.len() < waiters_max {
        // So many at a time, because each is tried once before it waits, within a deadline.
        for _ in 0..waiters_max.min(BATCH) {
            let mut client = open(attacked.address).await;
            client.send(claim()).await.unwrap();
            waiting.push(client);
        }
        eventually("all of its claims wait", async || {
            let lock = holder.ask(request("GET", None, "")).await.unwrap().json();
            (lock["queue_length"] == waiting.len()).then_some(())
        })
        .await;
    }
    let is_over = Arc::default();
    let floods: Vec<_> = (0..CONNECTIONS)
        .map(|_| flood(attacked.address, &is_over))
        .collect();
    let mut during = Vec::new();
    while during.len() < size(5, 300) || attacked.refused(LIMIT).await < 100.0 {
        during.extend(use_quietly(&url, 5).await);
    }
    is_over.store(true, Ordering::Relaxed);
    let mut refused = 0;
    for flood in floods {
        refused += flood.await.unwrap();
    }
    assert_eq!(attacked.refused(LIMIT).await, f64::from(refused));

    // Nothing waits beyond the quota, and what it holds it may release: the next of its own claims is granted.
    let lock = holder.ask(request("GET", None, "")).await.unwrap().json();
    assert_eq!(lock["queue_length"], waiters_max);
    let token = held.json()["token"].as_str().unwrap().to_owned();
    let released = holder.ask(request("DELETE", Some(&token), "")).await;
    assert_eq!(released.unwrap().status, 204);
    let answers = waiting.iter_mut().map(|client| Box::pin(client.answer()));
    let (granted, _, _) = select_all(answers).await;
    let granted = granted.unwrap();
    assert_eq!(granted.status, 201);
    let token = granted.json()["token"].as_str().unwrap().to_owned();
    let released = holder.ask(request("DELETE", Some(&token), "")).await;
    assert_eq!(released.unwrap().status, 204);
    let flood = format!("{waiters_max} waiters, and {refused} that were refused");
    judge_pace(before, during, &flood);
}
