//! The accept loop with peers that are slow, silent or too many.

mod another;
mod unix;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use leasehold::config::{Config, ServerConfig, Sources};
use leasehold::server::{OpenConnections, Server, Workers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";
const ANSWER: &str = "here you are";

/// The default settings.
pub(crate) fn config() -> ServerConfig {
    Config::load(&Sources::default()).unwrap().0.server
}

/// A loopback address with a port that the system chooses.
pub(crate) fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn serve(config: &ServerConfig) -> (SocketAddr, OpenConnections) {
    let server = Server::bind(config, local()).unwrap();
    let started = (server.local_addr(), server.open_connections());
    tokio::spawn(server.run(
        Router::new().route("/", get(ANSWER)),
        Workers::here(),
        std::future::pending(),
    ));
    started
}

fn short_timeouts() -> ServerConfig {
    ServerConfig {
        header_read_timeout: Duration::from_millis(50),
        ..config()
    }
}

/// Sends the bytes and then nothing; returns the bytes that the server sent before it closed the connection.
async fn stall_after(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut received = Vec::new();
    let closed =
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut received)).await;
    // A reset closes the connection too.
    let _ = closed.expect("the server must close a connection that stalls");
    received
}

async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(REQUEST).await.unwrap();
    let mut received = Vec::new();
    while !received.ends_with(ANSWER.as_bytes()) {
        assert_ne!(
            stream.read_buf(&mut received).await.unwrap(),
            0,
            "the connection ended early"
        );
    }
    String::from_utf8(received).unwrap()
}

/// After a restart all clients reconnect at once. The system silently drops connections that its listen queue has no
/// room for, and they are retried after a second.
#[tokio::test]
async fn many_connections_at_once_fit_into_the_listen_queue() {
    // More than twice the usual backlog, and few enough for the default open-file limit.
    const CROWD: usize = 300;
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let server = Server::bind(&config(), local()).unwrap();
    let mut crowd = Vec::new();
    for number in 0..CROWD.min(most.trim().parse().unwrap()) {
        let connected = TcpStream::connect(server.local_addr());
        let connected = tokio::time::timeout(Duration::from_secs(5), connected).await;
        let connected = connected.unwrap_or_else(|_| panic!("no room for connection {number}"));
        crowd.push(connected.unwrap());
    }
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let (address, open) = serve(&short_timeouts()).await;
    assert_eq!(stall_after(address, b"").await, b"");
    assert_eq!(open.count(), 0);
}

#[tokio::test]
async fn a_head_that_never_ends_is_closed() {
    let (address, _) = serve(&short_timeouts()).await;
    stall_after(address, b"GET / HTTP/1.1\r\nHost: he").await;
}

/// `P` may become `PUT` or the HTTP/2 preface, so it is not decided yet which protocol's timeout applies.
#[tokio::test]
async fn a_protocol_that_stays_undecided_is_closed() {
    let (address, _) = serve(&short_timeouts()).await;
    stall_after(address, b"P").await;
    stall_after(address, b"PRI * HTTP/2.0\r\n\r\nSM").await;
}

#[tokio::test]
async fn an_http2_preface_without_a_request_is_closed() {
    let (address, _) = serve(&short_timeouts()).await;
    stall_after(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
}

#[tokio::test]
async fn a_connection_that_goes_quiet_after_an_answer_is_closed() {
    let (address, _) = serve(&ServerConfig {
        idle_timeout: Duration::from_millis(50),
        ..config()
    })
    .await;
    let answered = stall_after(address, REQUEST).await;
    assert!(answered.starts_with(b"HTTP/1.1 200 OK"));
}

/// The second request arrives later than the timeout for the first one, which is the reason for two timeouts.
#[tokio::test]
async fn a_kept_connection_outlives_the_time_for_the_first_request() {
    let (address, _) = serve(&short_timeouts()).await;
    let mut kept = TcpStream::connect(address).await.unwrap();
    ask(&mut kept).await;
    // Another silent connection that is closed shows that the time has passed.
    stall_after(address, b"").await;
    assert!(ask(&mut kept).await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let (address, _) = serve(&config()).await;
    for (length, end, expected) in [
        (64 * 1024, "", b"HTTP/1.1 431"),
        (64 * 1024, "\r\n\r\n", b"HTTP/1.1 431"),
        (63 * 1024, "\r\n\r\n", b"HTTP/1.1 200"),
    ] {
        let large = "x".repeat(length);
        let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: {large}{end}");
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, expected, "{length} {end:?}");
    }
}

#[tokio::test]
async fn connections_over_the_limit_wait_until_one_ends() {
    let (address, open) = serve(&ServerConfig {
        connections_max: 1,
        ..config()
    })
    .await;
    let mut first = TcpStream::connect(address).await.unwrap();
    ask(&mut first).await;
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(REQUEST).await.unwrap();
    // The first one is still served, and the server had time to accept the second one.
    for _ in 0..10 {
        ask(&mut first).await;
    }
    assert_eq!(
        second.try_read(&mut [0; 1]).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    assert_eq!(open.count(), 1);
    drop(first);
    let mut status = [0; 15];
    second.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn http2_without_an_upgrade_is_spoken() {
    let (address, _) = serve(&config()).await;
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .unwrap();
    let answer = client
        .get(format!("http://{address}/"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    assert_eq!(answer.text().await.unwrap(), ANSWER);
}
