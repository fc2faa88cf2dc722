//! The fixture of contract tests: a fresh store, a way to let time pass, and shorthand for the store's operations.
//!
//! `memory:` and `file:` run on a stopped clock that [`Fixture::advance`] moves forward; with Redis, tests really wait. So tests
//! use leases that are either [`LONG`] (outlast the test) or [`SHORT`] (expire within [`Fixture::outlast`]).

mod answers;
mod claims;
mod on_cluster;
mod on_quorum;
mod on_sentinels;
mod operations;
mod waiter;

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::LockName;
use leasehold::store::file::FileStore;
use leasehold::store::memory::MemoryStore;
use leasehold::store::quorum::QuorumStore;
use leasehold::store::{Deadlines, LockStore, TOMBSTONE_TTL};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::certificates::Authority;
use super::cluster::BorrowedCluster;
use super::recording_listener::RecordingListener;
use super::redis_server::{Persistence, RedisOptions, RedisServer};
use super::sentinels::Sentinels;
use super::{eventually, stores};
pub(crate) use answers::{
    assert_behind_waiters, assert_held, assert_waiting, blocker, claim_mismatch, ended,
    holders_in_the_way, is_held, leases_granted, limit_mismatch, lost, not_holder, only,
    upgrade_mismatch,
};
pub(crate) use claims::{
    READ, at_depth, claim, claim_on, claim_on_all, for_short, fresh_name, hold_count, in_mode,
    lock_of, metadata, name, names, owned_by, owner, permits, reader, rival, ttl,
};
use on_quorum::QuorumNodes;
pub(crate) use on_quorum::unused_quorum;
pub(crate) use waiter::Waiter;

/// A time that outlasts every test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A time that a test can wait for.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

/// How much longer than intended a step of a test may take on a busy machine. Much less than [`LONG`].
const BUSY: Duration = Duration::from_secs(10);

/// The tolerance for rounding to whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

/// The timeout of one operation.
const DEADLINE: Duration = Duration::from_secs(10);

/// How often a process checks its Redis: as often as a service does by default.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// The number of databases of the shared Redis: one for each fixture.
const DATABASES: u16 = 2_500;

/// The store under test, as one process uses it.
pub(crate) struct Fixture {
    store: Arc<dyn LockStore>,
    listener: Arc<RecordingListener>,
    redis: Option<FixtureRedis>,
    /// The cluster of the store; `redis` is its first node.
    cluster: Option<BorrowedCluster>,
    /// The directory of the store, removed with the fixture.
    directory: Option<TempDir>,
    /// The store, if it is a quorum.
    quorum: Option<Arc<QuorumStore>>,
    /// The nodes of a quorum of Redis; `redis` is the first of them.
    nodes: Option<QuorumNodes>,
}

/// Some Sentinels, and who signed their certificates, if they have some.
type NamedBy = (Sentinels, Option<Authority>);

/// The Redis of a fixture.
#[derive(Clone, Copy)]
pub(crate) struct FixtureRedis {
    /// Shared by all fixtures of this test process.
    pub(crate) server: &'static RedisServer,
    /// This fixture's own.
    pub(crate) database: u16,
    /// What names it, if it is found by Sentinels.
    watching: Option<&'static NamedBy>,
    /// How many replicas confirm what is reported.
    replicas: usize,
}

impl FixtureRedis {
    /// A database that no test has used yet.
    pub(crate) async fn unused() -> Self {
        static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
        static NEXT_DATABASE: AtomicU16 = AtomicU16::new(0);
        let options = RedisOptions {
            persistence: Persistence::Nothing,
            databases: DATABASES,
            ..RedisOptions::default()
        };
        let server = SERVER.get_or_init(|| RedisServer::start(options)).await;
        Self {
            server,
            database: NEXT_DATABASE.fetch_add(1, Ordering::Relaxed),
            watching: None,
            replicas: 0,
        }
    }

    /// Opens the store of one process.
    pub(crate) async fn store(self) -> Arc<dyn LockStore> {
        let config = config_for(self.replicas);
        let store = match self.watching {
            None => stores::redis_store(&self.server.database(self.database), &config).await,
            Some((sentinels, authority)) => {
                let tls = authority.as_ref().map(Authority::trusted);
                let tls = tls.unwrap_or_default();
                let address = sentinels.database(self.database);
                stores::sentinel_store(&address, &RedisConfig { tls, ..config }).await
            }
        };
        store.expect("the store opens on a Redis that is as it should be")
    }
}

