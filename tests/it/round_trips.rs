//! What an operation costs Redis: one command, on a socket that it shares with others.

use std::sync::Arc;

use leasehold::domain::Attempt;
use leasehold::store::LockStore;
use tokio::time::Instant;

use crate::support::bench::claim;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::stores;

const ROUNDS: usize = 200;

/// How often Redis was sent each of its commands since the last reset, by their names.
async fn sent(redis: &RedisServer, command: &str) -> usize {
    let field = format!("cmdstat_{command}");
    let found = redis.info_if_any("commandstats", &field).await;
    let calls = found
        .as_deref()
        .and_then(|line| line.strip_prefix("calls="));
    calls
        .and_then(|calls| calls.split(',').next())
        .map_or(0, |calls| calls.parse().unwrap())
}

async fn store(redis: &RedisServer) -> Arc<dyn LockStore> {
    stores::redis_store(&redis.database(0), &stores::redis_config())
        .await
        .unwrap()
}

/// One life of a lease: three operations.
async fn live(store: &dyn LockStore) {
    let (claim, deadline) = (claim(), Instant::now() + stores::OPERATION_TIMEOUT);
    store
        .acquire(&claim, Attempt::random(), deadline)
        .await
        .unwrap();
    store
        .renew(&claim.name, claim.token, None, deadline)
        .await
        .unwrap();
    store
        .release(&claim.name, claim.token, None, deadline)
        .await
        .unwrap();
}

/// Once Redis knows the scripts, and short of the surveys, which nobody runs here.
#[tokio::test]
async fn an_operation_is_one_command() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = store(&redis).await;
    live(&*store).await;
    redis.command(&["CONFIG", "RESETSTAT"]).await;
    for _ in 0..ROUNDS {
        live(&*store).await;
    }
    assert_eq!(sent(&redis, "evalsha").await, 3 * ROUNDS);
    for other in [
        "eval",
        "ping",
        "script|load",
        "select",
        "hello",
        "auth",
        "multi",
        "wait",
    ] {
        assert_eq!(sent(&redis, other).await, 0, "{other}");
    }
}

/// The pool may open a few sockets, and never one for each request.
#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_few_sockets() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = store(&redis).await;
    futures_util::future::join_all((0..ROUNDS).map(|_| live(&*store))).await;
    let open = redis.connections().await;
    assert!(
        open <= stores::redis_config().connections,
        "{open} sockets for {ROUNDS} requests at a time"
    );
}
