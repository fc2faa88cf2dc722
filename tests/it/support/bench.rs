//! Where a law of the contract is put to the test: a fresh store, its way of letting time pass, and shorthand for
//! asking it.
//!
//! `memory:` runs on a stopped clock that [`Bench::advance`] pushes forward; Redis really waits. So laws use leases
//! that are either [`LONG`] (never over within a law) or [`SHORT`] (over after [`Bench::outlast`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, HoldCount, Holder, Lease, Listing, LockName, LockState, Metadata,
    Owner, Released, Renewal, Renewed, Token, Ttl,
};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{ListQuery, LockStore, StoreError};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::redis_server::{Persistence, RedisOptions, RedisServer};
use super::stores;

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

/// How many databases the shared Redis has: one for each bench.
const DATABASES: u16 = 1_000;

/// A store to put to the test.
pub(crate) struct Bench {
    store: Arc<dyn LockStore>,
    redis: Option<RedisBench>,
}

/// What is known of a bench's Redis.
#[derive(Clone, Copy)]
pub(crate) struct RedisBench {
    /// Shared by all benches of this process.
    pub(crate) server: &'static RedisServer,
    /// This bench's own.
    pub(crate) database: u16,
}

impl Bench {
    /// A fresh embedded store. The runtime's clock must be stopped.
    pub(crate) async fn memory() -> Self {
        Self {
            store: Arc::new(MemoryStore::new(100_000)),
            redis: None,
        }
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
        let store = stores::redis_store(&server.database(database), &stores::redis_config())
            .await
            .expect("the store opens on a Redis that is as it should be");
        Self {
            store,
            redis: Some(RedisBench { server, database }),
        }
    }

    /// The store itself.
    pub(crate) fn store(&self) -> Arc<dyn LockStore> {
        Arc::clone(&self.store)
    }

    /// The Redis behind the store, for laws about what is kept there.
    pub(crate) fn redis_behind(&self) -> RedisBench {
        self.redis.expect("this law is for Redis alone")
    }

