//! Acquires: the request, without waiting; the translation of the store's reply into the service's answer; and that answer,
//! with the guard for its delivery. Also what every operation does with the remaining times of leases.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use super::lease_counts::WaitStage;
use super::waiter::Waiter;
use super::{ServiceShared, UnclaimedLease};
use crate::domain::{
    Acquired, Attempt, Claim, Conflict, GrantKind, Granted, Lease, Position, QueueRequest, Refused,
    Rollback,
};
use crate::limits::Slot;
use crate::store::{Fault, StoreError};

/// The unit in which remaining times are reported.
const LEFT_MIN: Duration = Duration::from_millis(1);

/// The outcome of an acquire, and the guard for its delivery.
#[derive(Debug)]
pub struct AcquireAnswer {
    /// The outcome.
    pub outcome: AcquireOutcome,
    /// How long the request waited in the queue.
    pub waited: Duration,
    /// Mark it as delivered when the response is on its way. Dropped before that, it rolls back a new grant.
    pub unclaimed: UnclaimedLease,
}

impl AcquireAnswer {
    /// Rolls back a new grant, because its claim may not hold the locks any more. Leases that it held before stay: their
    /// holder may be in the middle of its work. Returns whether there are any.
    pub fn revoke(self) -> bool {
        let held_before = |kind| kind != GrantKind::New;
        let is_held = self.outcome.kind().is_some_and(held_before);
        if is_held {
            self.unclaimed.delivered();
        }
        is_held
    }
}

/// An acquire whose store failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct AcquireFailure {
    /// The failure of the store.
    pub error: StoreError,
    /// How long the request waited in the queue before that.
    pub waited: Duration,
}

impl From<StoreError> for AcquireFailure {
    /// A failure of a request that did not wait.
    fn from(error: StoreError) -> Self {
        Self {
            error,
            waited: Duration::ZERO,
        }
    }
}

impl From<AcquireFailure> for StoreError {
    fn from(failure: AcquireFailure) -> Self {
        failure.error
    }
}

/// The outcome of an acquire and its wait. What there is per lock is in the order of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The claim holds its locks.
    Granted(Granted),
    /// The store refused the claim. It is blocked only if the request did not ask to wait.
    Refused(Refused),
    /// A limit of this process on waiters is reached, so the claim was not queued.
    TooManyWaiters(QueueFull),
    /// The wait timed out.
    TimedOut(NotGranted),
    /// This process is shutting down; other processes continue.
    Draining(NotGranted),
}

impl AcquireOutcome {
    /// How the claim came to hold its locks; none if it does not hold them.
    #[must_use]
    pub fn kind(&self) -> Option<GrantKind> {
        Some(self.granted()?.kind)
    }

    /// The leases of the claim, if it holds its locks.
    pub(super) fn granted(&self) -> Option<&Granted> {
        match self {
            Self::Granted(granted) => Some(granted),
            Self::Refused(_) | Self::TooManyWaiters(_) | Self::TimedOut(_) | Self::Draining(_) => {
                None
            }
        }
    }
}

/// Which limit of this process on waiters is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// This process has its maximum of waiters.
    Process {
        /// How many there are; a waiter for several locks counts once per lock.
        waiters: usize,
    },
    /// The peer has its maximum of waiters on this process.
    Peer,
    /// The principal has as many waiters on this process as its quota permits.
    Principal,
}

/// A claim that left the queue without a grant. Posted again in time, it resumes its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotGranted {
    /// Its last position; none if unknown.
    pub position: Option<Position>,
    /// What blocks it, as far as known.
    pub blocked_by: Vec<Conflict>,
    /// How long its place is kept; zero if it has none.
    pub place_kept: Duration,
}

/// One request for a claim.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) inner: Arc<ServiceShared>,
    pub(super) claim: Arc<Claim>,
    pub(super) attempt: Attempt,
    pub(super) began: Instant,
    /// Held until the outcome is delivered or rolled back, but not while the request waits.
    pub(super) slot: Slot,
    /// Whether the attempt has taken over leases that are counted. Its rollback gives them back, so the count goes on.
    pub(super) took_over: Arc<AtomicBool>,
}

impl Request {
    pub(super) fn new(inner: &Arc<ServiceShared>, claim: Arc<Claim>, slot: Slot) -> Self {
        Self {
            inner: Arc::clone(inner),
            claim,
            attempt: Attempt::random(),
            // The client's wait includes the time until there was a slot.
            began: slot.asked_at().unwrap_or_else(Instant::now),
            slot,
            took_over: Arc::default(),
        }
    }

    /// Registers the request as a waiter, or returns the limit that refuses it.
    pub(super) fn enter(&self) -> Result<Arc<Waiter>, QueueFull> {
        let peer = self.slot.peer();
        let entered =
            self.inner
                .queues
                .enter(&self.claim, peer.map(|peer| &**peer), self.slot.places());
        entered.inspect_err(|queue_full| self.inner.metrics.queue_full(queue_full))
    }