/// The settings of a process: hundreds of tests connect at the same time.
fn config_for(replicas: usize) -> RedisConfig {
    RedisConfig {
        connect_timeout: DEADLINE,
        wait_timeout: BUSY / 2,
        ..stores::confirmed_by(replicas)
    }
}

/// Checks a store as long as it is used, as a service does. Without checks, the process would stop using its connections
/// every five seconds, and what it is reporting at that moment would have an unknown outcome.
async fn check_while_used(store: Weak<dyn LockStore>) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let Some(store) = store.upgrade() else { return };
        store.refresh_health().await;
    }
}

impl Fixture {
    /// A fresh store in a directory of its own. The runtime's clock must be stopped.
    pub(crate) async fn file() -> Self {
        Self::on_directory(stores::directory()).await
    }

    /// The same store after a restart. The runtime's clock stands still meanwhile, and the system's goes on.
    pub(crate) async fn restarted(self) -> Self {
        self.store.close().await;
        let directory = self.directory.expect("the store has a directory");
        Self::on_directory(directory).await
    }

    async fn on_directory(directory: TempDir) -> Self {
        let store = FileStore::open(directory.path(), 100_000).await;
        let store = store.expect("no other process uses the directory");
        Self {
            directory: Some(directory),
            ..Self::on(Arc::new(store), None)
        }
    }

    /// A fresh embedded store. The runtime's clock must be stopped.
    pub(crate) async fn memory() -> Self {
        Self::on(Arc::new(MemoryStore::new(100_000)), None)
    }

    /// A Redis store on its own database, in the Redis that all fixtures of this test process share.
    pub(crate) async fn redis() -> Self {
        Self::on_redis(FixtureRedis::unused().await).await
    }

    /// A Redis store on a Redis that no other test uses.
    pub(crate) async fn redis_alone() -> Self {
        let server = RedisServer::start(RedisOptions::forgetful()).await;
        // It ends with the process of the tests.
        Self::on_server(Box::leak(Box::new(server)), 0).await
    }

    /// A Redis store on a database of a Redis.
    pub(crate) async fn on_server(server: &'static RedisServer, database: u16) -> Self {
        Self::on_redis(FixtureRedis {
            server,
            database,
            watching: None,
            replicas: 0,
        })
        .await
    }

    /// Another process on the same Redis.
    pub(crate) async fn another_process(&self) -> Self {
        match (&self.cluster, &self.nodes) {
            (Some(borrowed), _) => Self::on_cluster(borrowed.clone()).await,
            (None, Some(nodes)) => Self::on_nodes(nodes.of_redis()).await,
            (None, None) => Self::on_redis(self.redis_behind()).await,
        }
    }

    async fn on_redis(redis: FixtureRedis) -> Self {
        let fixture = Self::on(redis.store().await, Some(redis));
        // Until a process has subscribed and looked for other subscribers, it assumes that one of them wants events.
        fixture.listens().await;
        fixture
    }

    pub(crate) fn on(store: Arc<dyn LockStore>, redis: Option<FixtureRedis>) -> Self {
        let listener = Arc::new(RecordingListener::default());
        store.set_listener(Arc::clone(&listener) as _);
        if redis.is_some() {
            tokio::spawn(check_while_used(Arc::downgrade(&store)));
        }
        Self {
            store,
            listener,
            redis,
            cluster: None,
            directory: None,
            quorum: None,
            nodes: None,
        }
    }

    /// The store itself.
    pub(crate) fn store(&self) -> Arc<dyn LockStore> {
        Arc::clone(&self.store)
    }

    /// The Redis behind the store, for tests of what is kept there.
    pub(crate) fn redis_behind(&self) -> FixtureRedis {
        self.redis.expect("this test is for Redis only")
    }

