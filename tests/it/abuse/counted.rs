//! Limits of which no attack here comes first: each of them is reached, refuses, and is counted.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Attacked, ask};
use crate::limits::{connect_from, peer};
use crate::support::http2::{HEADERS, Http2};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, eventually_within};

impl Attacked {
    async fn counts(&self, limit: &str, expected: usize) {
        let mut counted = 0.0;
        eventually(&format!("{limit} is counted"), async || {
            counted = self.refused(limit).await;
            (counted >= expected as f64).then_some(())
        })
        .await;
        assert_eq!(counted, expected as f64, "{limit}");
    }

    async fn counts_some(&self, limit: &str) {
        eventually(&format!("{limit} is counted"), async || {
            (self.refused(limit).await > 0.0).then_some(())
        })
        .await;
    }

    /// A connection of this peer, on which these bytes have been sent.
    async fn sent(&self, from: u8, bytes: &str) -> TcpStream {
        let mut stream = connect_from(peer(from), self.address).await.unwrap();
        // What is too much need not be taken.
        let _ = stream.write_all(bytes.as_bytes()).await;
        stream
    }

    /// A connection of HTTP/2 of this peer, whose answers have this window.
    async fn http2(&self, from: u8, window: u32) -> Http2 {
        let stream = connect_from(peer(from), self.address).await.unwrap();
        Http2::over(stream, window).await.unwrap()
    }

    /// Lets this peer wait for a lock that is held, in so many requests.
    async fn waits(&self, from: u8, requests: usize) -> Http2 {
        let mut client = self.http2(from, 65_535).await;
        for _ in 0..requests {
            client.ask("POST", "/locks/wanted?wait=50s").await.unwrap();
        }
        client
    }

    async fn hold(&self) {
        let held = ask(self.address, "POST", "/locks/wanted", "ttl=1h").await;
        assert_eq!(held.unwrap().0, 201);
    }
}

async fn status(stream: &mut TcpStream) -> String {
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    String::from_utf8_lossy(&line[9..]).into_owned()
}

/// A request whose body does not come.
const BEGUN: &str = "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nt";

#[tokio::test]
async fn heads_and_bodies_that_are_too_large_or_too_late_are_counted() {
    let limits = [
        "--server-body-timeout",
        "300ms",
        "--server-body-bytes-max",
        "1000",
    ];
    let attacked = Attacked::start(&limits).await;
    let long = "x".repeat(80_000);
    let many = "X: 1\r\n".repeat(101);
    let mut kept = Vec::new();
    for head in [
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"),
    ] {
        kept.push(attacked.sent(1, &head).await);
    }
    attacked.counts("head_size", 3).await;
    let mut client = attacked.http2(1, 65_535).await;
    let asked = client.ask_with_headers("POST", "/locks/a", 120, 1);
    asked.await.unwrap();
    while client.next().await.unwrap().kind != HEADERS {}
    attacked.counts("head_size", 4).await;
    let large = ask(attacked.address, "POST", "/locks/a", &long[..2_000]).await;
    assert_eq!(large.unwrap().0, 413);
    attacked.counts("body_size", 1).await;
    assert_eq!(status(&mut attacked.sent(1, BEGUN).await).await, "408");
    attacked.counts("body_timeout", 1).await;
}

#[tokio::test]
async fn requests_of_one_peer_and_waiters_for_one_lock_that_are_too_many_are_counted() {
    let limits = [
        "--server-requests-max",
        "20",
        "--waiting-waiters-per-lock-max",
        "14",
    ];
    let attacked = Attacked::start(&limits).await;
    attacked.hold().await;
    let _one = attacked.waits(1, 12).await;
    attacked.counts("requests_per_peer", 2).await;
    let _other = attacked.waits(2, 6).await;
    attacked.counts("waiters_per_lock", 2).await;
}

#[tokio::test]
async fn requests_and_waiters_of_all_peers_that_are_too_many_are_counted() {
    let attacked = Attacked::start(&[
        "--server-requests-max",
        "10",
        "--server-body-timeout",
        "10m",
        "--waiting-waiters-max",
        "8",
    ])
    .await;
    attacked.hold().await;
    let _waiting = [attacked.waits(1, 4).await, attacked.waits(2, 4).await];
    eventually("they wait", async || {
        let (_, lock) = ask(attacked.address, "GET", "/locks/wanted", "")
            .await
            .ok()?;
        lock.contains("\"queue_length\":8").then_some(())
    })
    .await;
    let waits = "POST /locks/wanted?wait=50s HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(status(&mut attacked.sent(3, waits).await).await, "429");
    attacked.counts("waiters", 1).await;
    // There is room for two, and a peer may have four in any case.
    let mut begun = Vec::new();
    for _ in 0..5 {
        begun.push(attacked.sent(3, BEGUN).await);
    }
    attacked.counts("requests", 1).await;
}

