//! Faults: a Redis that dies, forgets, stands still, is full or is not fit; a network that loses answers; clients that
//! hang up. Each test says what a client must still be able to rely on.

mod clients;
mod crashes;
mod network;
mod pauses;
mod unfit;

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::RedisAddress;
use leasehold::domain::{Acquired, Claim, LockState, NotHolder, Released, Renewed};
use leasehold::service::LockService;
use leasehold::store::StoreError;
use tokio::task::AbortHandle;

use crate::support::bench::claim_on;
use crate::support::eventually;
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
        let store = stores::redis_store(address, &stores::redis_config())
            .await
            .expect("the store opens");
        let service = stores::service(store);
        let surveyed = service.clone();
        let surveys = tokio::spawn(async move { surveyed.survey(SURVEY_INTERVAL).await });
        let surveys = surveys.abort_handle();
        Self { service, surveys }
    }

    /// Acquires and delivers the answer.
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, StoreError> {
        let answer = self.service.acquire(Arc::new(claim.clone())).await?;
        answer.undelivered.delivered();
        Ok(answer.outcome)
    }

    async fn granted(&self, claim: &Claim) -> u64 {
        match self.acquire(claim).await {
            Ok(Acquired::Granted { lease, .. }) => lease.holder.fence.get(),
            other => panic!("{:?} must be granted, but: {other:?}", claim.name),
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewed, StoreError> {
        let name = claim.name.clone();
        self.service.renew(name, claim.token, None).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released, StoreError> {
        let name = claim.name.clone();
        self.service.release(name, claim.token, None).await
    }

    /// Waits until nobody holds the claim's lock.
    async fn becomes_free(&self, claim: &Claim) {
        let what = format!("{:?} becomes free", claim.name);
        eventually(&what, async || {
            let view = self.service.inspect(&claim.name).await.ok()?;
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
        match self.renew(claim).await {
            Ok(Renewed::NotHolder(NotHolder::Unknown)) => {}
            other => panic!("the claim is not known, but: {other:?}"),
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.surveys.abort();
    }
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
        ttl: crate::support::bench::ttl(FOR_EVER),
        ..claim
    }
}

/// Many of them, on locks of their own whose names begin with `prefix`.
fn lasting_claims(prefix: &str, count: usize) -> Vec<Claim> {
    (0..count)
        .map(|number| crate::support::bench::name(&format!("{prefix}/{number}")))
        .map(|name| lasting(claim_on(&name)))
        .collect()
}