    /// Waits until this process is subscribed, so that it receives every message from now on.
    pub(crate) async fn listens(&self) {
        if self.redis.is_some() {
            let subscriptions = self.nodes.as_ref().map_or(1, QuorumNodes::count);
            eventually("the process is subscribed", async || {
                (self.listener.missed() >= subscriptions).then_some(())
            })
            .await;
        }
    }

    /// What this process has received so far. Recent messages may still be in flight.
    pub(crate) fn listener(&self) -> &RecordingListener {
        &self.listener
    }

    /// What this process has received, after all messages published so far have arrived.
    pub(crate) async fn received(&self) -> &RecordingListener {
        if let Some(borrowed) = &self.cluster {
            // The messages of one node arrive in order.
            for node in &borrowed.cluster().nodes {
                let last = fresh_name();
                let words = ["PUBLISH", "lh:1:evictions:0", last.as_str()];
                node.command(&words).await;
                eventually("a message arrives", async || {
                    (self.listener.evictions_of(&last) > 0).then_some(())
                })
                .await;
            }
            return &self.listener;
        }
        self.settled().await;
        // The messages to one process arrive in order. So once the reservation of an otherwise unused lock has arrived,
        // all earlier messages have. Evicted, because the answer to a release may carry the reservation instead.
        let last = claim();
        self.granted(&last).await;
        let waiter = self.waiting(&rival(&last)).await;
        self.evict(lock_of(&last), "").await;
        eventually("a reservation arrives", async || {
            (self.listener.reservations_of(lock_of(&last)) > 0).then_some(())
        })
        .await;
        self.release(&waiter.claim).await;
        &self.listener
    }

    /// How often the lock was reserved for this process so far.
    pub(crate) async fn reservations_of(&self, name: &LockName) -> usize {
        self.received().await.reservations_of(name)
    }

    /// Lets time pass.
    pub(crate) async fn advance(&self, by: Duration) {
        match self.redis {
            None => tokio::time::advance(by).await,
            // Not a synchronisation: the passing of time is what the test is about.
            Some(_) => tokio::time::sleep(by).await,
        }
    }

    /// How much time passes during [`forget`](Self::forget).
    pub(crate) fn forgetting_takes(&self) -> Duration {
        match self.redis {
            None => TOMBSTONE_TTL,
            Some(_) => Duration::ZERO,
        }
    }

    /// Lets the tombstones of all claims on a lock expire. In Redis they are deleted: a minute is too long to wait.
    pub(crate) async fn forget(&self, name: &LockName) {
        let Some(redis) = self.redis else {
            return self.advance(TOMBSTONE_TTL).await;
        };
        if let Some(borrowed) = &self.cluster {
            // Those of other locks would have expired, too.
            return borrowed.cluster().delete("lh:1:{*}:e:*").await;
        }
        let tombstones = format!("lh:1:{{{}}}:e:*", name.bucket().index());
        let of_nodes = self.nodes.as_ref().map(QuorumNodes::of_redis);
        for redis in of_nodes.into_iter().flatten().chain([redis]) {
            for key in redis.server.keys(redis.database, &tombstones).await {
                let expire = [b"DEL", &key[..]];
                redis.server.command_in(redis.database, &expire).await;
            }
        }
    }

    /// The longest remaining lifetime of a key of this lock, without the fencing counter. The fixture must have no
    /// other lock in that bucket.
    pub(crate) async fn longest_kept(&self, name: &LockName) -> Duration {
        let redis = self.redis_behind();
        let pattern = format!("lh:1:{{{}}}:*", name.bucket().index());
        let mut longest_ms = 0;
        for key in redis.server.keys(redis.database, &pattern).await {
            longest_ms = longest_ms.max(redis.server.kept_ms(redis.database, &key).await);
        }
        Duration::from_millis(longest_ms.unsigned_abs())
    }

    /// Lets slightly more than `duration` pass.
    pub(crate) async fn outlast(&self, duration: Duration) {
        // Redis counts in whole milliseconds.
        self.advance(duration + Duration::from_millis(20)).await;
    }
}

/// The deadline of an operation that starts now.
pub(crate) fn deadline() -> Instant {
    Instant::now() + DEADLINE
}

/// The deadlines of an operation of many steps that starts now.
pub(crate) fn deadlines() -> Deadlines {
    Deadlines {
        step: DEADLINE,
        end: deadline(),
    }
}