    /// Acquires without waiting. `queue_full` is the limit that refused a request which asked to wait.
    pub(super) async fn acquire_now(
        self,
        queue_full: Option<QueueFull>,
    ) -> Result<AcquireAnswer, StoreError> {
        let (_, deadline) = self.inner.start();
        let refused = self.refused_by_quota(WaitStage::None, deadline).await;
        let sent = Instant::now();
        let reply = match refused {
            Some(refused) => Ok(refused),
            None => {
                let store = &self.inner.store;
                let reply = store.acquire(&self.claim, self.attempt, None, deadline);
                self.counted(reply.await, sent, deadline).await
            }
        };
        let answer = match (reply, queue_full) {
            (
                Ok(Acquired::Refused(Refused::Blocked(_) | Refused::Recovering { .. })),
                Some(queue_full),
            ) => Ok(AcquireAnswer {
                outcome: AcquireOutcome::TooManyWaiters(queue_full),
                waited: Duration::ZERO,
                unclaimed: UnclaimedLease::nothing(),
            }),
            (Ok(acquired), _) => self.answer(acquired, sent, Duration::ZERO),
            (Err(error), _) => {
                if matches!(error, StoreError::Unknown { .. }) {
                    let ttl = self.claim.ttl.get();
                    self.clone()
                        .roll_back_in_background(Rollback::Undo, ttl, None);
                }
                Err(error)
            }
        };
        self.inner.metrics.acquires.record(&self.claim, &answer);
        answer
    }

    /// Asks the store once for a request that waits. Returns when it was sent, and the reply.
    pub(super) async fn poll(
        self,
        queue_request: QueueRequest,
    ) -> (Instant, Result<Acquired, StoreError>) {
        let (sent, deadline) = self.inner.start();
        let (store, queue_request) = (&self.inner.store, Some(&queue_request));
        let reply = store.acquire(&self.claim, self.attempt, queue_request, deadline);
        (sent, self.counted(reply.await, sent, deadline).await)
    }

    /// Counts the store's reply in the metrics, for the expected length of later ones, and what it grants in the quota.
    async fn counted(
        &self,
        mut reply: Result<Acquired, StoreError>,
        sent: Instant,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        self.inner.metrics.store_acquire(sent.elapsed(), &reply);
        if let Ok(acquired) = &mut reply {
            self.with_quota_named(acquired);
            self.inner.listed_holders.acquired(&self.claim, acquired);
        }
        match self.slot.leases() {
            // Boxed, so that the futures of other requests need no space for it.
            Some(leases) => Box::pin(self.counted_in(leases, reply, deadline)).await,
            None => reply,
        }
    }

    /// The refusal of a claim that would exceed a quota of leases, which was full when this process asked last and still is.
    pub(super) async fn refused_by_quota(
        &self,
        stage: WaitStage,
        deadline: Instant,
    ) -> Option<Acquired> {
        let leases = self.slot.leases().filter(|leases| leases.was_full())?;
        Box::pin(self.over_quota(leases, stage, deadline)).await
    }

    /// Translates the store's reply.
    pub(super) fn answer(
        &self,
        acquired: Acquired,
        sent: Instant,
        waited: Duration,
    ) -> Result<AcquireAnswer, StoreError> {
        let undelivered_ttl = match &acquired {
            Acquired::Granted(granted) => match granted.kind {
                GrantKind::New => Some(self.claim.ttl.get()),
                // The store knows what goes back to an earlier request, and what ends.
                GrantKind::Reentered | GrantKind::Replayed => longest_ttl(&granted.leases),
            },
            Acquired::Waiting(_)
            | Acquired::Superseded
            | Acquired::WaitExpired
            | Acquired::Refused(_) => None,
        };
        // Cancellation safety: from here on, dropping the answer rolls back the grant.
        let unclaimed = match undelivered_ttl {
            Some(ttl) => UnclaimedLease::grant(self, ttl),
            None => UnclaimedLease::nothing(),
        };
        Ok(AcquireAnswer {
            outcome: outcome(acquired, sent)?,
            waited,
            unclaimed,
        })
    }
}

/// After this time all of these leases have expired.
fn longest_ttl(leases: &[Lease]) -> Option<Duration> {
    leases.iter().map(|lease| lease.ttl.get()).max()
}

fn outcome(acquired: Acquired, sent: Instant) -> Result<AcquireOutcome, StoreError> {
    Ok(match acquired {
        Acquired::Granted(mut granted) => {
            subtract_elapsed(&mut granted.leases, sent)?;
            AcquireOutcome::Granted(granted)
        }
        Acquired::Refused(refused) => AcquireOutcome::Refused(refused),
        Acquired::Waiting(_) | Acquired::Superseded | Acquired::WaitExpired => {
            let detail = "a claim was queued although its request does not wait";
            return Err(StoreError::unknown(Fault::Corrupt, detail));
        }
    })
}

/// Subtracts the time since the request was sent from the remaining times of the leases in its reply.
///
/// # Errors
/// A lease may have expired before it could be reported. etcd once reported such leases (Jepsen, etcd 3.4.3). It may
/// also still be valid, because the store applied the request some time after it was sent.
pub(super) fn subtract_elapsed<'a>(
    leases: impl IntoIterator<Item = &'a mut Lease>,
    sent: Instant,
) -> Result<(), StoreError> {
    for lease in leases {
        let detail = "a lease may have ended before it could be reported";
        let left = remaining(lease, sent);
        lease.holder.expires_in =
            left.ok_or_else(|| StoreError::unknown(Fault::Timeout, detail))?;
    }
    Ok(())
}

/// Counts the remaining time from before the request was sent, by this machine's monotonic clock. The store applied the
/// request after that, so the lease ends no earlier than reported. `None` if it has expired, or has less than
/// [`LEFT_MIN`] left, which would be reported as zero.
pub(super) fn remaining(lease: &Lease, sent: Instant) -> Option<Duration> {
    let left = lease.holder.expires_in.checked_sub(sent.elapsed());
    left.filter(|left| *left >= LEFT_MIN)
}
