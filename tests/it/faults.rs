//! Faults: a Redis that crashes, loses data, is paused, is full or misconfigured; a network that loses replies; clients
//! that disconnect. Each test states what a client can still rely on.

mod clients;
mod clock;
mod clock_back;
mod cluster_listings;
mod cluster_moves;
mod crashes;
mod events;
mod failovers;
mod late;
mod late_changes;
mod losses;
mod neighbours;
mod network;
mod outages;
mod overlaps;
mod partitions;
mod pauses;
mod quorum;
mod redis_cluster;
mod refusals;
mod replaced;
mod replacements;
mod replicas;
mod rights;
mod sentinel_users;
mod sentinels;
mod silence;
mod streams;
mod tls;
mod unfit;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use leasehold::config::{RedisAddress, SentinelAddress};
use leasehold::domain::{
    Claim, Fence, GrantKind, Granted, Holder, Lease, LockState, NotHolder, Refused, Released,
    RenewOptions, Renewed,
};
use leasehold::service::{AcquireOutcome, LockService};
use leasehold::store::{LockStore, StoreError};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use crate::support::fixture::{claim, claim_on, lock_of, name, not_holder, only, rival, ttl};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::stores;
use crate::support::{EFFECT_TIMEOUT, eventually};

/// A TTL longer than any test: a lock that becomes free must have been released or rolled back.
const FOR_EVER: Duration = Duration::from_secs(600);

/// One replica of Leasehold, without HTTP.
struct Replica {
    service: LockService,
    checks: AbortHandle,
}

impl Replica {
    async fn open(address: &RedisAddress) -> Self {
        Self::open_within(stores::OPERATION_TIMEOUT, address).await
    }

    /// A replica with this operation timeout.
    async fn open_within(timeout: Duration, address: &RedisAddress) -> Self {
        let store = stores::redis_store(address, &stores::redis_config())
            .await
            .expect("the store opens");
        Self::within(timeout, store)
    }

    /// A replica on an open store.
    fn on(store: Arc<dyn LockStore>) -> Self {
        Self::within(stores::OPERATION_TIMEOUT, store)
    }

    fn within(timeout: Duration, store: Arc<dyn LockStore>) -> Self {
        let service = stores::service_within(timeout, store);
        let checked = service.clone();
        let checks = tokio::spawn(async move { checked.run_checks().await });
        let checks = checks.abort_handle();
        Self { service, checks }
    }

