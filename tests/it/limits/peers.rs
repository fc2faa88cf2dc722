//! Limits per peer address, and the reserve for the others; whose address counts behind a proxy.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::get;
use futures_util::stream;
use leasehold::config::{AddressBlock, ServerConfig};
use leasehold::server::Peer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{connect_from, is_answered, peer, serve};
use crate::sockets::config;
use crate::support::EFFECT_TIMEOUT;
use crate::support::http2::{HEADERS, Http2};

fn app() -> Router {
    Router::new().route("/", get("here you are"))
}

/// Opens `count` connections and returns those that get a response.
async fn streams_with_answers(
    address: std::net::SocketAddr,
    from: u8,
    count: usize,
) -> Vec<TcpStream> {
    let mut answered = Vec::new();
    for _ in 0..count {
        let mut stream = connect_from(peer(from), address).await.unwrap();
        if is_answered(&mut stream, 200).await {
            answered.push(stream);
        }
    }
    answered
}

#[tokio::test]
async fn one_peer_cannot_have_more_connections_than_its_share() {
    let (address, open) = serve(
        &ServerConfig {
            connections_max: 8,
            connections_reserved: 0,
            ..config()
        },
        app(),
    )
    .await;
    let of_one = streams_with_answers(address, 1, 6).await;
    assert_eq!(of_one.len(), 4, "half of all");
    let of_another = streams_with_answers(address, 2, 3).await;
    assert_eq!(of_another.len(), 3);
    assert_eq!(open.count(), 7);
    drop(of_one);
    crate::support::eventually("there is room again", async || {
        (streams_with_answers(address, 1, 1).await.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_trusted_proxy_may_have_as_many_as_there_are() {
    let (address, _) = serve(
        &ServerConfig {
            connections_max: 8,
            connections_per_peer_max: Some(2),
            connections_reserved: 0,
            trusted_proxies: vec![AddressBlock::parse("127.0.0.2/31").unwrap()],
            ..config()
        },
        app(),
    )
    .await;
    assert_eq!(streams_with_answers(address, 1, 3).await.len(), 2);
    assert_eq!(streams_with_answers(address, 2, 5).await.len(), 5);
}

/// Without the reserve, two peers together would take all connections.
#[tokio::test]
async fn the_last_connections_are_reserved_for_peers_with_few() {
    let (address, _) = serve(
        &ServerConfig {
            connections_max: 16,
            connections_per_peer_max: Some(16),
            connections_reserved: 2,
            ..config()
        },
        app(),
    )
    .await;
    let greedy = streams_with_answers(address, 1, 20).await;
    assert_eq!(greedy.len(), 14);
    let late = streams_with_answers(address, 2, 1).await;
    assert_eq!(late.len(), 1, "a connection was kept for it");
}

/// The application sees which requests are over the limit, and refuses them.
#[tokio::test]
async fn one_peer_cannot_have_more_requests_than_its_share() {
    let answer = |request: Request| async move {
        let peer: &Peer = request.extensions().get().expect("the peer is there");
        if peer.over_limit().is_some() {
            return StatusCode::TOO_MANY_REQUESTS;
        }
        std::future::pending().await
    };
    let config = ServerConfig {
        requests_max: 4,
        ..config()
    };
    let (address, _) = serve(&config, Router::new().route("/", get(answer))).await;
    let mut client = Http2::open(address, 65_535).await.unwrap();
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(client.ask("GET", "/").await.unwrap());
    }
    let refused = async {
        loop {
            let frame = client.next().await.unwrap();
            if frame.kind == HEADERS {
                break frame.stream;
            }
        }
    };
    let refused = timeout(EFFECT_TIMEOUT, refused).await.expect("a refusal");
    assert_eq!(refused, asked[2], "half of four is two");
    // A cancelled request makes room for another one, as soon as the server has seen the reset.
    client.reset(asked[0]).await.unwrap();
    let is_let_in = async {
        loop {
            client.ask("GET", "/").await.unwrap();
            if timeout(Duration::from_millis(300), client.next())
                .await
                .is_err()
            {
                break;
            }
        }
    };
    timeout(EFFECT_TIMEOUT, is_let_in)
        .await
        .expect("there is room");
}

/// A proxy at [`PROXY`] says where its clients are.
fn behind_a_proxy() -> ServerConfig {
    ServerConfig {
        trusted_proxies: vec![AddressBlock::parse("127.0.0.2/31").unwrap()],
        forwarded_for: true,
        ..config()
    }
}

const PROXY: u8 = 2;

/// The peers that the application sees in the requests of one connection from that address, by their `X-Forwarded-For`.
async fn seen(config: &ServerConfig, from: u8, is_http2: bool, headers: &[&str]) -> Vec<String> {
    let whoami = |request: Request| async move {
        let peer: &Peer = request.extensions().get().expect("the peer is there");
        format!("{} {}", peer.address(), peer.is_trusted_proxy())
    };
    let (address, open) = serve(config, Router::new().route("/", get(whoami))).await;
    let mut client = reqwest::Client::builder().local_address(std::net::IpAddr::from(peer(from)));
    if is_http2 {
        client = client.http2_prior_knowledge();
    }
    let client = client.build().unwrap();
    let mut seen = Vec::new();
    for header in headers {
        let mut request = client.get(format!("http://{address}/"));
        for line in header.split('\n').filter(|line| !line.is_empty()) {
            request = request.header("x-forwarded-for", line);
        }
        seen.push(request.send().await.unwrap().text().await.unwrap());
        assert_eq!(open.count(), 1, "the connection is kept");
    }
    seen
}

#[tokio::test]
async fn a_named_proxy_says_for_each_request_where_its_client_is() {
    let headers = [
        "192.0.2.7",
        "203.0.113.9, 192.0.2.8",
        "203.0.113.9\n2001:db8::7, 127.0.0.3",
        // It may send requests of its own.
        "",
        "192.0.2.7, unknown",
    ];
    for is_http2 in [false, true] {
        let seen = seen(&behind_a_proxy(), PROXY, is_http2, &headers).await;
        let clients = ["192.0.2.7 false", "192.0.2.8 false", "2001:db8::7 false"];
        assert_eq!(seen[..3], clients);
        for proxy in &seen[3..] {
            assert!(proxy.starts_with("127.0.0.2:"), "{proxy}");
            assert!(proxy.ends_with(" true"), "{proxy}");
        }
    }
}

#[tokio::test]
async fn nobody_else_chooses_its_address() {
    let unbelieved = ServerConfig {
        forwarded_for: false,
        ..behind_a_proxy()
    };
    for (config, from, is_proxy) in [(behind_a_proxy(), 1, false), (unbelieved, PROXY, true)] {
        let seen = seen(&config, from, false, &["192.0.2.7", "127.0.0.3"]).await;
        for peer in seen {
            assert!(peer.starts_with(&format!("127.0.0.{from}:")), "{peer}");
            assert!(peer.ends_with(&format!(" {is_proxy}")), "{peer}");
        }
    }
}

/// A response that is not complete counts, though nothing of its request is kept.
#[tokio::test]
async fn each_client_of_a_named_proxy_has_its_own_share_of_the_requests() {
    let endless = |request: Request| async move {
        let peer: &Peer = request.extensions().get().expect("the peer is there");
        match peer.over_limit() {
            Some(_) => StatusCode::TOO_MANY_REQUESTS.into_response(),
            None => {
                Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()).into_response()
            }
        }
    };
    let config = ServerConfig {
        requests_max: 4,
        ..behind_a_proxy()
    };
    let (address, _) = serve(&config, Router::new().route("/", get(endless))).await;
    let mut answered = Vec::new();
    for (client, status) in [(7, 200), (7, 200), (7, 429), (8, 200), (8, 200), (8, 429)] {
        let mut stream = connect_from(peer(PROXY), address).await.unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.{client}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, format!("HTTP/1.1 {status}").as_bytes(), "{client}");
        answered.push(stream);
    }
}
