//! Asking for locks without waiting for them, and what an answer of the store means to the request that it answers.

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
    /// The room that the request takes up until it waits, or until its outcome is delivered or taken back.
    pub(super) slot: Slot,
}

impl Request {
    pub(super) fn new(inner: &Arc<ServiceShared>, claim: Arc<Claim>, slot: Slot) -> Self {
        Self {
            inner: Arc::clone(inner),
            claim,
            attempt: Attempt::random(),
            began: Instant::now(),
            slot,
        }
    }

    /// Lets it in among those that wait, or says what keeps it out.
    pub(super) fn enter(&self) -> Result<Arc<Waiter>, QueueFull> {
        let peer = self.slot.peer();
        let entered = self.inner.queues.enter(&self.claim, peer.as_deref());
        entered.inspect_err(|crowd| self.inner.metrics.crowded(crowd))
    }

    /// Asks the store once, and says when that was. After the deadline the store enters nothing again.
    pub(super) async fn ask(
        self,
        stand: Option<QueueRequest>,
        deadline: Instant,
    ) -> (Instant, Result<Acquired, StoreError>) {
        let mut sent = Instant::now();
        let mut turn = None;
        if stand.is_some() && self.claim.names.len() > 1 {
            turn = match self.inner.turn_of_several(&self.claim, deadline).await {
                Ok(turn) => turn,
                Err(error) => return (sent, Err(error)),
            };
            sent = Instant::now();
        }
        let store = &self.inner.store;
        let answer = store
            .acquire(&self.claim, self.attempt, stand.as_ref(), deadline)
            .await;
        drop(turn);
        self.inner.metrics.asked(sent.elapsed(), &answer);
        (sent, answer)
    }

    /// Takes the locks if nothing is in the way. `crowd` is what keeps a request from waiting that would have.
    pub(super) async fn at_once(
        self,
        crowd: Option<QueueFull>,
    ) -> Result<AcquireAnswer, StoreError> {
        let (_, deadline) = self.inner.start();
        let (sent, answer) = self.clone().ask(None, deadline).await;
        let answer = match (answer, crowd) {
            (Ok(Acquired::Blocked(_) | Acquired::Recovering { .. }), Some(crowd)) => {
                Ok(AcquireAnswer {
                    outcome: AcquireOutcome::TooManyWaiters(crowd),
                    waited: Duration::ZERO,
                    undelivered: UnclaimedLease::nothing(),
                })
            }
            (Ok(acquired), _) => self.answer(acquired, sent, Duration::ZERO, false),
            (Err(error), _) => {
                if matches!(error, StoreError::Unknown { .. }) {
                    let ttl = self.claim.ttl.get();
                    self.clone().withdraw_in_background(ttl);
                }
                Err(error)
            }
        };
        self.inner.metrics.acquire(&self.claim, &answer);
        answer
    }

    /// What an outcome of the store means to the request. `was_unsure` says that an earlier answer to it was lost: then
    /// the claim may hold by that one, and nobody has been told.
    pub(super) fn answer(
        &self,
        acquired: Acquired,
        sent: Instant,
        waited: Duration,
        has_ambiguous_attempt: bool,
    ) -> Result<AcquireAnswer, StoreError> {
        let untold_for = match &acquired {
            Acquired::Granted(_) => Some(self.claim.ttl.get()),
            Acquired::Replayed(leases) if has_ambiguous_attempt || self.claim.takes_over => {
                longest(leases)
            }
            Acquired::Reentered(leases) if self.claim.takes_over => longest(leases),
            Acquired::Replayed(_)
            | Acquired::Reentered(_)
            | Acquired::Waiting(_)
            | Acquired::Superseded
            | Acquired::Blocked(_)
            | Acquired::Mismatched(_)
            | Acquired::TooManyWaiters { .. }
            | Acquired::WaitExpired
            | Acquired::Ended(_)
            | Acquired::Recovering { .. } => None,
        };
        // Cancellation safety: from here on, whatever drops the answer gives the grant back.
        let undelivered = match untold_for {
            Some(ttl) => UnclaimedLease::grant(self, ttl),
            None => UnclaimedLease::nothing(),
        };
        Ok(AcquireAnswer {
            outcome: outcome(acquired, sent)?,
            waited,
            undelivered,
        })
    }
}

/// How long it takes at the most until these leases end by themselves.
fn longest(leases: &[Lease]) -> Option<Duration> {
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
        Acquired::Mismatched(contradiction) => AcquireOutcome::Contradicts(contradiction),
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
