//! Frames of HTTP/2 that ask for nothing: whoever sends them does not keep the threads from others.

use super::{Attacked, MIB, connect};
use crate::support::eventually;
use crate::support::http2::{
    ACK, FRAME_BYTES_MAX, Http2, PING, PRIORITY, SETTINGS, WINDOW_UPDATE, frame,
};

/// What an attacker would send. A debug build reads it within a few seconds.
const FLOOD: usize = 8 * MIB;
/// A kind of frame that nobody knows, and everybody ignores (RFC 9113, 5.5).
const UNKNOWN: u8 = 0x77;

/// Those that h2 does not count itself, as it does parts of bodies without a byte. It reads them without a pause: a few
/// connections with 50 MB/s of them once made others a hundred times slower.
#[tokio::test]
async fn a_connection_that_sends_frames_without_requests_is_ended() {
    let kinds = [
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
        ("unknown", frame(UNKNOWN, 0, 0, &[])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255])),
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("answer to a PING", frame(PING, ACK, 0, &[0; 8])),
    ];
    let attacked = Attacked::start(&[]).await;
    let bystander = attacked.bystander().await;
    for (number, (kind, frame)) in kinds.iter().enumerate() {
        let stream = connect(attacked.address).await;
        let mut client = Http2::over(stream, 65_535).await.unwrap();
        let flooded = client.flood(frame, FLOOD).await;
        assert!(flooded.is_err(), "{kind} frames are read without end");
        let refused = attacked.refused("http2_flood").await;
        assert_eq!(refused, (number + 1) as f64, "{kind}");
    }
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}

/// h2 visits every open stream when a client changes their window. So 120 connections with 100 streams each once made
/// others wait for a second, with few bytes.
#[tokio::test]
async fn a_connection_that_changes_its_settings_again_and_again_is_ended() {
    let attacked = Attacked::start(&[]).await;
    let changed = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]);
    let mut seldom = Http2::open(attacked.address, 65_535).await.unwrap();
    seldom.repeat(&changed, 20).await.unwrap();
    let mut often = Http2::open(attacked.address, 65_535).await.unwrap();
    often.repeat(&changed, 100).await.unwrap();
    while often.next().await.is_ok() {}
    seldom.ask("GET", "/livez").await.unwrap();
    assert!(seldom.next().await.is_ok());
    assert_eq!(attacked.refused("http2_flood").await, 1.0);
}

/// h2 keeps every head of which its table of headers has a slice: once a hundred of 64 KiB for each connection.
#[tokio::test]
async fn a_connection_whose_heads_are_again_and_again_longer_than_a_frame_is_ended() {
    let attacked = Attacked::start(&[]).await;
    let mut seldom = Http2::open(attacked.address, 65_535).await.unwrap();
    let mut often = Http2::open(attacked.address, 65_535).await.unwrap();
    for (client, heads) in [(&mut seldom, 8), (&mut often, 9)] {
        for _ in 0..heads {
            let asked = client.ask_to_remember("/livez", 3 * FRAME_BYTES_MAX).await;
            asked.unwrap();
        }
    }
    eventually("it is counted", async || {
        (attacked.refused("http2_flood").await == 1.0).then_some(())
    })
    .await;
    while often.next().await.is_ok() {}
    let id = seldom.ask("GET", "/livez").await.unwrap();
    while seldom.next().await.unwrap().stream != id {}
}

/// Each connection may reset some streams, and could be opened again and again.
#[tokio::test]
async fn a_connection_that_is_ended_for_its_resets_is_counted_and_kept_counting() {
    // A peer may have half of them.
    let attacked = Attacked::start(&["--server-http2-connections-max", "2"]).await;
    let bystander = attacked.bystander().await;
    let mut client = Http2::open(attacked.address, 65_535).await.unwrap();
    client.ask_and_reset(400).await.unwrap();
    while client.next().await.is_ok() {}
    eventually("it is counted", async || {
        (attacked.refused("http2_flood").await == 1.0).then_some(())
    })
    .await;
    if let Ok(mut client) = Http2::open(attacked.address, 65_535).await {
        let asked = client.ask("GET", "/livez").await;
        assert!(asked.is_err() || client.next().await.is_err());
    }
    assert_eq!(attacked.refused("http2_connections_per_peer").await, 1.0);
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}

/// Each connection has some room for such frames, which could be had again and again.
#[tokio::test]
async fn who_was_closed_for_a_flood_does_not_begin_another_at_once() {
    // A peer may have half of them.
    let attacked = Attacked::start(&["--server-http2-connections-max", "2"]).await;
    let bystander = attacked.bystander().await;
    let unknown = frame(UNKNOWN, 0, 0, &[]);
    let mut client = Http2::open(attacked.address, 65_535).await.unwrap();
    assert!(client.flood(&unknown, FLOOD).await.is_err());
    // It may be closed before it has said anything.
    if let Ok(mut client) = Http2::open(attacked.address, 65_535).await {
        let asked = client.ask("GET", "/livez").await;
        assert!(asked.is_err() || client.next().await.is_err());
    }
    assert_eq!(attacked.refused("http2_flood").await, 1.0);
    assert_eq!(attacked.refused("http2_connections_per_peer").await, 1.0);
    bystander.noticed_nothing().await;
    attacked.judge_memory().await;
}

/// Each request makes up for what belongs to it, and each byte of a body for itself; frames that keep a connection alive or
/// make room for answers are no flood.
#[tokio::test]
async fn a_connection_that_asks_much_goes_on() {
    const REQUESTS: usize = 400;
    let attacked = Attacked::start(&[]).await;
    let stream = connect(attacked.address).await;
    // Heads and bodies are written apart.
    stream.set_nodelay(true).unwrap();
    let mut client = Http2::over(stream, 65_535).await.unwrap();
    // Nearly as long as a frame may be, so that they are many times what may come without requests.
    let body = format!("owner=o&{}", "&".repeat(16_000));
    for number in 0..REQUESTS {
        let path = format!("/locks/{number}");
        let id = client.ask_for("*/*", "POST", &path, &body).await.unwrap();
        let mut answer = client.next().await.unwrap();
        while !answer.ends_stream() {
            answer = client.next().await.unwrap();
            assert_eq!(answer.stream, id);
            if !answer.payload.is_empty() {
                let bytes = u32::try_from(answer.payload.len()).unwrap();
                client.widen(0, bytes).await.unwrap();
            }
        }
    }
    assert_eq!(attacked.refused("http2_flood").await, 0.0);
}
