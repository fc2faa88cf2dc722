//! Event streams: as many as one peer wants, none of which is read.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::{Attacked, connect, size};
use crate::support::eventually_within;
use crate::waiters::http1::{Connection, Request};

/// The share of one peer.
const SHARE: usize = 100;

/// A thousand of them once took two cores, and a probe half a second.
#[tokio::test]
async fn event_streams_that_nobody_reads_leave_the_service_to_others() {
    let attacked = Attacked::start(&[]).await;
    let bystander = attacked.bystander().await;
    let mut streams = Vec::new();
    for _ in 0..size(150, 900) {
        let mut stream = connect(attacked.address).await;
        let request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).await.unwrap();
        streams.push(stream);
    }
    let refused = (streams.len() - SHARE) as f64;
    eventually_within(
        Duration::from_secs(30),
        "the others are refused",
        async || {
            let counted = attacked.refused("event_streams_per_peer").await;
            assert!(counted <= refused, "{counted}");
            (counted == refused).then_some(())
        },
    )
    .await;
    let told = tell_much(&attacked).await;
    assert!(told > 50, "hardly an attack");
    bystander.noticed_nothing().await;
    drop(streams);
    attacked.judge_memory().await;
}

/// Acquires and releases a lock with a long owner again and again, and returns how often.
async fn tell_much(attacked: &Attacked) -> usize {
    let mut client = Connection::open(attacked.address).await.unwrap();
    let owner = format!("owner={}", "o".repeat(256));
    let end = Instant::now() + Duration::from_secs(size(2, 8) as u64);
    let mut told = 0;
    while Instant::now() < end {
        let request = |method, token, body| Request {
            method,
            path: "/locks/told",
            token,
            body,
        };
        let granted = client.ask(request("POST", None, &owner)).await.unwrap();
        assert_eq!(granted.status, 201);
        let granted = granted.json();
        let released = request("DELETE", granted["token"].as_str(), "");
        assert_eq!(client.ask(released).await.unwrap().status, 204);
        told += 1;
    }
    told
}