#[tokio::test]
async fn connections_of_http2_of_all_peers_that_are_too_many_are_counted() {
    let attacked = Attacked::start(&["--server-http2-connections-max", "3"]).await;
    let mut kept = Vec::new();
    for from in [1, 1, 2] {
        let mut client = attacked.http2(from, 65_535).await;
        client.ask("GET", "/livez").await.unwrap();
        client.next().await.unwrap();
        kept.push(client);
    }
    let refused = connect_from(peer(2), attacked.address).await.unwrap();
    // It may be closed before it has said anything.
    let _refused = Http2::over(refused, 65_535).await;
    attacked.counts("http2_connections", 1).await;
}

#[tokio::test]
async fn event_streams_of_all_peers_that_are_too_many_or_too_slow_are_counted() {
    let limits = ["--server-event-streams-max", "2", "--events-kept", "5"];
    let attacked = Attacked::start(&limits).await;
    let watch = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut kept = Vec::new();
    for from in [1, 2] {
        let mut stream = attacked.sent(from, watch).await;
        assert_eq!(status(&mut stream).await, "200");
        kept.push(stream);
    }
    assert_eq!(status(&mut attacked.sent(3, watch).await).await, "503");
    attacked.counts("event_streams", 1).await;
    // So many things happen at once that no stream has read the first before the last.
    let names: Vec<_> = (0..64).map(|number| format!("told/{number}")).collect();
    let claim = json!({"names": names}).to_string();
    let granted = ask(attacked.address, "POST", "/locks", &claim).await;
    assert_eq!(granted.unwrap().0, 201);
    attacked.counts_some("events_kept").await;
}

#[tokio::test]
async fn bodies_of_all_peers_that_are_too_much_are_counted() {
    let limits = [
        "--server-body-bytes-total-max",
        "131072",
        "--server-body-timeout",
        "10m",
    ];
    let attacked = Attacked::start(&limits).await;
    let begun = BEGUN.replace("Content-Length: 9", "Content-Length: 65536");
    let _bodies = [
        attacked.sent(1, &begun).await,
        attacked.sent(2, &begun).await,
    ];
    eventually("both have begun", async || {
        let in_flight = attacked.metric("leasehold_http_requests_in_flight");
        (in_flight.await >= 3.0).then_some(())
    })
    .await;
    assert_eq!(status(&mut attacked.sent(3, &begun).await).await, "503");
    attacked.counts("body_bytes", 1).await;
}

#[tokio::test]
async fn answers_to_all_peers_that_are_too_much_or_take_too_long_are_counted() {
    let attacked = Attacked::start(&[
        "--server-answer-bytes-max",
        "1048576",
        "--server-write-timeout",
        "10m",
        "--server-answer-timeout",
        "8s",
    ])
    .await;
    let mut unread = Vec::new();
    for from in [1, 2, 3] {
        let mut client = attacked.http2(from, 0).await;
        for _ in 0..60 {
            client.ask("GET", "/metrics").await.unwrap();
        }
        unread.push(client);
    }
    // The metrics cannot be had before the answers have ended.
    eventually("there is no room", async || {
        let asked = ask(attacked.address, "GET", "/metrics", "").await.ok()?;
        (asked.0 == 503).then_some(())
    })
    .await;
    eventually_within(Duration::from_secs(60), "they end", async || {
        let asked = ask(attacked.address, "GET", "/metrics", "").await.ok()?;
        (asked.0 == 200).then_some(())
    })
    .await;
    attacked.counts_some("answer_bytes").await;
    attacked.counts_some("answer_timeout").await;
}

#[tokio::test]
async fn renewals_of_one_peer_that_are_too_many_are_counted() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let limits = ["--server-renewals-max", "4", "--operation-timeout", "1s"];
    let attacked = Attacked::start(&[&["--store", &store], &limits[..]].concat()).await;
    redis.pause();
    let mut client = attacked.http2(1, 65_535).await;
    let token = "token=01890a5d-ac96-774b-bcce-b302099a8057";
    for _ in 0..40 {
        client
            .ask_for("*/*", "PUT", "/locks/a", token)
            .await
            .unwrap();
    }
    attacked.counts_some("renewals_per_peer").await;
    redis.resume();
}
