//! Where a law of the contract is put to the test: a fresh store, its way of letting time pass, and shorthand for
//! asking it.
//!
//! `memory:` runs on a stopped clock that [`Fixture::advance`] pushes forward; Redis really waits. So laws use leases
//! that are either [`LONG`] (never over within a law) or [`SHORT`] (over after [`Fixture::outlast`]).

mod answers;
mod asking;
mod claims;
mod waiter;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use leasehold::config::RedisConfig;
use leasehold::domain::LockName;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Deadlines, LockStore, TOMBSTONE_TTL};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::recording_listener::RecordingListener;
use super::redis_server::{Persistence, RedisOptions, RedisServer};
use super::{eventually, stores};
pub(crate) use answers::{
    assert_behind_waiters, assert_held, assert_waiting, blocker, contradicts_claim,
    contradicts_limit, contradicts_upgrade, ended, holders_in_the_way, is_held, leases_granted,
    lost, not_holder, only,
};
pub(crate) use claims::{
    READ, at_depth, claim, claim_on, claim_on_all, for_short, fresh_name, hold_count, in_mode,
    lock_of, metadata, name, names, owned_by, owner, permits, reader, rival, ttl,
};
pub(crate) use waiter::Waiter;

/// A time that is never over before the law is.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A time that a law can wait out.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

/// By how much more time than a law lets pass may pass on a machine that is busy. Much less than [`LONG`].
const BUSY: Duration = Duration::from_secs(10);

/// What rounding to whole milliseconds may change.
const ROUNDING: Duration = Duration::from_millis(1);

/// How long one operation may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// How many databases the shared Redis has: one for each fixture.
const DATABASES: u16 = 1_000;

/// A store to put to the test, as one process uses it.
pub(crate) struct Fixture {
    store: Arc<dyn LockStore>,
    ear: Arc<RecordingListener>,
    redis: Option<RedisBench>,
}

/// What is known of a fixture's Redis.
#[derive(Clone, Copy)]
pub(crate) struct RedisBench {
    /// Shared by all benches of this process.
    pub(crate) server: &'static RedisServer,
    /// This fixture's own.
    pub(crate) database: u16,
}

impl Fixture {
    /// A fresh embedded store. The runtime's clock must be stopped.
    pub(crate) async fn memory() -> Self {
        Self::on(Arc::new(MemoryStore::new(100_000)), None)
    }

    /// A Redis store on a database of its own, in the one Redis that all benches of this process share.
    pub(crate) async fn redis() -> Self {
        static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
        static NEXT_DATABASE: AtomicU16 = AtomicU16::new(0);
        let options = RedisOptions {
            persistence: Persistence::Nothing,
            databases: DATABASES,
            ..RedisOptions::default()
        };
        let server = SERVER.get_or_init(|| RedisServer::start(options)).await;
        let database = NEXT_DATABASE.fetch_add(1, Ordering::Relaxed);
        Self::on_redis(RedisBench { server, database }).await
    }

    /// Another process on the same Redis.
    pub(crate) async fn another_process(&self) -> Self {
        Self::on_redis(self.redis_behind()).await
    }

    async fn on_redis(redis: RedisBench) -> Self {
        let address = redis.server.database(redis.database);
        // Hundreds of laws connect at the same time.
        let config = RedisConfig {
            connect_timeout: DEADLINE,
            ..stores::redis_config()
        };
        let store = stores::redis_store(&address, &config)
            .await
            .expect("the store opens on a Redis that is as it should be");
        let fixture = Self::on(store, Some(redis));
        // Until it has listened and looked who else does, a process takes it that somebody wants events.
        fixture.listens().await;
        fixture
    }

    pub(crate) fn on(store: Arc<dyn LockStore>, redis: Option<RedisBench>) -> Self {
        let ear = Arc::new(RecordingListener::default());
        store.set_listener(Arc::clone(&ear) as _);
        Self { store, ear, redis }
    }

    /// The store itself.
    pub(crate) fn store(&self) -> Arc<dyn LockStore> {
        Arc::clone(&self.store)
    }

    /// The Redis behind the store, for laws about what is kept there.
    pub(crate) fn redis_behind(&self) -> RedisBench {
        self.redis.expect("this law is for Redis alone")
    }

