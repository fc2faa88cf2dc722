//! TLS to Redis: what is trusted, and what is reported if there is no connection.

use std::sync::Arc;

use leasehold::config::{
    ClusterAddress, RedisAddress, RedisConfig, RedisTls, Secret, SentinelAddress,
};
use leasehold::store::{Fault, LockStore, StoreError};

use super::{Replica, forgetful_redis, lasting};
use crate::support::certificates::Authority;
use crate::support::fixture::claim;
use crate::support::redis_server::{RedisOptions, RedisServer, TlsFiles};
use crate::support::stores;

const HOST: &str = "127.0.0.1";

async fn server(files: TlsFiles) -> RedisServer {
    RedisServer::start(RedisOptions {
        tls: Some(files),
        ..RedisOptions::forgetful()
    })
    .await
}

fn with(tls: RedisTls) -> RedisConfig {
    RedisConfig {
        tls,
        ..stores::redis_config()
    }
}

async fn opened(address: &RedisAddress, config: &RedisConfig) -> Arc<dyn LockStore> {
    let store = stores::redis_store(address, config).await;
    store.expect("there is a connection")
}

/// Why a store cannot be opened.
async fn refusal(address: &RedisAddress, config: &RedisConfig) -> String {
    why_refused(stores::redis_store(address, config).await)
}

fn why_refused(opened: Result<Arc<dyn LockStore>, StoreError>) -> String {
    match opened {
        Err(error) => {
            assert_eq!(error.fault(), Fault::Tls, "{error}");
            error.detail().to_owned()
        }
        Ok(store) => panic!("it is refused, but {:?}", store.health().trouble),
    }
}

#[tokio::test]
async fn commands_and_messages_travel_over_tls() {
    let authority = Authority::new();
    let server = server(authority.files_for(HOST)).await;
    let (address, config) = (server.encrypted_database(0), with(authority.trusted()));
    let holder = Replica::on(opened(&address, &config).await);
    let other = Replica::on(opened(&address, &config).await);
    super::all_listen(&server, 2).await;
    super::assert_hands_over(&holder, &other).await;
    let findings = other.service.store_health().findings;
    assert!(findings.iter().all(|found| found.is_fine), "{findings:?}");
}

#[tokio::test]
async fn a_password_without_a_user_works_over_tls() {
    let authority = Authority::new();
    let server = server(authority.files_for(HOST)).await;
    server
        .command(&["CONFIG", "SET", "requirepass", "secret"])
        .await;
    let config = RedisConfig {
        password: Some(Secret::new("secret")),
        ..with(authority.trusted())
    };
    let replica = Replica::on(opened(&server.encrypted_database(0), &config).await);
    replica.granted(&lasting(claim())).await;
}

#[tokio::test]
async fn a_certificate_that_cannot_be_verified_is_refused_with_the_reason() {
    let (authority, other) = (Authority::new(), Authority::new());
    let fine = server(authority.files_for(HOST)).await;
    let why = refusal(&fine.encrypted_database(0), &with(other.trusted())).await;
    assert!(why.contains("redis.tls_ca_file"), "{why}");

    let expired = server(authority.expired_files_for(HOST)).await;
    let why = refusal(&expired.encrypted_database(0), &with(authority.trusted())).await;
    assert!(why.contains("has expired"), "{why}");

    let elsewhere = server(authority.files_for("redis.example")).await;
    let (address, mut tls) = (elsewhere.encrypted_database(0), authority.trusted());
    let why = refusal(&address, &with(tls.clone())).await;
    assert!(why.contains("redis.tls_server_name"), "{why}");
    tls.server_name = "redis.example".try_into().ok();
    let replica = Replica::on(opened(&address, &with(tls)).await);
    replica.granted(&lasting(claim())).await;
}

#[tokio::test]
async fn a_redis_that_wants_a_certificate_gets_the_configured_one() {
    let (authority, other) = (Authority::new(), Authority::new());
    let files = TlsFiles {
        wants_certificate: true,
        ..authority.files_for(HOST)
    };
    let server = server(files).await;
    let (address, mut tls) = (server.encrypted_database(0), authority.trusted());
    for version in ["TLSv1.2", "TLSv1.3"] {
        server
            .command(&["CONFIG", "SET", "tls-protocols", version])
            .await;
        let why = refusal(&address, &with(tls.clone())).await;
        assert!(why.contains("requires a certificate"), "{version}: {why}");
    }
    tls.identity = Some(other.identity());
    let why = refusal(&address, &with(tls.clone())).await;
    assert!(why.contains("refuses the certificate"), "{why}");
    tls.identity = Some(authority.identity());
    let replica = Replica::on(opened(&address, &with(tls)).await);
    replica.granted(&lasting(claim())).await;
}

#[tokio::test]
async fn tls_on_one_side_only_is_recognised() {
    let authority = Authority::new();
    let server = server(authority.files_for(HOST)).await;
    let encrypted = server.encrypted_database(0);
    let plain = RedisAddress {
        is_encrypted: false,
        ..encrypted
    };
    let why = refusal(&plain, &stores::redis_config()).await;
    assert!(why.contains("expects TLS"), "{why}");

    let plain = forgetful_redis().await;
    let address = RedisAddress {
        is_encrypted: true,
        ..plain.database(0)
    };
    let why = refusal(&address, &with(authority.trusted())).await;
    assert!(why.contains("without TLS"), "{why}");
}

/// Nobody waits for an answer of theirs for as long as for a connection.
#[tokio::test]
async fn a_sentinel_and_a_node_of_a_cluster_without_tls_are_recognised() {
    let (plain, config) = (forgetful_redis().await, with(Authority::new().trusted()));
    let places = vec![(HOST.to_owned(), plain.port())];
    let sentinels = SentinelAddress {
        sentinels: places.clone(),
        primary: "locks".to_owned(),
        database: 0,
        is_encrypted: true,
    };
    let cluster = ClusterAddress {
        nodes: places,
        is_encrypted: true,
    };
    for opened in [
        stores::sentinel_store(&sentinels, &config).await,
        stores::cluster_store(&cluster, &config).await,
    ] {
        let why = why_refused(opened);
        assert!(why.contains("without TLS"), "{why}");
    }
}

/// As of a self-signed certificate, which is made for an authority unless one says otherwise.
#[tokio::test]
async fn the_certificate_of_an_authority_is_named_as_such() {
    let authority = Authority::new();
    let server = server(authority.authority_files_for(HOST)).await;
    let why = refusal(&server.encrypted_database(0), &with(authority.trusted())).await;
    assert!(why.contains("CA:TRUE"), "{why}");
}
