//! Responses that are not read: they end, and their memory is freed.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use futures_util::stream;
use leasehold::config::ServerConfig;
use leasehold::server::OpenConnections;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use super::{REQUEST, serve};
use crate::sockets::config;
use crate::support::http2::{DATA, HEADERS, Http2, RST_STREAM};
use crate::support::{EFFECT_TIMEOUT, eventually};

/// More than the socket buffers on both ends of a connection hold.
const LARGE: usize = 64 * 1024 * 1024;
const SOON: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_secs(3_600);

fn unread_within(write_timeout: Duration, answer_timeout: Duration) -> ServerConfig {
    ServerConfig {
        write_timeout,
        answer_timeout,
        ..config()
    }
}

/// A server with responses of this size, which share their bytes.
async fn serve_bytes(config: &ServerConfig, size: usize) -> (SocketAddr, OpenConnections) {
    let bytes = Bytes::from(vec![b'x'; size]);
    let app = Router::new().route("/", get(move || async move { bytes.clone() }));
    serve(config, app).await
}

/// One for each version of HTTP.
fn clients() -> [reqwest::Client; 2] {
    let builders = [
        reqwest::Client::builder().http1_only(),
        reqwest::Client::builder().http2_prior_knowledge(),
    ];
    builders.map(|client| client.build().unwrap())
}

async fn is_over(open: &OpenConnections) {
    eventually("the connection is given up", async || {
        (open.count() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_response_that_is_not_read_ends_with_its_connection() {
    let (address, open) = serve_bytes(&unread_within(SOON, LATE), LARGE).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    eventually("the answer begins", async || {
        (stream.peek(&mut [0]).await.ok()? == 1).then_some(())
    })
    .await;
    is_over(&open).await;
}

/// Bytes in the socket buffers do not count for any limit.
#[tokio::test]
async fn a_response_that_is_not_read_uses_little_socket_buffer() {
    let (address, _open) = serve_bytes(&unread_within(LATE, LATE), LARGE).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    let (server, client) = (address.port(), stream.local_addr().unwrap().port());
    let (mut taken, mut looks) = (0, 0);
    eventually("the system takes no more", async || {
        let before = std::mem::replace(&mut taken, send_queue(server, client));
        looks = if taken == before { looks + 1 } else { 0 };
        (taken > 0 && looks > 20).then_some(())
    })
    .await;
    assert!(taken < 512 * 1024, "{taken} bytes");
}

/// How many bytes are in the send queue of the server's socket.
fn send_queue(server: u16, client: u16) -> u64 {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends_with = |end: &str, port: u16| end.ends_with(&format!(":{port:04X}"));
    let queue = sockets.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote) = (words.next()?, words.next()?);
        let queues = words.nth(1)?;
        let is_it = ends_with(local, server) && ends_with(remote, client);
        is_it.then(|| queues.split(':').next().unwrap_or_default())
    });
    queue.map_or(0, |queue| u64::from_str_radix(queue, 16).unwrap())
}

/// The client keeps reading a little, so that only the total timeout can end the response.
#[tokio::test]
async fn a_response_that_is_read_for_too_long_ends_with_its_connection() {
    let (address, open) = serve_bytes(&unread_within(LATE, SOON), LARGE).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    let mut piece = vec![0; 16 * 1024];
    stream.read_exact(&mut piece).await.unwrap();
    let give_up = Instant::now() + EFFECT_TIMEOUT;
    while open.count() > 0 {
        assert!(Instant::now() < give_up, "the answer goes on");
        // After the end of the connection, received bytes can still be read.
        let _ = timeout(SOON, stream.read(&mut piece)).await;
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_large_response_arrives_whole_when_it_is_read() {
    let (address, _) = serve_bytes(&unread_within(LATE, LATE), 1024 * 1024).await;
    for client in clients() {
        let answer = client
            .get(format!("http://{address}/"))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.content_length(), Some(1024 * 1024));
        assert_eq!(answer.bytes().await.unwrap().len(), 1024 * 1024);
    }
}

/// The peer keeps answering PINGs and sending other requests, which does not count as reading.
#[tokio::test]
async fn a_stream_of_http_2_whose_window_stays_closed_is_reset() {
    let (address, open) = serve_bytes(&unread_within(SOON, LATE), LARGE).await;
    let mut client = Http2::open(address, 0).await.unwrap();
    let first = client.ask("GET", "/").await.unwrap();
    is_reset(&mut client, first).await;
    let second = client.ask("GET", "/").await.unwrap();
    is_reset(&mut client, second).await;
    assert_eq!(open.count(), 1, "the connection is not to blame");
}

/// With a window of one byte, hyper passes a whole small response to h2, which buffers it.
#[tokio::test]
async fn a_stream_of_http_2_whose_window_is_too_small_is_reset() {
    for size in [300, 20_000] {
        let (address, _) = serve_bytes(&unread_within(SOON, LATE), size).await;
        let mut client = Http2::open(address, 1).await.unwrap();
        let id = client.ask("GET", "/").await.unwrap();
        is_reset(&mut client, id).await;
    }
}

#[tokio::test]
async fn a_stream_of_http_2_that_is_read_byte_by_byte_is_reset_when_its_time_is_over() {
    let (address, _) = serve_bytes(&unread_within(LATE, SOON), LARGE).await;
    let mut client = Http2::open(address, 20_000).await.unwrap();
    let id = client.ask("GET", "/").await.unwrap();
    let reset = async {
        loop {
            let frame = client.next().await.unwrap();
            match frame.kind {
                RST_STREAM if frame.stream == id => break,
                DATA => {
                    let _ = client.widen(id, 1_000).await;
                    let _ = client.widen(0, 1_000).await;
                }
                _ => {}
            }
        }
    };
    timeout(EFFECT_TIMEOUT, reset).await.expect("a reset");
}

/// A time without events must not count as not reading.
#[tokio::test]
async fn a_stream_without_events_stays_open() {
    let events = || async {
        let events = stream::unfold(0, |count| async move {
            if count == 1 {
                sleep(5 * SOON).await;
            }
            let event = Bytes::from_static(b"event\n");
            (count < 2).then(|| (Ok::<_, Infallible>(event), count + 1))
        });
        Body::from_stream(events)
    };
    let app = Router::new().route("/", get(events));
    let (address, _) = serve(&unread_within(SOON, SOON), app).await;
    for client in clients() {
        let answer = client
            .get(format!("http://{address}/"))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.text().await.unwrap(), "event\nevent\n");
    }
}

#[tokio::test]
async fn an_event_stream_that_is_not_read_ends() {
    let events = || async {
        let event = Bytes::from(vec![b'x'; 64 * 1024]);
        Body::from_stream(stream::repeat_with(move || {
            Ok::<_, Infallible>(event.clone())
        }))
    };
    let app = Router::new().route("/", get(events));
    let (address, open) = serve(&unread_within(SOON, LATE), app).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    let mut client = Http2::open(address, 100_000).await.unwrap();
    let id = client.ask("GET", "/").await.unwrap();
    is_reset(&mut client, id).await;
    drop(client);
    is_over(&open).await;
}

async fn is_reset(client: &mut Http2, id: u32) {
    let reset = async {
        loop {
            let frame = client.next().await.expect("the connection goes on");
            match frame.kind {
                RST_STREAM if frame.stream == id => break,
                HEADERS | DATA => assert!(!frame.ends_stream(), "it was answered whole"),
                _ => {}
            }
        }
    };
    timeout(EFFECT_TIMEOUT, reset).await.expect("a reset");
}
