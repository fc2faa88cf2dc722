//! Faults: a Redis that dies, forgets, stands still, is full or is not fit; a network that loses answers; clients that
//! hang up. Each test says what a client must still be able to rely on.

mod clients;
mod clock;
mod clock_back;
mod crashes;
mod events;
mod late;
mod late_changes;
mod losses;
mod network;
mod outages;
mod pauses;
mod replaced;
mod replacements;
mod rights;
mod streams;
mod unfit;

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::RedisAddress;
use leasehold::domain::{
    Claim, Holder, Lease, LockState, NotHolder, Released, RenewOptions, Renewed,
};
use leasehold::service::{AcquireOutcome, LockService};
use leasehold::store::{LockStore, StoreError};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::support::eventually;
use crate::support::fixture::{claim_on, lock_of, name, not_holder, only, ttl};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::stores;

/// A lease so long that no test outlasts it: a lock that becomes free was given back.
const FOR_EVER: Duration = Duration::from_secs(600);

/// How often a replica surveys its store.
const SURVEY_INTERVAL: Duration = Duration::from_millis(200);

/// One replica of Leasehold, short of HTTP.
struct Replica {
    service: LockService,
    surveys: AbortHandle,
}

impl Replica {
    async fn open(address: &RedisAddress) -> Self {
        Self::open_within(stores::OPERATION_TIMEOUT, address).await
    }

    /// One whose operations may take so long.
    async fn open_within(timeout: Duration, address: &RedisAddress) -> Self {
        let store = stores::redis_store(address, &stores::redis_config())
            .await
            .expect("the store opens");
        Self::within(timeout, store)
    }

    /// One on a store that was opened otherwise.
    fn on(store: Arc<dyn LockStore>) -> Self {
        Self::within(stores::OPERATION_TIMEOUT, store)
    }

    fn within(timeout: Duration, store: Arc<dyn LockStore>) -> Self {
        let service = stores::service_within(timeout, store);
        let surveyed = service.clone();
        let surveys = tokio::spawn(async move { surveyed.survey(SURVEY_INTERVAL).await });
        let surveys = surveys.abort_handle();
        Self { service, surveys }
    }

    /// Acquires and delivers the answer.
    async fn acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        self.acquire_within(claim, Duration::ZERO).await
    }

    /// Waits for a while, and delivers the answer.
    async fn acquire_within(
        &self,
        claim: &Claim,
        wait: Duration,
    ) -> Result<AcquireOutcome, StoreError> {
        let claim = Arc::new(claim.clone());
        let answer = self.service.acquire(claim, wait).await?;
        answer.undelivered.delivered();
        Ok(answer.outcome)
    }

    async fn granted(&self, claim: &Claim) -> u64 {
        self.lease(claim).await.holder.fence.get()
    }

    /// Acquires again and again, as long as it is told that grants have to wait or that Redis is away, and fails if it is
    /// granted before `held_until`.
    async fn granted_not_before(&self, claim: &Claim, held_until: Instant) -> Lease {
        let lease = eventually("grants go on", async || match self.acquire(claim).await {
            Ok(AcquireOutcome::Granted(leases)) => Some(only(leases)),
            Ok(AcquireOutcome::Recovering { .. }) | Err(_) => None,
            other => panic!("grants are held back, but: {other:?}"),
        })
        .await;
        let early = held_until.saturating_duration_since(Instant::now());
        assert!(
            early.is_zero(),
            "granted {early:?} before a lease has ended"
        );
        lease
    }

    /// Acquires what must be granted.
    async fn lease(&self, claim: &Claim) -> Lease {
        match self.acquire(claim).await {
            Ok(AcquireOutcome::Granted(leases)) => only(leases),
            other => panic!("{:?} must be granted, but: {other:?}", claim.names),
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewed, StoreError> {
        let names = claim.names.clone();
        let change = RenewOptions::default();
        self.service.renew(names, claim.token, change).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released, StoreError> {
        let names = claim.names.clone();
        let released = self.service.release(names, claim.token, None).await?;
        Ok(only(released))
    }

    async fn evict(&self, claim: &Claim) -> Result<Vec<Holder>, StoreError> {
        let (name, reason) = (lock_of(claim).clone(), "stuck".to_owned());
        let evicted = self.service.evict(name, reason).await?;
        Ok(evicted.holders.listed)
    }

    /// Waits until nobody holds the claim's lock.
    async fn becomes_free(&self, claim: &Claim) {
        let what = format!("{:?} becomes free", claim.names);
        eventually(&what, async || {
            let view = self.service.inspect(lock_of(claim)).await.ok()?;
            (view.state == LockState::Free).then_some(())
        })
        .await;
    }

    /// Fails unless the claim holds.
    async fn assert_holds(&self, claim: &Claim) {
        let answer = self.renew(claim).await;
        assert!(matches!(answer, Ok(Renewed::Extended(_))), "{answer:?}");
    }

    /// Fails if the claim holds, or ever did as far as the store knows.
    async fn assert_unknown(&self, claim: &Claim) {
        let answer = self.renew(claim).await.expect("the store answers");
        assert_eq!(answer, not_holder(claim, NotHolder::Unknown));
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.surveys.abort();
    }
}

/// Waits until so many processes hear what the others announce.
async fn all_listen(server: &RedisServer, processes: i64) {
    eventually("everybody listens", async || {
        let channel = "lh:1:recovery:0";
        let answer = server.command(&["PUBSUB", "NUMSUB", channel]).await;
        let (_, listening): (String, i64) = redis::from_redis_value(answer).expect("a pair");
        (listening == processes).then_some(())
    })
    .await;
}

/// A Redis that keeps everything.
async fn durable_redis() -> RedisServer {
    RedisServer::start(RedisOptions::default()).await
}

/// A Redis that keeps nothing.
async fn forgetful_redis() -> RedisServer {
    RedisServer::start(RedisOptions::forgetful()).await
}

/// A claim that nothing but a release, a withdrawal or an eviction ends.
fn lasting(claim: Claim) -> Claim {
    Claim {
        ttl: ttl(FOR_EVER),
        ..claim
    }
}

/// A claim that lasts so long.
fn lasting_for(duration: Duration, claim: Claim) -> Claim {
    Claim {
        ttl: ttl(duration),
        ..claim
    }
}

/// Many of them, on locks of their own whose names begin with `prefix`.
fn lasting_claims(prefix: &str, count: usize) -> Vec<Claim> {
    (0..count)
        .map(|number| name(&format!("{prefix}/{number}")))
        .map(|name| lasting(claim_on(&name)))
        .collect()
}
