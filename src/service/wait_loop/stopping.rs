//! The ends of a wait. Whatever the end, the claim does not stand in the queue of this process afterwards, and is granted
//! nothing that its client is not told of.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{PendingAnswer, WaitLoop};
use crate::domain::{Acquired, Lease, Suspended};
use crate::service::UnclaimedLease;
use crate::service::answer::{AcquireAnswer, AcquireOutcome, NotGranted};
use crate::service::local_waiters::Departure;
use crate::store::{Fault, StoreError};

/// How long stepping out of the queue may keep an answer back.
const SUSPEND_MAX: Duration = Duration::from_millis(150);
/// No answer comes later than that after the end of its wait.
const LATE_MAX: Duration = Duration::from_millis(200);

/// Why a wait ended without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Nobody waits for the answer any more.
    Disconnected,
    /// The process is about to stop.
    Draining,
    /// The time for waiting is over.
    TimedOut,
}

impl WaitLoop {
    pub(super) fn why_stop(&self) -> Option<StopReason> {
        if self.waiter.is_gone() {
            Some(StopReason::Disconnected)
        } else if self.request.inner.draining.is_cancelled() {
            Some(StopReason::Draining)
        } else {
            let is_over = self.limit.is_some_and(|limit| limit <= Instant::now());
            is_over.then_some(StopReason::TimedOut)
        }
    }

    /// The store has an answer other than to wait.
    pub(super) fn end(
        &mut self,
        sent: Instant,
        end: Acquired,
    ) -> Result<AcquireAnswer, StoreError> {
        let answer = self
            .request
            .answer(end, sent, self.waited(), self.has_ambiguous_attempt);
        let expires_in = match &answer {
            Ok(answer) => soonest_end(answer.outcome.leases()),
            Err(_) => None,
        };
        self.record_answer(sent, expires_in, false);
        if expires_in.is_some() {
            self.queues().granted(&self.waiter);
        }
        let Departure { is_last, wakes } = self.leave();
        if self.has_ambiguous_attempt && expires_in.is_none() {
            // An ask whose answer was lost may arrive after this answer, and must not be granted then.
            self.give_up(None, is_last);
        }
        self.queues().recheck(self.waiter.claim.token);
        self.count(&answer);
        wakes.defer();
        answer
    }

    /// The first request of the wait failed. The client is told, and asks again.
    pub(super) fn refused(&mut self, error: StoreError) -> StoreError {
        let is_last = self.leave().is_last;
        if self.has_ambiguous_attempt {
            self.give_up(None, is_last);
        }
        let answer = Err(error.clone());
        self.count(&answer);
        error
    }

    /// The wait is over and a request is still under way: its outcome is unknown, and finding out has to wait.
    pub(super) fn abandon(&mut self, under_way: PendingAnswer) -> StoreError {
        let is_last = self.leave().is_last;
        self.give_up(Some(under_way), is_last);
        let error = StoreError::unknown(
            Fault::Timeout,
            "the store had not answered when the wait was over",
        );
        self.count(&Err(error.clone()));
        error
    }

    /// The claim steps out of the queue.
    pub(super) async fn stop(&mut self, why: StopReason) -> Result<AcquireAnswer, StoreError> {
        let is_last = self.leave().is_last;
        let answer = if let Some(failure) = self.failure.take() {
            self.give_up(None, is_last);
            Err(failure)
        } else {
            let unserved = match why {
                StopReason::Disconnected => {
                    self.give_up(None, is_last);
                    NotGranted::default()
                }
                StopReason::Draining | StopReason::TimedOut => self.step_out(why, is_last).await,
            };
            Ok(AcquireAnswer {
                outcome: match why {
                    StopReason::Draining => AcquireOutcome::Draining(unserved),
                    StopReason::Disconnected | StopReason::TimedOut => {
                        AcquireOutcome::TimedOut(unserved)
                    }
                },
                waited: self.waited(),
                undelivered: UnclaimedLease::nothing(),
            })
        };
        self.count(&answer);
        answer
    }

    /// Steps out while the client waits to hear how far it has come.
    async fn step_out(&mut self, why: StopReason, is_last: bool) -> NotGranted {
        let inner = &self.request.inner;
        let place_kept = inner.waiting.place_kept;
        let not_told = NotGranted {
            position: self.told,
            blocked_by: Vec::new(),
            place_kept,
        };
        if !is_last {
            return not_told;
        }
        if self.has_ambiguous_attempt {
            // First the withdrawal, then stepping out: an ask that is late would stand there again otherwise.
            self.give_up(None, true);
            return not_told;
        }
        let mut by = Instant::now() + SUSPEND_MAX;
        if let (StopReason::TimedOut, Some(limit)) = (why, self.limit) {
            by = by.min(limit + LATE_MAX);
        }
        match timeout_at(by, inner.suspend(&self.request.claim, by)).await {
            Ok(Ok(Suspended {
                position,
                blocked_by,
            })) => NotGranted {
                position,
                blocked_by,
                place_kept: position.map_or(Duration::ZERO, |_| place_kept),
            },
            Ok(Err(_)) | Err(_) => {
                self.give_up(None, true);
                not_told
            }
        }
    }

    /// Takes back, after the answer, what the store may have done or may still do for this request.
    fn give_up(&self, under_way: Option<PendingAnswer>, is_last: bool) {
        let request = self.request.clone();
        let is_unsure = self.has_ambiguous_attempt || under_way.is_some();
        let inner = Arc::clone(&request.inner);
        inner.in_background(async move {
            if let Some(under_way) = under_way {
                // Whatever came of it is taken back.
                let _ = under_way.await;
            }
            if is_unsure {
                request
                    .inner
                    .withdraw(&request.claim, request.attempt)
                    .await;
            }
            if is_last {
                request.inner.suspend_until_done(&request.claim).await;
            }
        });
    }

    fn waited(&self) -> Duration {
        match self.has_stood() {
            true => self.request.began.elapsed(),
            false => Duration::ZERO,
        }
    }

    fn leave(&mut self) -> Departure {
        self.has_left = true;
        self.queues().leave(&self.waiter, self.standing)
    }

    fn count(&self, answer: &Result<AcquireAnswer, StoreError>) {
        let metrics = &self.request.inner.metrics;
        if self.waiter.is_gone() {
            metrics.disconnected(&self.request.claim);
        } else {
            metrics.acquire(&self.request.claim, answer);
        }
        if self.has_stood() {
            metrics.waited(self.request.began.elapsed(), answer, self.waiter.is_gone());
        }
    }
}

impl Drop for WaitLoop {
    fn drop(&mut self) {
        // A wait that panicked: those behind it must not wait for it.
        if !self.has_left {
            drop(self.leave());
        }
    }
}

fn soonest_end(leases: &[Lease]) -> Option<Duration> {
    leases.iter().map(|lease| lease.holder.expires_in).min()
}
