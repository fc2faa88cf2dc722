//! The ends of a wait. After each of them, the claim is not in the queue of this process, and an undelivered grant is
//! rolled back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{PendingAnswer, WaitLoop};
use crate::domain::{
    Acquired, GrantKind, Granted, HoldCount, LockName, Refused, Rollback, Suspended,
};
use crate::service::UnclaimedLease;
use crate::service::acquire::{AcquireAnswer, AcquireOutcome, NotGranted};
use crate::service::local_waiters::{Departure, SentRelease};
use crate::store::{Fault, StoreError};
use crate::telemetry::traces::{self, SpanKind};

/// How long a poll that is in flight when the wait ends may still take.
const IN_FLIGHT_MAX: Duration = Duration::from_millis(100);
/// The same of a claim that may re-enter: a quorum waits for half a second for a node that is slow to change a lease.
const REENTRY_IN_FLIGHT_MAX: Duration = Duration::from_millis(600);
/// How long leaving the queue may delay an answer.
const SUSPEND_MAX: Duration = Duration::from_millis(150);
/// The same if the wait has timed out, after the longest time that its last poll may take.
const LATE_MAX: Duration = Duration::from_millis(100);

/// How many bytes the names of a claim's locks may take in the span of its wait.
const TRACED_NAMES_BYTES_MAX: usize = 1_024;

/// Why a wait ended without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The caller has disconnected.
    Disconnected,
    /// The process is shutting down.
    Draining,
    /// The wait timed out.
    TimedOut,
}

