//! What is found at the address of the store and cannot be used, at the start and later.

use std::net::SocketAddr;

use leasehold::config::RedisAddress;
use leasehold::store::Fault;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{Replica, durable_redis, forgetful_redis, lasting};
use crate::support::fixture::claim;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{eventually, stores};

/// What the opening of a store reports, if it is refused. A server that is slow to answer is asked again, because the
/// machine may be busy.
async fn refusal(address: &RedisAddress) -> (Fault, String) {
    eventually(
        "the server is refused for what it is",
        async || match stores::redis_store(address, &stores::redis_config()).await {
            Err(error) if matches!(error.fault(), Fault::Timeout | Fault::Io) => None,
            Err(error) => Some((error.fault(), error.detail().to_owned())),
            Ok(store) => panic!("it must be refused: {:?}", store.health()),
        },
    )
    .await
}

/// A server that takes everything for HTTP.
async fn web_server() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    let serving = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut request = [0; 512];
            let _ = client.read(&mut request).await;
            let answer = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n";
            let _ = client.write_all(answer).await;
        }
    });
    (address, serving)
}

#[tokio::test]
async fn a_server_that_is_no_redis_is_recognised() {
    let (address, serving) = web_server().await;
    let address = RedisAddress {
        host: address.ip().to_string(),
        port: address.port(),
        database: 0,
        is_encrypted: false,
    };
    let (fault, why) = refusal(&address).await;
    assert_eq!(fault, Fault::Protocol, "{why}");
    assert!(why.contains("not answer like a Redis server"), "{why}");
    serving.abort();
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused() {
    let server = RedisServer::start(RedisOptions {
        is_cluster_node: true,
        ..RedisOptions::forgetful()
    })
    .await;
    let (fault, why) = refusal(&server.database(0)).await;
    assert_eq!(fault, Fault::Cluster, "{why}");
    assert!(why.contains("node of a Redis Cluster"), "{why}");
}

#[tokio::test]
async fn a_redis_that_is_demoted_is_reported_as_a_replica_until_it_is_a_primary_again() {
    let (server, primary) = (durable_redis().await, forgetful_redis().await);
    let replica = Replica::open(&server.database(0)).await;
    replica.granted(&lasting(claim())).await;
    let primary = primary.database(0);
    let port = primary.port.to_string();
    server.command(&["REPLICAOF", "127.0.0.1", &port]).await;
    eventually("it is noticed", async || {
        let refused = replica.service.store_health().refused?;
        refused.contains("role is slave").then_some(())
    })
    .await;
    let answer = replica.acquire(&lasting(claim())).await;
    assert_eq!(
        answer.err().map(|error| error.fault()),
        Some(Fault::Replica)
    );
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    eventually("it grants again", async || {
        replica.acquire(&lasting(claim())).await.ok()
    })
    .await;
}

/// The process keeps the connections that it has until it has opened none for five seconds.
#[tokio::test]
async fn a_redis_with_too_many_clients_is_named_as_such_until_there_is_room() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let client = redis::Client::open(format!("redis://{}", server.address()));
    let client = client.expect("an address");
    let control = client.get_multiplexed_async_connection().await;
    let mut control = control.expect("there is room");
    let mut admit = async |clients: u32| {
        let mut limit = redis::cmd("CONFIG");
        limit.arg("SET").arg("maxclients").arg(clients);
        let limited = limit.exec_async(&mut control).await;
        limited.expect("Redis takes the limit");
    };
    admit(1).await;
    let why = eventually("it is noticed", async || {
        replica.service.store_health().trouble
    })
    .await;
    assert!(why.contains("as its maxclients admits"), "{why}");
    admit(1_000).await;
    eventually("it grants again", async || {
        replica.acquire(&lasting(claim())).await.ok()
    })
    .await;
}
