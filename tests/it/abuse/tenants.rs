//! A principal that floods the service beside a quiet one: the quiet one is never refused, and in a full run it is hardly
//! slower. Here the flood is of requests; beside it are those of waiting claims and of locks.

mod locks;
mod waiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::{Client, Method, Response};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::bystander::p99;
use super::{Attacked, is_full, size};
use crate::config::{KEY, OTHER_KEY, file};

/// The quiet principal sends less than this.
const QUOTA: &str = "[quota]\nrequests_per_second = 200\nwaiters_max = 100\n";
/// Less than a flood sends on the slowest machine.
const FLOODING_QUOTA: &str = "quota = { requests_per_second = 5 }\n";
/// More requests than a flood of something else has.
const ANY_RATE: &str = "requests_per_second = 1000000";
/// The label of its refusals.
const LIMIT: &str = "request_rate_per_principal";
const FLOODING: &str = KEY;
const QUIET: &str = OTHER_KEY;
/// How many connections send as fast as they are answered.
const CONNECTIONS: usize = 4;
/// How much longer the 99th percentile of the cycles of the quiet principal may take during the flood.
const SLOWER_AT_MOST: u32 = 2;

/// A keys file in which the flooding principal has this quota.
fn principals(flooding_quota: &str) -> String {
    let principal = |name: &str, key: &str| {
        let hash = leasehold::config::KeyHash::of(key.as_bytes());
        format!(
            "[principals.{name}]\nkeys = [\"{hash}\"]\nrules = [{{ prefix = \"{name}\", verbs = [\"acquire\", \"read\"] }}]\n"
        )
    };
    [
        QUOTA,
        &principal("flooding", FLOODING),
        flooding_quota,
        &principal("quiet", QUIET),
    ]
    .concat()
}

async fn send(client: &Client, method: Method, url: &str, key: &str, token: &str) -> Response {
    let request = client.request(method, url).bearer_auth(key);
    let request = match token {
        "" => request,
        token => request.header("lock-token", token),
    };
    request.send().await.unwrap()
}

/// Acquires, renews and releases so many times, and returns what each time took. A refusal fails the test.
async fn use_quietly(url: &str, cycles: usize) -> Vec<Duration> {
    let (client, url) = (Client::new(), format!("{url}/locks/quiet/a"));
    let mut took = Vec::with_capacity(cycles);
    for _ in 0..cycles {
        let begun = Instant::now();
        let granted = send(&client, Method::POST, &url, QUIET, "").await;
        assert_eq!(granted.status(), 201);
        let token = granted.headers()["lock-token"].to_str().unwrap();
        let renewed = send(&client, Method::PUT, &url, QUIET, token).await;
        assert_eq!(renewed.status(), 200);
        let released = send(&client, Method::DELETE, &url, QUIET, token).await;
        assert_eq!(released.status(), 204);
        took.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    took
}

/// Sends requests until the end. Returns how many were answered, and how many of them were refused.
fn flood(url: &str, is_over: &Arc<AtomicBool>) -> JoinHandle<(u32, u32)> {
    let (url, is_over) = (format!("{url}/locks/flooding/a"), Arc::clone(is_over));
    tokio::spawn(async move {
        let client = Client::new();
        let (mut answered, mut refused) = (0, 0);
        while !is_over.load(Ordering::Relaxed) {
            let answer = send(&client, Method::POST, &url, FLOODING, "").await;
            answered += 1;
            match answer.status().as_u16() {
                201 | 423 => {}
                429 => refused += 1,
                status => panic!("{status}"),
            }
        }
        (answered, refused)
    })
}

/// In a full run, the cycles of the quiet principal hardly took longer during the flood.
fn judge_pace(mut before: Vec<Duration>, mut during: Vec<Duration>, flood: &str) {
    if !is_full() {
        return;
    }
    let [quiet, flooded] = [&mut before, &mut during].map(|cycles| p99(cycles));
    let ratio = flooded.as_secs_f64() / quiet.as_secs_f64();
    println!("quiet: p99 {quiet:?} before, {flooded:?} beside {flood}: {ratio:.1}");
    assert!(flooded <= quiet * SLOWER_AT_MOST, "{ratio:.1} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_that_floods_the_service_is_refused_and_a_quiet_one_never() {
    let keys = file(&principals(FLOODING_QUOTA));
    let path = keys.path().to_str().unwrap();
    let attacked = Attacked::start(&["--auth-keys-file", path, "--auth-metrics", "none"]).await;
    let url = attacked.serving.url.clone();
    let before = use_quietly(&url, size(1, 300)).await;
    let is_over = Arc::default();
    let floods: Vec<_> = (0..CONNECTIONS).map(|_| flood(&url, &is_over)).collect();
    // A flood has used up what it may send at once after so many requests; the rest of it comes beside the quiet one.
    let mut during = Vec::new();
    while during.len() < size(20, 300) || attacked.refused(LIMIT).await < 100.0 {
        during.extend(use_quietly(&url, 10).await);
    }
    is_over.store(true, Ordering::Relaxed);
    let (mut answered, mut refused) = (0, 0);
    for flood in floods {
        let (of_one, refused_of_one) = flood.await.unwrap();
        answered += of_one;
        refused += refused_of_one;
    }
    assert_eq!(attacked.refused(LIMIT).await, f64::from(refused));
    let flood = format!("{answered} requests, {refused} of them refused");
    judge_pace(before, during, &flood);
}