impl WaitLoop {
    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        if self.waiter.is_disconnected() {
            Some(StopReason::Disconnected)
        } else if self.request.inner.draining.is_cancelled() {
            Some(StopReason::Draining)
        } else {
            let is_over = self.waiter.schedule().is_over(Instant::now());
            is_over.then_some(StopReason::TimedOut)
        }
    }

    pub(super) fn in_flight_max(&self) -> Duration {
        match self.request.claim.hold_count > HoldCount::ONE {
            true => REENTRY_IN_FLIGHT_MAX,
            false => IN_FLIGHT_MAX,
        }
    }

    /// Ends the wait with the store's final answer.
    pub(super) fn end(
        &mut self,
        sent: Instant,
        end: Acquired,
    ) -> Result<AcquireAnswer, StoreError> {
        // Without asking the store, which still has its place then.
        let is_over_quota = matches!(end, Acquired::Refused(Refused::TooManyLeases { .. }));
        let keeps_place = is_over_quota && self.was_queued();
        let answer = self.request.answer(end, sent, self.waited());
        let granted = match &answer {
            Ok(answer) => answer.outcome.granted(),
            Err(_) => None,
        };
        let expires_in = granted.and_then(soonest_end);
        // Where the claim does not hold, nothing keeps the next waiter from its turn. If another request of the claim was
        // granted the lock before, this one may have followed the reservation of the next waiter.
        let is_new = granted.is_some_and(|granted| granted.kind == GrantKind::New);
        let recheck_in = expires_in.filter(|_| is_new).unwrap_or_default();
        self.record_answer(sent, Some(recheck_in), false);
        let releases = match expires_in {
            Some(_) => self.queues().granted(&self.waiter),
            None => Vec::new(),
        };
        let Departure { is_last, wakes } = self.leave();
        if (self.has_ambiguous_attempt || keeps_place) && expires_in.is_none() {
            // A poll whose answer was lost may still arrive, and must not be granted then.
            self.clean_up(None, is_last);
        }
        self.count(&answer, &releases);
        wakes.defer();
        answer
    }

    /// Ends the wait because its first poll failed. The client receives the error and retries.
    pub(super) fn refused(&mut self, error: StoreError) -> StoreError {
        let is_last = self.leave().is_last;
        if self.has_ambiguous_attempt {
            self.clean_up(None, is_last);
        }
        let error = self.outcome_of(error);
        self.count(&Err(error.clone()), &[]);
        error
    }

    /// The failure of the last poll, as the outcome of all: an earlier one may have been granted.
    fn outcome_of(&self, failure: StoreError) -> StoreError {
        match self.has_ambiguous_attempt {
            true => StoreError::unknown(failure.fault(), failure.detail()),
            false => failure,
        }
    }

    /// Ends the wait while a poll is in flight. Its outcome is unknown, and is resolved in the background.
    pub(super) fn abandon(&mut self, in_flight: PendingAnswer) -> StoreError {
        let is_last = self.leave().is_last;
        self.clean_up(Some(in_flight), is_last);
        let error = StoreError::unknown(
            Fault::Timeout,
            "the store had not answered when the wait was over",
        );
        self.count(&Err(error.clone()), &[]);
        error
    }

    /// Ends the wait without a final answer of the store: the claim leaves the queue.
    pub(super) async fn stop(&mut self, reason: StopReason) -> Result<AcquireAnswer, StoreError> {
        let is_last = self.leave().is_last;
        let answer = if let Some(failure) = self.failure.take() {
            self.clean_up(None, is_last);
            Err(self.outcome_of(failure))
        } else {
            let not_granted = match reason {
                StopReason::Disconnected => {
                    self.clean_up(None, is_last);
                    NotGranted::default()
                }
                StopReason::Draining | StopReason::TimedOut => {
                    self.leave_queue(reason, is_last).await
                }
            };
            Ok(AcquireAnswer {
                outcome: match reason {
                    StopReason::Draining => AcquireOutcome::Draining(not_granted),
                    StopReason::Disconnected | StopReason::TimedOut => {
                        AcquireOutcome::TimedOut(not_granted)
                    }
                },
                waited: self.waited(),
                unclaimed: UnclaimedLease::nothing(),
            })
        };
        self.count(&answer, &[]);
        answer
    }

    /// Leaves the queue before the answer, which reports the last position.
    async fn leave_queue(&mut self, reason: StopReason, is_last: bool) -> NotGranted {
        let inner = &self.request.inner;
        let place_kept = inner.waiting.place_kept;
        let unconfirmed = NotGranted {
            position: self.last_position,
            blocked_by: Vec::new(),
            place_kept,
        };
        if !is_last {
            return unconfirmed;
        }
        if self.has_ambiguous_attempt {
            // Roll back before leaving the queue; otherwise a late poll could enqueue the claim again.
            self.clean_up(None, true);
            return unconfirmed;
        }
        let mut by = Instant::now() + SUSPEND_MAX;
        if let (StopReason::TimedOut, Some(ends_at)) = (reason, self.waiter.schedule().ends_at()) {
            by = by.min(ends_at + self.in_flight_max() + LATE_MAX);
        }
        let suspend = async {
            self.request.slot.retake().await;
            inner.suspend(&self.request.claim, true, by).await
        };
        match timeout_at(by, suspend).await {
            Ok(Ok(Suspended {
                position,
                blocked_by,
            })) => NotGranted {
                position,
                blocked_by,
                place_kept: position.map_or(Duration::ZERO, |_| place_kept),
            },
            Ok(Err(_)) | Err(_) => {
                self.clean_up(None, true);
                unconfirmed
            }
        }
    }

    /// Rolls back in the background what the store may have done, or may still do, and leaves the queue if `is_last`.
    /// The waiter keeps its places until then, so that such tasks cannot pile up.
    fn clean_up(&self, in_flight: Option<PendingAnswer>, is_last: bool) {
        let request = self.request.clone();
        let is_ambiguous = self.has_ambiguous_attempt || in_flight.is_some();
        if !is_ambiguous && !is_last {
            return;
        }
        let (inner, waiter) = (Arc::clone(&request.inner), Arc::clone(&self.waiter));
        inner.in_background(async move {
            if let Some(in_flight) = in_flight {
                // Whatever the outcome, it is rolled back below.
                let _ = in_flight.await;
            }
            if is_ambiguous {
                let ttl = request.claim.ttl.get();
                request.roll_back(Rollback::Undo, ttl).await;
            }
            if is_last {
                request.leave_queue().await;
            }
            // A stream of the request may have an unread event.
            request.slot.release();
            drop(waiter);
        });
    }

    /// How long the request has been in the queue; zero if it never was.
    pub(super) fn waited(&self) -> Duration {
        match self.was_queued() {
            true => self.request.began.elapsed(),
            false => Duration::ZERO,
        }
    }

    fn leave(&mut self) -> Departure {
        self.has_left = true;
        let departure = self.queues().leave(&self.waiter, self.queue_place);
        if !departure.is_last {
            // The store's ticket of the claim has the time limit of this request.
            self.queues().recheck(self.waiter.claim.token);
        }
        departure
    }

    /// Counts the end in the metrics, and records the wait in the trace of the request.
    fn count(&self, answer: &Result<AcquireAnswer, StoreError>, releases: &[SentRelease]) {
        let metrics = &self.request.inner.metrics;
        if self.waiter.is_disconnected() {
            metrics.acquires.disconnected(&self.request.claim);
        } else {
            metrics.acquires.record(&self.request.claim, answer);
        }
        if self.was_queued() {
            let outcome = metrics.acquires.waited(
                self.request.began.elapsed(),
                answer,
                self.waiter.is_disconnected(),
            );
            self.record_span(outcome, releases);
        }
    }

    /// The span of the wait, with links to the releases that ended it.
    fn record_span(&self, outcome: &'static str, releases: &[SentRelease]) {
        let Some(scope) = traces::current() else {
            return;
        };
        // A release that was sent before the last poll did not end the wait, or else the poll would have.
        let blocked_at = self.answered_at;
        let releases = releases.iter();
        let releases = releases.filter(|release| Some(release.sent_at) >= blocked_at);
        scope.record(SpanKind::Internal, self.request.began, |span| {
            span.name("wait for the lock");
            span.text(
                "leasehold.lock.names",
                traced_names(&self.request.claim.names),
            );
            span.text("leasehold.wait.outcome", outcome);
            releases.for_each(|release| span.link(release.span));
        });
    }
}

impl Drop for WaitLoop {
    fn drop(&mut self) {
        // The wait panicked. It must not block the waiters behind it, here or in the store, and nobody receives what its
        // last poll may have been granted.
        if !self.has_left {
            self.has_ambiguous_attempt = true;
            let is_last = self.leave().is_last;
            self.clean_up(None, is_last);
        }
    }
}

/// The first of these names, and `…` if there are more than a span has room for.
fn traced_names(names: &[LockName]) -> String {
    let mut traced = String::new();
    for name in names {
        if traced.len() + name.as_str().len() >= TRACED_NAMES_BYTES_MAX {
            traced.push('…');
            break;
        }
        traced.push_str(name.as_str());
        traced.push(' ');
    }
    traced.truncate(traced.trim_end().len());
    traced
}

fn soonest_end(granted: &Granted) -> Option<Duration> {
    let leases = granted.leases.iter();
    leases.map(|lease| lease.holder.expires_in).min()
}