    /// Lets time pass.
    pub(crate) async fn advance(&self, by: Duration) {
        match self.redis {
            None => tokio::time::advance(by).await,
            // This is no synchronisation: the passing of time is what the law is about.
            Some(_) => tokio::time::sleep(by).await,
        }
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

    /// Acquires by an attempt of its own.
    pub(crate) async fn acquire(&self, claim: &Claim) -> Acquired {
        self.attempt(claim, Attempt::random())
            .await
            .expect("the store answers")
    }

    /// Acquires what must be granted.
    pub(crate) async fn granted(&self, claim: &Claim) -> Lease {
        match self.acquire(claim).await {
            Acquired::Granted { lease, .. } => lease,
            other => panic!("{:?} must be granted, but: {other:?}", claim.name),
        }
    }

    /// Acquires by a certain attempt.
    pub(crate) async fn attempt(
        &self,
        claim: &Claim,
        attempt: Attempt,
    ) -> Result<Acquired, StoreError> {
        self.store.acquire(claim, attempt, deadline()).await
    }

    /// Withdraws an attempt.
    pub(crate) async fn withdraw(&self, claim: &Claim, attempt: Attempt) {
        self.store
            .withdraw(claim, attempt, deadline())
            .await
            .expect("the store answers");
    }

    /// Renews by the claim's own TTL.
    pub(crate) async fn renew(&self, claim: &Claim) -> Renewed {
        self.renew_for(claim, None).await
    }

    /// Renews by a TTL.
    pub(crate) async fn renew_for(&self, claim: &Claim, ttl: Option<Duration>) -> Renewed {
        let ttl = ttl.map(Ttl::from_store);
        self.store
            .renew(&claim.name, claim.token, ttl, deadline())
            .await
            .expect("the store answers")
    }

    /// Renews what must be renewable.
    pub(crate) async fn renewed(&self, claim: &Claim, ttl: Option<Duration>) -> Renewal {
        match self.renew_for(claim, ttl).await {
            Renewed::Extended(renewal) => renewal,
            other => panic!("{:?} must be renewed, but: {other:?}", claim.name),
        }
    }

    /// Releases for good.
    pub(crate) async fn release(&self, claim: &Claim) -> Released {
        self.store
            .release(&claim.name, claim.token, None, deadline())
            .await
            .expect("the store answers")
    }

    /// Releases what must be held.
    pub(crate) async fn freed(&self, claim: &Claim) -> Duration {
        match self.release(claim).await {
            Released::Freed { held_for } => held_for,
            other => panic!("{:?} must be freed, but: {other:?}", claim.name),
        }
    }

    /// Releases down to a depth.
    pub(crate) async fn step_back(&self, claim: &Claim, depth: u64) -> Released {
        self.store
            .release(
                &claim.name,
                claim.token,
                Some(hold_count(depth)),
                deadline(),
            )
            .await
            .expect("the store answers")
    }

    /// Takes the lock away from its holders.
    pub(crate) async fn evict(&self, name: &LockName, reason: &str) -> Vec<Holder> {
        self.store
            .evict(name, reason, deadline())
            .await
            .expect("the store answers")
    }

    /// What the lock is doing.
    pub(crate) async fn state(&self, name: &LockName) -> LockState {
        let view = self
            .store
            .inspect(name, deadline())
            .await
            .expect("the store answers");
        assert_eq!(
            &view.name, name,
            "the view is of the lock that was asked for"
        );
        view.state
    }

    /// One page of the held locks.
    pub(crate) async fn page(
        &self,
        prefix: &str,
        after: Option<LockName>,
        page_size: usize,
    ) -> Listing {
        let query = ListQuery {
            prefix: prefix.to_owned(),
            after,
            page_size,
        };
        self.store
            .list(&query, deadline())
            .await
            .expect("the store answers")
    }

    /// The names of all held locks that begin with `prefix`, page by page.
    pub(crate) async fn names(&self, prefix: &str, page_size: usize) -> Vec<String> {
        let mut names = Vec::new();
        let mut after = None;
        loop {
            let page = self.page(prefix, after, page_size).await;
            assert!(page.locks.len() <= page_size, "a page is too long");
            names.extend(page.locks.iter().map(|lock| lock.name.to_string()));
            after = page.next_after;
            if after.is_none() {
                return names;
            }
        }
    }
}

/// By when an operation that starts now must be over.
pub(crate) fn deadline() -> Instant {
    Instant::now() + DEADLINE
}

/// A name that no other test uses.
pub(crate) fn fresh_name() -> LockName {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    name(&format!("law/{number}"))
}

/// A name.
pub(crate) fn name(text: &str) -> LockName {
    LockName::parse(text.as_bytes()).expect(text)
}

/// A depth.
pub(crate) fn hold_count(depth: u64) -> HoldCount {
    HoldCount::new(depth).expect("a valid depth")
}

/// A TTL.
pub(crate) fn ttl(ttl: Duration) -> Ttl {
    Ttl::from_store(ttl)
}

/// A claim on a fresh lock that lasts [`LONG`] and asks for nothing else.
pub(crate) fn claim() -> Claim {
    claim_on(&fresh_name())
}

/// The same on a certain lock.
pub(crate) fn claim_on(name: &LockName) -> Claim {
    Claim {
        name: name.clone(),
        token: Token::random(),
        ttl: ttl(LONG),
        hold_count: HoldCount::ONE,
        owner: Owner::default(),
        metadata: None,
        min_hold: None,
        max_hold: None,
        lock_delay: None,
    }
}

/// Another claim on the same lock.
pub(crate) fn rival(claim: &Claim) -> Claim {
    claim_on(&claim.name)
}

/// The same claim, asking for another depth.
pub(crate) fn at_depth(claim: &Claim, depth: u64) -> Claim {
    Claim {
        hold_count: hold_count(depth),
        ..claim.clone()
    }
}

/// An owner.
pub(crate) fn owner(text: &str) -> Owner {
    Owner::new(text).expect(text)
}

/// Metadata.
pub(crate) fn metadata(json: &str) -> Option<Metadata> {
    Some(Metadata::from_json_object(json).expect(json))
}
