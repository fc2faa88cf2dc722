//! Operations: requests that are given up as soon as they are made, and claims by the thousand.

use std::time::Duration;

use tokio::time::Instant;

use super::{Attacked, MIB, ask};
use crate::support::eventually_within;
use crate::support::http2::Http2;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::waiters::http1::{Connection, Request};

/// Four connections once did 58,000 of them in a second, and took 400 MiB.
#[tokio::test]
async fn streams_that_are_reset_at_once_do_not_pile_up() {
    const OPERATIONS: usize = 64;
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let operations = OPERATIONS.to_string();
    let attacked =
        Attacked::start(&["--store", &store, "--server-operations-max", &operations]).await;
    let bystander = attacked.bystander();
    let before = attacked.memory();
    let end = Instant::now() + Duration::from_secs(3);
    let attacks: Vec<_> = (0..4)
        .map(|attacker| {
            let address = attacked.address;
            tokio::spawn(async move {
                let mut asked = 0_usize;
                while Instant::now() < end && asked < 50_000 {
                    let Ok(mut client) = Http2::open(address, 65_535).await else {
                        continue;
                    };
                    // After too many the connection is closed, and the next one begins.
                    while Instant::now() < end {
                        asked += 1;
                        let path = format!("/locks/{attacker}-{asked}?ttl=2s&wait=5s");
                        let Ok(id) = client.ask("POST", &path).await else {
                            break;
                        };
                        if client.reset(id).await.is_err() {
                            break;
                        }
                    }
                }
                asked
            })
        })
        .collect();
    let mut asked = 0;
    for attack in attacks {
        asked += attack.await.unwrap();
    }
    let grown = attacked.memory().saturating_sub(before);
    assert!(asked > 100, "hardly an attack");
    assert!(
        grown < 64 * MIB,
        "{} MiB after {asked} requests",
        grown / MIB
    );
    bystander.noticed_nothing().await;
    // What was granted to streams that were gone is given back or ends, and nothing goes on being asked for.
    eventually_within(Duration::from_secs(30), "the locks are free", async || {
        let (_, locks) = ask(attacked.address, "GET", "/locks", "").await.ok()?;
        let locks: serde_json::Value = serde_json::from_str(&locks).ok()?;
        let names = locks["locks"]
            .as_array()?
            .iter()
            .map(|lock| lock["name"].as_str());
        names
            .flatten()
            .all(|name| name == "bystander")
            .then_some(())
    })
    .await;
}

/// A client that fills the share of acquires leaves that of renewals alone, and whoever is shed is told when to come back.
#[tokio::test]
async fn a_store_that_stands_still_is_not_asked_by_more_than_may() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let attacked = Attacked::start(&[
        "--store",
        &store,
        "--server-operations-max",
        "4",
        "--operation-timeout",
        "1s",
    ])
    .await;
    redis.pause();
    let mut client = Http2::open(attacked.address, 65_535).await.unwrap();
    for number in 0..60 {
        client
            .ask("POST", &format!("/locks/{number}"))
            .await
            .unwrap();
    }
    let mut answered = 0;
    while answered < 60 {
        let frame = client.next().await.unwrap();
        answered += usize::from(frame.kind == crate::support::http2::HEADERS);
    }
    redis.resume();
    assert!(attacked.refused("operations_per_peer").await > 0.0);
}

/// Legitimate use is not hurt: many clients behind one address, all of which wait.
#[tokio::test]
async fn a_thousand_waiters_of_one_address_wait() {
    const WAITERS: usize = 1_000;
    let attacked = Attacked::start(&[]).await;
    let mut holder = Connection::open(attacked.address).await.unwrap();
    let request = |token, body, method| Request {
        method,
        path: "/locks/wanted",
        token,
        body,
    };
    let held = holder.ask(request(None, "ttl=1h", "POST")).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let mut waiter = Connection::open(attacked.address).await.unwrap();
        waiter
            .send(request(None, "wait=50s", "POST"))
            .await
            .unwrap();
        waiting.push(waiter);
    }
    eventually_within(Duration::from_secs(30), "all of them wait", async || {
        let (_, lock) = ask(attacked.address, "GET", "/locks/wanted", "")
            .await
            .ok()?;
        let lock: serde_json::Value = serde_json::from_str(&lock).ok()?;
        (lock["queue_length"] == WAITERS).then_some(())
    })
    .await;
    for limit in leasehold::limits::Limit::ALL {
        assert_eq!(attacked.refused(limit.label()).await, 0.0, "{limit:?}");
    }
    let held = held.json();
    let token = held["token"].as_str();
    assert_eq!(
        holder
            .ask(request(token, "", "DELETE"))
            .await
            .unwrap()
            .status,
        204
    );
    // Who came first is known to the process only, whose threads have taken the requests in an order of their own.
    let answers = waiting.iter_mut().map(|waiter| Box::pin(waiter.answer()));
    let (first, _, _) = futures_util::future::select_all(answers).await;
    assert!(first.unwrap().grants());
}
