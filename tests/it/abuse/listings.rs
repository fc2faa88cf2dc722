//! Listings by the hundred while very many locks are held.

use std::time::Duration;

use leasehold::domain::LockName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use super::bystander::{LEASE, expect};
use super::{Attacked, ask, connect};
use crate::support::eventually_within;
use crate::support::redis_server::{RedisOptions, RedisServer};

const LISTINGS: usize = 300;

/// Leases of an hour, as records without options: see `record.lua`.
const HOLD: &str = r"
local time = redis.call('TIME')
local now_ms = time[1] * 1000
for number, lock in ipairs(KEYS) do
    local record = '\0\0\0\0\0\0\0\0' .. '1' .. struct.pack('>I8I8', 7, number)
    redis.call('SET', lock, record .. struct.pack('>I6I7I6', 3600000, now_ms * 1000, now_ms + 3600000), 'PX', 3660000)
end";

/// Redis holds so many locks that nobody asks for.
async fn hold_many(redis: &RedisServer, count: usize) {
    let names: Vec<_> = (0..count)
        .map(|number| format!("tenants/many/{number}"))
        .collect();
    for names in names.chunks(5_000) {
        let mut command = vec!["EVAL".to_owned(), HOLD.to_owned(), names.len().to_string()];
        command.extend(names.iter().map(|text| {
            let name = LockName::parse(text.as_bytes()).unwrap();
            format!("lh:1:{{{}}}:l:{text}", name.bucket().index())
        }));
        redis.command(&command).await;
    }
}

/// They once took all of Redis' time, and leases were lost.
#[tokio::test]
async fn listings_by_the_hundred_take_nobodys_lease() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let attacked = Attacked::start(&["--store", &store]).await;
    hold_many(&redis, 100_000).await;
    let held = expect(attacked.address, "POST", "/locks/renewed", LEASE, 201).await;
    let held: serde_json::Value = serde_json::from_str(&held).unwrap();
    let token = format!("token={}&{LEASE}", held["token"].as_str().unwrap());
    let bystander = attacked.bystander().await;
    let mut listings = Vec::new();
    for _ in 0..LISTINGS {
        let mut stream = connect(attacked.address).await;
        listings.push(tokio::spawn(async move {
            let request = b"GET /locks?prefix=nobody HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(request).await.unwrap();
            let mut answer = String::new();
            let answered = stream.read_to_string(&mut answer);
            timeout(Duration::from_secs(60), answered).await.expect("an answer").unwrap();
            answer
        }));
    }
    let mut took = Vec::new();
    while !listings.iter().all(tokio::task::JoinHandle::is_finished) {
        let asked = Instant::now();
        expect(attacked.address, "PUT", "/locks/renewed", &token, 200).await;
        took.push(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    took.sort();
    let half = took[took.len() / 2];
    assert!(
        half < Duration::from_millis(500),
        "half of the renewals took more than {half:?}"
    );
    bystander.noticed_nothing().await;
    let mut listed = 0;
    for listing in listings {
        let answer = listing.await.unwrap();
        let is_refused = answer.starts_with("HTTP/1.1 429");
        assert!(!is_refused || answer.contains("retry-after: "), "{answer}");
        assert!(is_refused || answer.starts_with("HTTP/1.1 200"), "{answer}");
        listed += usize::from(!is_refused);
    }
    assert!(listed > 0, "some are answered");
    assert!(attacked.refused("listings_per_peer").await > 0.0);
    attacked.judge_memory().await;
}

/// However many one peer wants, others have a share of their own.
#[tokio::test]
async fn others_can_list_while_one_peer_does_nothing_else() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let attacked = Attacked::start(&["--store", &store]).await;
    hold_many(&redis, 20_000).await;
    let bystander = attacked.bystander().await;
    let mut streams = Vec::new();
    for _ in 0..LISTINGS {
        let mut stream = connect(attacked.address).await;
        let request = b"GET /locks?prefix=nobody HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(10);
        stream.write_all(&request).await.unwrap();
        streams.push(stream);
    }
    eventually_within(Duration::from_secs(30), "another peer lists", async || {
        let path = "/locks?prefix=tenants/many/7&page_size=3";
        let (status, page) = ask(attacked.address, "GET", path, "").await.ok()?;
        assert!(page.contains("tenants/many/7") || status != 200, "{page}");
        (status == 200).then_some(())
    })
    .await;
    bystander.noticed_nothing().await;
    drop(streams);
    attacked.judge_memory().await;
}
