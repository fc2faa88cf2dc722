//! Connections: too many from one peer, and those that never say what they want.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Attacked, MIB, PROBE, connect, size};
use crate::limits::{connect_from, is_answered, peer};
use crate::support::http2::Http2;

/// One client once took all of them in half a second, and pods were restarted.
#[tokio::test]
async fn one_peer_that_takes_all_connections_is_only_in_its_own_way() {
    let attacked = Attacked::start(&["--server-connections-max", "400"]).await;
    let bystander = attacked.bystander().await;
    let mut kept = Vec::new();
    for _ in 0..450 {
        let mut stream = connect(attacked.address).await;
        if is_answered(&mut stream, 200).await {
            kept.push(stream);
        }
    }
    assert_eq!(kept.len(), 200, "its share");
    assert!(attacked.refused("connections_per_peer").await >= 250.0);
    bystander.noticed_nothing().await;
    drop(kept);
    attacked.judge_memory().await;
}

/// Each connection was once served until nothing was left to read: others waited for three seconds, and lost their leases.
#[tokio::test]
async fn connections_full_of_requests_take_turns_with_others() {
    let attacked = Attacked::start(&[]).await;
    let bystander = attacked.bystander().await;
    let many = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(300);
    let last = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let asked = many + last;
    let mut filled = Vec::new();
    for _ in 0..size(100, 900) {
        let mut stream = connect(attacked.address).await;
        stream.write_all(asked.as_bytes()).await.unwrap();
        filled.push(stream);
    }
    for mut stream in filled {
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).await.unwrap();
        let answered = answers.windows(8).filter(|part| part == b"HTTP/1.1");
        assert_eq!(answered.count(), 301);
    }
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}

/// Each of them can take more memory than a connection of HTTP/1.1.
#[tokio::test]
async fn one_peer_has_half_of_the_connections_of_http2() {
    const CONNECTIONS: usize = 10;
    let attacked = Attacked::start(&["--server-http2-connections-max", "10"]).await;
    let bystander = attacked.bystander().await;
    let mut kept = Vec::new();
    for _ in 0..CONNECTIONS {
        // One that is refused may be closed before it has said anything.
        let Ok(mut client) = Http2::open(attacked.address, 65_535).await else {
            continue;
        };
        let asked = client.ask("GET", "/livez").await;
        if asked.is_ok() && client.next().await.is_ok() {
            kept.push(client);
        }
    }
    assert_eq!(kept.len(), CONNECTIONS / 2, "its share");
    let refused = attacked.refused("http2_connections_per_peer").await;
    assert_eq!(refused, (CONNECTIONS / 2) as f64);
    let another = connect_from(peer(2), attacked.address).await.unwrap();
    let mut another = Http2::over(another, 65_535).await.unwrap();
    another.ask("GET", "/livez").await.unwrap();
    another.next().await.unwrap();
    bystander.noticed_nothing().await;
    drop(kept);
    attacked.judge_memory().await;
}

/// Two together fill all but the reserve, and the second address does not care.
#[tokio::test]
async fn probes_are_answered_though_peers_together_take_all_connections() {
    let attacked = Attacked::start(&[
        "--server-connections-max",
        "100",
        "--server-connections-per-peer-max",
        "100",
        "--server-admin-listen",
        "127.0.0.1:0",
    ])
    .await;
    let bystander = attacked.bystander().await;
    let mut kept = Vec::new();
    for from in [1, 2] {
        for _ in 0..100 {
            kept.push(connect_from(peer(from), attacked.address).await.unwrap());
        }
    }
    for path in ["/livez", "/readyz", "/version", "/metrics"] {
        let answer = reqwest::Client::new()
            .get(format!("{}{path}", attacked.serving.admin_url))
            .timeout(PROBE);
        assert_eq!(answer.send().await.unwrap().status(), 200, "{path}");
    }
    assert!(attacked.refused("connections_reserved").await > 0.0);
    bystander.noticed_nothing().await;
    drop(kept);
    attacked.judge_memory().await;
}

/// Each was once looked at 200 times in a second.
#[tokio::test]
async fn connections_that_stall_within_the_preface_cost_no_time() {
    const CONNECTIONS: usize = 500;
    let attacked = Attacked::start(&["--server-header-read-timeout", "10m"]).await;
    let mut stalled = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = connect(attacked.address).await;
        stream.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
        stalled.push(stream);
    }
    // Whoever is answered comes after them all.
    attacked.refused("head_timeout").await;
    let before = attacked.cpu();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let spent = attacked.cpu() - before;
    assert!(spent < Duration::from_millis(150), "{spent:?} in a second");
    drop(stalled);
    attacked.judge_memory().await;
}

#[tokio::test]
async fn long_heads_and_bodies_that_do_not_end_take_what_their_limits_allow() {
    const CONNECTIONS: usize = 200;
    let attacked = Attacked::start(&[
        "--server-connections-max",
        "400",
        "--server-header-read-timeout",
        "3s",
        "--server-body-bytes-total-max",
        "1048576",
    ])
    .await;
    let bystander = attacked.bystander().await;
    let before = attacked.memory();
    let mut streams = Vec::new();
    for number in 0..CONNECTIONS {
        let mut stream = connect(attacked.address).await;
        let text = match number % 2 {
            0 => format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(60_000)),
            _ => format!(
                "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65536\r\n\r\n{}",
                "x".repeat(60_000)
            ),
        };
        // A body that is refused need not be taken.
        let _ = stream.write_all(text.as_bytes()).await;
        streams.push(stream);
    }
    assert!(attacked.refused("body_bytes_per_peer").await > 0.0);
    let grown = attacked.memory().saturating_sub(before);
    let bound = CONNECTIONS * 2 * 64 * 1024 + 16 * MIB;
    assert!(grown < bound, "{} MiB", grown / MIB);
    crate::support::eventually("heads end", async || {
        (attacked.refused("head_timeout").await >= 100.0).then_some(())
    })
    .await;
    bystander.noticed_nothing().await;
    drop(streams);
    attacked.judge_memory().await;
}
