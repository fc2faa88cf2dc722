//! TLS to Redis: what is trusted, and what is reported if there is no connection.

use std::sync::Arc;

use leasehold::config::{RedisAddress, RedisConfig, RedisTls, Secret};
use leasehold::store::{Fault, LockStore};

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
    match stores::redis_store(address, config).await {
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
    let why = refusal(&address, &with(tls.clone())).await;
    assert!(why.contains("requires a certificate"), "{why}");
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