    /// Acquires and delivers the outcome.
    async fn acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        self.acquire_within(claim, Duration::ZERO).await
    }

    /// Acquires with a wait, and delivers the outcome.
    async fn acquire_within(
        &self,
        claim: &Claim,
        wait: Duration,
    ) -> Result<AcquireOutcome, StoreError> {
        let claim = Arc::new(claim.clone());
        let answer = self.service.acquire(claim, wait).await?;
        answer.unclaimed.delivered();
        Ok(answer.outcome)
    }

    async fn granted(&self, claim: &Claim) -> u64 {
        self.lease(claim).await.holder.fence.get()
    }

    /// The lease of a claim that must be granted, and the earliest moment at which it may end. That counts from the request:
    /// on a busy machine the test may go on only a while after the answer.
    async fn lease_until(&self, claim: &Claim) -> (Lease, Instant) {
        let asked = Instant::now();
        let lease = self.lease(claim).await;
        let until = asked + lease.holder.expires_in;
        (lease, until)
    }

    /// Retries an acquire while the store is recovering or unavailable, and fails if it is granted before `held_until`.
    async fn granted_not_before(&self, claim: &Claim, held_until: Instant) -> Lease {
        // What failed may have been granted the lock.
        let has_failed = Cell::new(false);
        let lease = eventually("grants go on", async || match self.acquire(claim).await {
            Ok(AcquireOutcome::Granted(Granted { kind, leases, .. }))
                if kind == GrantKind::New || has_failed.get() =>
            {
                Some(only(leases))
            }
            Ok(AcquireOutcome::Refused(Refused::Recovering { .. })) => None,
            Err(_) => {
                has_failed.set(true);
                None
            }
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

    /// Acquires a claim that must be granted.
    async fn lease(&self, claim: &Claim) -> Lease {
        match self.acquire(claim).await {
            Ok(AcquireOutcome::Granted(Granted {
                kind: GrantKind::New,
                leases,
                ..
            })) => only(leases),
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
        let released = self
            .service
            .release(names, claim.token, None, |_| {})
            .await?;
        Ok(only(released))
    }

    async fn evict(&self, claim: &Claim) -> Result<Vec<Holder>, StoreError> {
        let (name, reason) = (lock_of(claim).clone(), "stuck".to_owned());
        let evicted = self.service.evict(name, reason, |_| {}).await?;
        Ok(evicted.holders.listed)
    }

    /// Waits until the claim's lock is free.
    async fn becomes_free(&self, claim: &Claim) {
        let what = format!("{:?} becomes free", claim.names);
        eventually(&what, async || {
            let view = self.service.inspect(lock_of(claim)).await.ok()?;
            (view.state == LockState::Free).then_some(())
        })
        .await;
    }

    /// Asserts that the claim holds.
    async fn assert_holds(&self, claim: &Claim) {
        let answer = self.renew(claim).await;
        assert!(matches!(answer, Ok(Renewed::Extended(_))), "{answer:?}");
    }

    /// Asserts that the store knows no lease of the claim, not even an ended one.
    async fn assert_unknown(&self, claim: &Claim) {
        let answer = self.renew(claim).await.expect("the store answers");
        assert_eq!(answer, not_holder(claim, NotHolder::Unknown));
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.checks.abort();
    }
}

/// Waits until this many processes have subscribed to the announcements of the others.
async fn all_listen(server: &RedisServer, processes: i64) {
    eventually("everybody listens", async || {
        let channel = "lh:1:recovery:0";
        let answer = server.command(&["PUBSUB", "NUMSUB", channel]).await;
        let (_, listening): (String, i64) = redis::from_redis_value(answer).expect("a pair");
        (listening == processes).then_some(())
    })
    .await;
}

/// A Redis that persists every write.
async fn durable_redis() -> RedisServer {
    RedisServer::start(RedisOptions::default()).await
}

/// A Redis without persistence.
async fn forgetful_redis() -> RedisServer {
    RedisServer::start(RedisOptions::forgetful()).await
}

/// A claim that only a release, a rollback or an eviction ends.
fn lasting(claim: Claim) -> Claim {
    Claim {
        ttl: ttl(FOR_EVER),
        ..claim
    }
}

/// A claim with this TTL.
fn lasting_for(duration: Duration, claim: Claim) -> Claim {
    Claim {
        ttl: ttl(duration),
        ..claim
    }
}

/// Many such claims, each on a lock of its own with `prefix`.
fn lasting_claims(prefix: &str, count: usize) -> Vec<Claim> {
    (0..count)
        .map(|number| name(&format!("{prefix}/{number}")))
        .map(|name| lasting(claim_on(&name)))
        .collect()
}

/// A lock that one replica releases is granted to a waiter of another.
async fn assert_hands_over(holder: &Replica, other: &Replica) {
    let held = lasting(claim());
    holder.granted(&held).await;
    let waiter = lasting(rival(&held));
    let waiting = other.acquire_within(&waiter, EFFECT_TIMEOUT);
    let releasing = async {
        eventually("it is queued", async || {
            let view = holder.service.inspect(lock_of(&held)).await.ok()?;
            (view.queue.length == 1).then_some(())
        })
        .await;
        holder.release(&held).await
    };
    let (granted, released) = tokio::join!(waiting, releasing);
    assert!(
        matches!(released, Ok(Released::Freed { .. })),
        "{released:?}"
    );
    assert!(
        matches!(granted, Ok(AcquireOutcome::Granted(_))),
        "{granted:?}"
    );
}

/// Four waiters of both replicas, one behind the other. Each releases the lock at once, and returns its fencing token and
/// when it was granted the lock.
async fn waiters_behind(
    replicas: &[Arc<Replica>; 2],
    held: &Claim,
) -> Vec<JoinHandle<(Fence, Instant)>> {
    let mut waiting = Vec::new();
    for length in 1..=4 {
        let replica = Arc::clone(&replicas[length % 2]);
        let (waiter, wait) = (lasting(rival(held)), held.ttl.get() * 4);
        waiting.push(tokio::spawn(async move {
            let answer = replica.acquire_within(&waiter, wait).await;
            let Ok(AcquireOutcome::Granted(Granted {
                kind: GrantKind::New,
                leases,
                ..
            })) = answer
            else {
                panic!("it waits on, but: {answer:?}");
            };
            let granted = Instant::now();
            replica.release(&waiter).await.expect("the store answers");
            (only(leases).holder.fence, granted)
        }));
        let replica = &replicas[0];
        eventually("it is queued", async || {
            let view = replica.service.inspect(lock_of(held)).await.ok()?;
            (view.queue.length == length as u64).then_some(())
        })
        .await;
    }
    waiting
}

async fn assert_granted_in_order(waiting: Vec<JoinHandle<(Fence, Instant)>>, held_until: Instant) {
    let mut last = None;
    for waiter in waiting {
        let (fence, granted) = waiter.await.expect("it was granted");
        assert!(granted >= held_until, "granted while the lease is alive");
        assert!(last < Some(fence), "{fence} after {last:?}");
        last = Some(fence);
    }
}

/// Puts a proxy before each Sentinel of an address, which names the proxies from then on.
async fn behind_proxies(address: &mut SentinelAddress) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for (host, port) in &mut address.sentinels {
        let proxy = Proxy::start(format!("{host}:{port}")).await;
        (*host, *port) = (proxy.address().ip().to_string(), proxy.address().port());
        proxies.push(proxy);
    }
    proxies
}
