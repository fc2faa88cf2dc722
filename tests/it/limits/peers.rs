//! Limits per peer address, and the reserve for the others.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::get;
use leasehold::config::{AddressBlock, ServerConfig};
use leasehold::server::Peer;
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
