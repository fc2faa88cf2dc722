//! Request heads that do not arrive, first and later ones, and connections whose protocol stays undecided.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use leasehold::config::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{is_answered, serve};
use crate::sockets::config;
use crate::support::http2::{HEADERS, Http2};
use crate::support::{EFFECT_TIMEOUT, eventually};

fn app() -> Router {
    Router::new().route("/", get("here you are"))
}

/// All other timeouts are an hour.
#[tokio::test]
async fn every_head_has_a_deadline_not_only_the_first() {
    let config = ServerConfig {
        header_read_timeout: Duration::from_millis(100),
        idle_timeout: Duration::from_secs(3_600),
        ..config()
    };
    let (address, open) = serve(&config, app()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert!(is_answered(&mut stream, 200).await);
    stream.write_all(b"GET / HTT").await.unwrap();
    eventually("the connection is closed", async || {
        (open.count() == 0).then_some(())
    })
    .await;
}

/// The deadline of a head counts from its first byte.
#[tokio::test]
async fn a_kept_connection_may_be_silent_for_longer_than_a_head_may_take() {
    let config = ServerConfig {
        header_read_timeout: Duration::from_millis(100),
        ..config()
    };
    let (address, _) = serve(&config, app()).await;
    let mut kept = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        assert!(is_answered(&mut kept, 200).await);
        let mut rest = vec![0; 4096];
        // The rest of the response, and then nothing for three times as long.
        while timeout(Duration::from_millis(300), kept.read(&mut rest))
            .await
            .is_ok()
        {}
    }
}

#[tokio::test]
async fn a_preface_in_pieces_is_understood() {
    let (address, _) = serve(&config(), app()).await;
    for cut in [1, 3, 14, 23] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        stream.write_all(&preface[..cut]).await.unwrap();
        // A response on another connection shows that the server has read the piece.
        let mut other = TcpStream::connect(address).await.unwrap();
        assert!(is_answered(&mut other, 200).await);
        stream.write_all(&preface[cut..]).await.unwrap();
        // An empty SETTINGS frame, and a request for `/` by the static table.
        stream
            .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
            .await
            .unwrap();
        let head = [0x82, 0x86, 0x84];
        stream
            .write_all(&[0, 0, 3, 1, 5, 0, 0, 0, 1])
            .await
            .unwrap();
        stream.write_all(&head).await.unwrap();
        let mut received = Vec::new();
        while !received.windows(12).any(|part| part == b"here you are") {
            let count = timeout(EFFECT_TIMEOUT, stream.read_buf(&mut received)).await;
            assert_ne!(count.unwrap().unwrap(), 0, "the connection ended early");
        }
    }
}

/// `PUT` and `POST` begin like the preface, and the bytes that were read belong to the request.
#[tokio::test]
async fn a_method_in_pieces_that_begins_like_the_preface_is_understood() {
    let app = Router::new().route("/", get("got").post("posted").put("put"));
    let (address, _) = serve(&config(), app).await;
    for method in ["POST", "PUT", "PRI"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"P").await.unwrap();
        let mut other = TcpStream::connect(address).await.unwrap();
        assert!(is_answered(&mut other, 200).await);
        let rest = format!(
            "{} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            &method[1..]
        );
        stream.write_all(rest.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let expected = match method {
            "PRI" => "HTTP/1.1 405",
            _ => "HTTP/1.1 200",
        };
        assert!(answer.starts_with(expected), "{method}: {answer}");
    }
}

/// For both protocols; hyper enforces it for HTTP/1.1.
#[tokio::test]
async fn a_head_has_at_most_a_hundred_headers_over_either_protocol() {
    let (address, _) = serve(&config(), app()).await;
    let http1 = reqwest::Client::builder().http1_only();
    let http2 = reqwest::Client::builder().http2_prior_knowledge();
    // In addition to the client's own headers: Accept, and over HTTP/1.1 Host.
    for (client, own) in [(http1, 2), (http2, 1)] {
        let client = client.build().unwrap();
        for (headers, status) in [(100, 200), (101, 431)] {
            let request = client.get(format!("http://{address}/"));
            let request = (own..headers).fold(request, |request, number| {
                request.header(format!("x-{number}"), "1")
            });
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{headers} {own}");
            let body = answer.text().await.unwrap();
            let expected = if status == 200 { "here you are" } else { "" };
            assert_eq!(body, expected);
        }
    }
}

/// The client answers PINGs, which keeps the connection alive, but sends no request.
#[tokio::test]
async fn a_connection_of_http_2_that_asks_for_nothing_is_closed() {
    let config = ServerConfig {
        header_read_timeout: Duration::from_millis(100),
        idle_timeout: Duration::from_millis(100),
        ..config()
    };
    let (address, open) = serve(&config, app()).await;
    let mut client = Http2::open(address, 65_535).await.unwrap();
    client.ask("GET", "/").await.unwrap();
    while client.next().await.unwrap().kind != HEADERS {}
    while timeout(EFFECT_TIMEOUT, client.next())
        .await
        .expect("it is closed")
        .is_ok()
    {}
    assert_eq!(open.count(), 0);
}
