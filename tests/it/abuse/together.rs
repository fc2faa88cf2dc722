//! Very many leases that end together: they expire in the same moment, or are evicted from one lock.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::store::TOMBSTONE_TTL;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Attacked, is_full, size};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::waiters::http1::{Connection, Request};

const NAMES: usize = 64;

fn post<'a>(path: &'a str, body: &'a str) -> Request<'a> {
    Request {
        method: "POST",
        path,
        token: None,
        body,
    }
}

/// 900,000 of them once stopped the service for three seconds.
#[tokio::test]
async fn leases_that_expire_together_stop_nobody() {
    let claims = size(200, 14_000);
    let locks_max = (2 * claims * NAMES).to_string();
    let attacked = Attacked::start(&["--memory-locks-max", &locks_max]).await;
    let mut client = Connection::open(attacked.address).await.unwrap();
    let end = Instant::now() + Duration::from_secs(size(8, 40) as u64);
    // A busy machine makes fewer of them.
    let made_until = end - Duration::from_secs(3);
    let mut made = 0;
    while made < claims && Instant::now() < made_until {
        let names: Vec<_> = (0..NAMES).map(|name| format!("{made}/{name}")).collect();
        let left = end.saturating_duration_since(Instant::now()).as_millis();
        let claim = json!({"names": names, "ttl": format!("{left}ms")}).to_string();
        let granted = client.ask(post("/locks", &claim)).await.unwrap();
        assert_eq!(granted.status, 201);
        made += 1;
    }
    let bystander = attacked.bystander().await;
    sleep_until(end + Duration::from_secs(1)).await;
    bystander.noticed_nothing().await;
    if is_full() {
        // Ended claims are kept for a minute, and are most of what is left.
        sleep(TOMBSTONE_TTL).await;
    }
    attacked.judge_memory().await;
    println!("{} leases", made * NAMES);
}

/// Many claims hold a lock together.
async fn share(address: SocketAddr, holders: usize) {
    const CLIENTS: usize = 8;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(async move {
            let mut client = Connection::open(address).await.unwrap();
            for _ in 0..holders / CLIENTS {
                let joined = client.ask(post("/locks/shared", "mode=shared&ttl=10m"));
                let joined = joined.await.unwrap();
                assert_eq!(joined.status, 201, "{}", joined.json());
            }
        });
    }
    clients.join_all().await;
}

/// It once was 503 after two seconds, and did not say what it had done.
#[tokio::test]
async fn an_eviction_of_very_many_holders_says_what_it_did_and_delays_nobody() {
    let holders = size(2_000, 100_000);
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    // A machine that is busy with other tests takes long for each holder.
    let limits = ["--store", &store, "--operation-timeout", "10s"];
    let attacked = Attacked::start(&limits).await;
    share(attacked.address, holders).await;
    let bystander = attacked.bystander().await;
    let mut client = Connection::open(attacked.address).await.unwrap();
    let mut evicted = 0;
    loop {
        let answer = client.ask(Request {
            method: "DELETE",
            ..post("/locks/shared?force=true", "")
        });
        let answer = answer.await.unwrap();
        let told = answer.json();
        evicted += told["evicted_total"].as_u64().expect("it says how many");
        match answer.status {
            200 => break,
            status => assert_eq!(status, 503, "{told}"),
        }
    }
    assert_eq!(evicted, holders as u64);
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}
