//! Acquires: the request, without waiting; the translation of the store's reply into the service's answer; and that answer,
//! with the guard for its delivery.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::waiter::Waiter;
use super::{ServiceShared, UnclaimedLease, remaining};
use crate::domain::{
    Acquired, Attempt, Claim, Conflict, Lease, LockName, Mismatch, NotHeld, Position, QueueRequest,
};
use crate::limits::Slot;
use crate::store::{Fault, StoreError};

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

/// The outcome of an acquire and its wait. What there is per lock is in the order of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The claim was granted now.
    Granted(Vec<Lease>),
    /// The claim held already, and its hold count has increased.
    Reentered(Vec<Lease>),
    /// The claim held already; nothing changed.
    Replayed(Vec<Lease>),
    /// The claim is blocked, and the request did not ask to wait.
    Blocked(Vec<Conflict>),
    /// The claim contradicts the lock, or itself; waiting cannot help.
    Mismatched(Mismatch),
    /// A limit on waiters is reached, so the claim was not queued.
    TooManyWaiters(QueueFull),
    /// The wait timed out.
    TimedOut(NotGranted),
    /// This process is shutting down; other processes continue.
    Draining(NotGranted),
    /// The claim ended before; a token identifies one claim only.
    Ended(NotHeld),
    /// The store was unavailable or may have lost data; new grants wait.
    Recovering {
        /// How long new grants wait.
        retry_in: Duration,
    },
}

impl AcquireOutcome {
    /// The leases that the outcome reports.
    pub(super) fn leases(&self) -> &[Lease] {
        match self {
            Self::Granted(leases) | Self::Reentered(leases) | Self::Replayed(leases) => leases,
            Self::Blocked(_)
            | Self::Mismatched(_)
            | Self::TooManyWaiters(_)
            | Self::TimedOut(_)
            | Self::Draining(_)
            | Self::Ended(_)
            | Self::Recovering { .. } => &[],
        }
    }
}

/// Which limit on waiters is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// The queue of this lock is full.
    Lock {
        /// The lock.
        name: LockName,
        /// How many claims wait for it.
        queue_length: u64,
    },
    /// This process has its maximum of waiters.
    Process {
        /// How many there are; a waiter for several locks counts once per lock.
        waiters: usize,
    },
    /// The peer has its maximum of waiters on this process.
    Peer,
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
        }
    }

    /// Registers the request as a waiter, or returns the limit that refuses it.
    pub(super) fn enter(&self) -> Result<Arc<Waiter>, QueueFull> {
        let peer = self.slot.peer();
        let entered = self
            .inner
            .queues
            .enter(&self.claim, peer.map(|peer| &**peer));
        entered.inspect_err(|queue_full| self.inner.metrics.queue_full(queue_full))
    }

    /// Sends one acquire to the store. Returns when it was sent, and the reply.
    pub(super) async fn try_acquire(
        self,
        queue_request: Option<QueueRequest>,
    ) -> (Instant, Result<Acquired, StoreError>) {
        let (sent, deadline) = self.inner.start();
        let store = &self.inner.store;
        let answer = store
            .acquire(&self.claim, self.attempt, queue_request.as_ref(), deadline)
            .await;
        self.inner.metrics.store_acquire(sent.elapsed(), &answer);
        if let Ok(acquired) = &answer {
            self.inner.listed_holders.acquired(&self.claim, acquired);
        }
        (sent, answer)
    }

    /// Acquires without waiting. `queue_full` is the limit that refused a request which asked to wait.
    pub(super) async fn acquire_now(
        self,
        queue_full: Option<QueueFull>,
    ) -> Result<AcquireAnswer, StoreError> {
        let (sent, answer) = self.clone().try_acquire(None).await;
        let answer = match (answer, queue_full) {
            (Ok(Acquired::Blocked(_) | Acquired::Recovering { .. }), Some(queue_full)) => {
                Ok(AcquireAnswer {
                    outcome: AcquireOutcome::TooManyWaiters(queue_full),
                    waited: Duration::ZERO,
                    unclaimed: UnclaimedLease::nothing(),
                })
            }
            (Ok(acquired), _) => self.answer(acquired, sent, Duration::ZERO),
            (Err(error), _) => {
                if matches!(error, StoreError::Unknown { .. }) {
                    let ttl = self.claim.ttl.get();
                    self.clone().withdraw_in_background(ttl);
                }
                Err(error)
            }
        };
        self.inner.metrics.acquires.record(&self.claim, &answer);
        answer
    }

    /// Translates the store's reply.
    pub(super) fn answer(
        &self,
        acquired: Acquired,
        sent: Instant,
        waited: Duration,
    ) -> Result<AcquireAnswer, StoreError> {
        let undelivered_ttl = match &acquired {
            Acquired::Granted(_) => Some(self.claim.ttl.get()),
            // The store knows what goes back to an earlier request, and what ends.
            Acquired::Replayed(leases) | Acquired::Reentered(leases) => longest_ttl(leases),
            Acquired::Waiting(_)
            | Acquired::Superseded
            | Acquired::Blocked(_)
            | Acquired::Mismatched(_)
            | Acquired::TooManyWaiters { .. }
            | Acquired::WaitExpired
            | Acquired::Ended(_)
            | Acquired::Recovering { .. } => None,
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
        Acquired::Granted(grants) => {
            let leases = grants.into_iter().map(|grant| grant.lease);
            AcquireOutcome::Granted(remaining::acquired(leases, sent)?)
        }
        Acquired::Reentered(leases) => {
            AcquireOutcome::Reentered(remaining::acquired(leases.into_iter(), sent)?)
        }
        Acquired::Replayed(leases) => {
            AcquireOutcome::Replayed(remaining::acquired(leases.into_iter(), sent)?)
        }
        Acquired::Blocked(blocked_by) => AcquireOutcome::Blocked(blocked_by),
        Acquired::Mismatched(mismatch) => AcquireOutcome::Mismatched(mismatch),
        Acquired::TooManyWaiters { name, queue_length } => {
            AcquireOutcome::TooManyWaiters(QueueFull::Lock { name, queue_length })
        }
        Acquired::Ended(lost) => AcquireOutcome::Ended(lost),
        Acquired::Recovering { retry_in } => AcquireOutcome::Recovering { retry_in },
        Acquired::Waiting(_) | Acquired::Superseded | Acquired::WaitExpired => {
            let detail = "a claim was queued although its request does not wait";
            return Err(StoreError::unknown(Fault::Corrupt, detail));
        }
    })
}