    /// Waits until this process hears what is told from now on.
    pub(crate) async fn listens(&self) {
        if self.redis.is_some() {
            eventually("the process listens", async || {
                (self.ear.missed() > 0).then_some(())
            })
            .await;
        }
    }

    /// What this process has heard so far. What was told just now may still be on its way.
    pub(crate) fn ear(&self) -> &RecordingListener {
        &self.ear
    }

    /// What this process has heard of everything that was told so far.
    pub(crate) async fn heard(&self) -> &RecordingListener {
        // What is told to one process arrives in one order. So once the offer of a lock that is of no other use has
        // arrived, everything has that was told before. Evicted, because a released lock may be offered in the answer.
        let last = claim();
        self.granted(&last).await;
        let waiter = self.waiting(&rival(&last)).await;
        self.evict(lock_of(&last), "").await;
        eventually("an offer is heard of", async || {
            (self.ear.offers_of(lock_of(&last)) > 0).then_some(())
        })
        .await;
        self.release(&waiter.claim).await;
        &self.ear
    }

    /// How often the lock was offered to this process so far.
    pub(crate) async fn offers_of(&self, name: &LockName) -> usize {
        self.heard().await.offers_of(name)
    }

    /// Lets time pass.
    pub(crate) async fn advance(&self, by: Duration) {
        match self.redis {
            None => tokio::time::advance(by).await,
            // This is no synchronisation: the passing of time is what the law is about.
            Some(_) => tokio::time::sleep(by).await,
        }
    }

    /// How long it takes until [`forget`](Self::forget) has happened.
    pub(crate) fn forgetting_takes(&self) -> Duration {
        match self.redis {
            None => TOMBSTONE_TTL,
            Some(_) => Duration::ZERO,
        }
    }

    /// Lets the tombstones of all claims on a lock expire. Redis is helped, because nobody waits a minute for that.
    pub(crate) async fn forget(&self, name: &LockName) {
        let Some(redis) = self.redis else {
            return self.advance(TOMBSTONE_TTL).await;
        };
        let tombstones = format!("lh:1:{{{}}}:e:*", name.bucket().index());
        for key in redis.server.keys(redis.database, &tombstones).await {
            let expire = [b"DEL", &key[..]];
            redis.server.command_in(redis.database, &expire).await;
        }
    }

    /// For how long Redis keeps what it keeps longest of a lock, fencing counter aside. The fixture has no other lock of
    /// that bucket.
    pub(crate) async fn longest_kept(&self, name: &LockName) -> Duration {
        let redis = self.redis_behind();
        let pattern = format!("lh:1:{{{}}}:*", name.bucket().index());
        let mut longest_ms = 0;
        for key in redis.server.keys(redis.database, &pattern).await {
            longest_ms = longest_ms.max(redis.server.kept_ms(redis.database, &key).await);
        }
        Duration::from_millis(longest_ms.unsigned_abs())
    }

    /// Lets time pass until something that lasts `duration` from now is over.
    pub(crate) async fn outlast(&self, duration: Duration) {
        // Redis counts in whole milliseconds.
        self.advance(duration + Duration::from_millis(20)).await;
    }

    /// Fails unless `left` of a time remains. On a real clock it may have become less on the way.
    #[track_caller]
    pub(crate) fn assert_left(&self, actual: Duration, left: Duration) {
        let least = match self.redis {
            None => left,
            Some(_) => left.saturating_sub(BUSY),
        };
        assert!(
            (least..=left + ROUNDING).contains(&actual),
            "{actual:?} remain instead of {left:?}"
        );
    }

    /// Fails unless `passed` has passed. On a real clock it may have become more on the way.
    #[track_caller]
    pub(crate) fn assert_passed(&self, actual: Duration, passed: Duration) {
        let most = match self.redis {
            None => passed,
            Some(_) => passed + BUSY,
        };
        assert!(
            (passed.saturating_sub(ROUNDING)..=most).contains(&actual),
            "{actual:?} passed instead of {passed:?}"
        );
    }
}

/// By when an operation that starts now must be over.
pub(crate) fn deadline() -> Instant {
    Instant::now() + DEADLINE
}

/// The time for an operation of many steps that starts now.
pub(crate) fn deadlines() -> Deadlines {
    Deadlines {
        step: DEADLINE,
        end: deadline(),
    }
}
