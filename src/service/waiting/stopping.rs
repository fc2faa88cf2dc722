//! The ends of a wait. Whatever the end, the claim does not stand in the queue of this process afterwards, and is granted
//! nothing that its client is not told of.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{UnderWay, Wait};
use crate::domain::{Acquired, Lease, Parked};
use crate::service::Undelivered;
use crate::service::answer::{AcquireAnswer, Outcome, Unserved};
use crate::service::queues::Left;
use crate::store::{Fault, StoreError};

/// How long stepping out of the queue may keep an answer back.
const PARK_MAX: Duration = Duration::from_millis(150);
/// No answer comes later than that after the end of its wait.
const LATE_MAX: Duration = Duration::from_millis(200);

/// Why a wait ended without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Nobody waits for the answer any more.
    Gone,
    /// The process is about to stop.
    Draining,
    /// The time for waiting is over.
    TimedOut,
}

impl Wait {
    pub(super) fn why_stop(&self) -> Option<Stopped> {
        if self.waiter.is_gone() {
            Some(Stopped::Gone)
        } else if self.request.inner.draining.is_cancelled() {
            Some(Stopped::Draining)
        } else {
            let is_over = self.limit.is_some_and(|limit| limit <= Instant::now());
            is_over.then_some(Stopped::TimedOut)
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
            .answer(end, sent, self.waited(), self.was_unsure);
        let expires_in = match &answer {
            Ok(answer) => soonest_end(answer.outcome.leases()),
            Err(_) => None,
        };
        self.answered(sent, expires_in, false);
        if expires_in.is_some() {
            self.queues().granted(&self.waiter);
        }
        let Left { is_last, wakes } = self.leave();
        if self.was_unsure && expires_in.is_none() {
            // An ask whose answer was lost may arrive after this answer, and must not be granted then.
            self.give_up(None, is_last);
        }
        self.queues().call(self.waiter.claim.token);
        self.count(&answer);
        wakes.after_the_answer();
        answer
    }

    /// The first request of the wait failed. The client is told, and asks again.
    pub(super) fn refused(&mut self, error: StoreError) -> StoreError {
        let is_last = self.leave().is_last;
        if self.was_unsure {
            self.give_up(None, is_last);
        }
        let answer = Err(error.clone());
        self.count(&answer);
        error
    }

    /// The wait is over and a request is still under way: its outcome is unknown, and finding out has to wait.
    pub(super) fn abandon(&mut self, under_way: UnderWay) -> StoreError {
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
    pub(super) async fn stop(&mut self, why: Stopped) -> Result<AcquireAnswer, StoreError> {
        let is_last = self.leave().is_last;
        let answer = if let Some(failure) = self.failure.take() {
            self.give_up(None, is_last);
            Err(failure)
        } else {
            let unserved = match why {
                Stopped::Gone => {
                    self.give_up(None, is_last);
                    Unserved::default()
                }
                Stopped::Draining | Stopped::TimedOut => self.step_out(why, is_last).await,
            };
            Ok(AcquireAnswer {
                outcome: match why {
                    Stopped::Draining => Outcome::Draining(unserved),
                    Stopped::Gone | Stopped::TimedOut => Outcome::TimedOut(unserved),
                },
                waited: self.waited(),
                undelivered: Undelivered::nothing(),
            })
        };
        self.count(&answer);
        answer
    }

    /// Steps out while the client waits to hear how far it has come.
    async fn step_out(&mut self, why: Stopped, is_last: bool) -> Unserved {
        let inner = &self.request.inner;
        let place_kept = inner.waiting.place_kept;
        let not_told = Unserved {
            position: self.told,
            blocked_by: Vec::new(),
            place_kept,
        };
        if !is_last {
            return not_told;
        }
        if self.was_unsure {
            // First the withdrawal, then stepping out: an ask that is late would stand there again otherwise.
            self.give_up(None, true);
            return not_told;
        }
        let mut by = Instant::now() + PARK_MAX;
        if let (Stopped::TimedOut, Some(limit)) = (why, self.limit) {
            by = by.min(limit + LATE_MAX);
        }
        match timeout_at(by, inner.park(&self.request.claim, by)).await {
            Ok(Ok(Parked {
                position,
                blocked_by,
            })) => Unserved {
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
    fn give_up(&self, under_way: Option<UnderWay>, is_last: bool) {
        let request = self.request.clone();
        let is_unsure = self.was_unsure || under_way.is_some();
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
                request.inner.park_until_done(&request.claim).await;
            }
        });
    }

    fn waited(&self) -> Duration {
        match self.has_stood() {
            true => self.request.began.elapsed(),
            false => Duration::ZERO,
        }
    }

    fn leave(&mut self) -> Left {
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

impl Drop for Wait {
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
