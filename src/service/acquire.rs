//! Acquires without waiting, and the translation of the store's reply into the service's answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::{AcquireAnswer, AcquireOutcome, QueueFull};
use super::waiter::Waiter;
use super::{ServiceShared, UnclaimedLease, remaining};
use crate::domain::{Acquired, Attempt, Claim, Lease, QueueRequest};
use crate::limits::Slot;
use crate::store::{Fault, StoreError};

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
            let detail = "a claim stands in the queue that did not ask to";
            return Err(StoreError::unknown(Fault::Corrupt, detail));
        }
    })
}
