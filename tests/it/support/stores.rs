//! Opens stores and services for tests. Only this file knows how a store is constructed.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::config::{
    ClusterAddress, QuorumNode, RedisAddress, RedisConfig, RedisTls, SentinelAddress, WaitingConfig,
};
use leasehold::domain::Claim;
use leasehold::limits::Gate;
use leasehold::service::metrics::LockMetrics;
use leasehold::service::{Hold, LockService};
use leasehold::store::assignment::AssignFences;
use leasehold::store::memory::MemoryStore;
use leasehold::store::quorum::{Drift, QuorumStore};
use leasehold::store::redis::RedisStore;
use leasehold::store::state::StoreTime;
use leasehold::store::{LockStore, StoreError};
use leasehold::telemetry::Metrics;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// The timeout of one store operation in the tests of faults, long enough for a busy machine.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(2);

/// How many connections to Redis a store opens in tests.
pub(crate) const CONNECTIONS: usize = 4;

/// How many connections to Redis a process has in tests: those of the pool, the subscriber's, and briefly that of a
/// check.
pub(crate) const CONNECTIONS_IN_ALL: usize = CONNECTIONS + 2;

/// The longest lease that may have been granted before a store was opened.
const LEASE_MAX: Duration = Duration::from_secs(3600);

/// The settings of a Redis store in tests: few connections, short intervals, nothing overridden.
pub(crate) fn redis_config() -> RedisConfig {
    RedisConfig {
        connections: CONNECTIONS,
        connect_timeout: Duration::from_millis(500),
        username: None,
        password: None,
        sentinel_username: None,
        sentinel_password: None,
        tls: RedisTls::default(),
        accept_eviction_policy: None,
        grace_on_empty_start: false,
        check_interval: Duration::from_millis(200),
        wait_replicas: 0,
        wait_timeout: Duration::from_millis(500),
    }
}

/// The same, where this number of replicas has to confirm what is reported.
pub(crate) fn confirmed_by(replicas: usize) -> RedisConfig {
    RedisConfig {
        wait_replicas: replicas,
        ..redis_config()
    }
}

/// Opens the Redis store at an address.
pub(crate) async fn redis_store(
    address: &RedisAddress,
    config: &RedisConfig,
) -> Result<Arc<dyn LockStore>, StoreError> {
    let store = RedisStore::open(address, config, LEASE_MAX).await?;
    Ok(Arc::new(store))
}

/// Opens the Redis store that Sentinels name.
pub(crate) async fn sentinel_store(
    address: &SentinelAddress,
    config: &RedisConfig,
) -> Result<Arc<dyn LockStore>, StoreError> {
    let store = RedisStore::open_by_sentinels(address, config, LEASE_MAX).await?;
    Ok(Arc::new(store))
}

/// Opens a quorum of Redis nodes.
pub(crate) async fn quorum_store(nodes: &[RedisAddress]) -> QuorumStore {
    let nodes: Vec<_> = nodes.iter().cloned().map(QuorumNode::Redis).collect();
    quorum_of(&nodes, &redis_config()).await
}

/// The same with nodes of any kind.
pub(crate) async fn quorum_of(nodes: &[QuorumNode], config: &RedisConfig) -> QuorumStore {
    let opened = RedisStore::open_nodes(nodes, config, LEASE_MAX).await;
    let opened = opened.expect("the certificates can be used").into_iter();
    let nodes = opened.map(|(store, problem)| -> Arc<dyn AssignFences> {
        assert!(problem.is_none(), "{problem:?}");
        Arc::new(store)
    });
    QuorumStore::new(nodes.collect(), Drift::per_thousand(10))
}

/// Opens the store of a Redis Cluster.
pub(crate) async fn cluster_store(
    address: &ClusterAddress,
    config: &RedisConfig,
) -> Result<Arc<dyn LockStore>, StoreError> {
    let store = RedisStore::open_cluster(address, config, LEASE_MAX).await?;
    Ok(Arc::new(store))
}

/// An empty directory for a file store, on a real disk.
pub(crate) fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made")
}

/// Three embedded stores whose clocks differ by microseconds within one millisecond, so that they propose different
/// fencing tokens and show the same times.
pub(crate) fn nodes() -> Vec<Arc<dyn AssignFences>> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let millis = since_1970.expect("it is after 1970").as_millis();
    let now_us = u64::try_from(millis).expect("it is not that late") * 1_000;
    let node = |ahead_us| -> Arc<dyn AssignFences> {
        let now = StoreTime::from_unix_us(now_us + ahead_us);
        Arc::new(MemoryStore::starting_at(100_000, now))
    };
    [200, 100, 300].map(node).into()
}

/// How a service waits in tests: it polls often, so that a lost message causes only a short delay.
pub(crate) fn waiting_config() -> WaitingConfig {
    WaitingConfig {
        wait_max: Duration::from_secs(55),
        place_kept: Duration::from_secs(10),
        poll_interval: Duration::from_millis(200),
        waiters_per_lock_max: 10_000,
        waiters_max: 50_000,
        events_kept: 1_000,
    }
}

/// A service over a store, with [`OPERATION_TIMEOUT`].
pub(crate) fn service(store: Arc<dyn LockStore>) -> LockService {
    service_within(OPERATION_TIMEOUT, store)
}

/// A service over a store, with another timeout of operations.
pub(crate) fn service_within(timeout: Duration, store: Arc<dyn LockStore>) -> LockService {
    service_with(store, timeout, waiting_config(), &Metrics::default())
}

/// A service over a store. All services of the tests that run in the process of the tests are constructed here.
pub(crate) fn service_with(
    store: Arc<dyn LockStore>,
    timeout: Duration,
    waiting: WaitingConfig,
    metrics: &Metrics,
) -> LockService {
    let (metrics, draining) = (LockMetrics::new(metrics), CancellationToken::new());
    LockService::new(store, timeout, waiting, metrics, draining)
}

/// A stream that holds the locks of the claim. Nothing revokes it or limits its renewals.
pub(crate) fn stream_of(service: &LockService, claim: Arc<Claim>, wait: Option<Duration>) -> Hold {
    service.hold(claim, wait, pending(), (), Gate::new(usize::MAX))
}
