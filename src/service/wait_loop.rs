//! One waiting request: it polls the store, sleeps until the next poll, and ends with a grant, at its time limit, on
//! shutdown, or when its caller disconnects.
//!
//! `schedule` decides when it polls, and [`LocalWaiters`] which waiter is the head of its queue. Only a poll can be granted
//! the locks, so a lost message delays a waiter until its next regular poll and has no other effect.

mod stopping;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::Instant;

use super::acquire::{AcquireAnswer, AcquireFailure, Request, remaining};
use super::hold::{EventSender, HoldEvent};
use super::lease_counts::WaitStage;
use super::local_waiters::{LocalWaiters, QueuePlace};
use super::schedule::NextStep;
use super::waiter::{QueueAnswer, Waiter};
use crate::domain::{
    Acquired, Attempt, GrantKind, Position, QueueRequest, Refused, Rollback, Ticket, Waiting,
};
use crate::store::StoreError;
use stopping::StopReason;

/// The minimum lifetime of a ticket in the store; a longer wait refreshes its ticket.
const TICKET_TTL_MIN: Duration = Duration::from_secs(60);

/// One request that waits.
pub(super) struct WaitLoop {
    request: Request,
    waiter: Arc<Waiter>,
    /// Where changes of the position are sent.
    progress: Option<EventSender>,
    last_position: Option<Position>,
    queue_place: QueuePlace,
    has_left: bool,
    /// When the last answered request was sent.
    answered_at: Option<Instant>,
    ticket: Option<Ticket>,
    /// The error of the last poll.
    failure: Option<StoreError>,
    /// The outcome of a poll is unknown; the store may still apply it.
    has_ambiguous_attempt: bool,
}

/// The result of one poll.
enum PollResult {
    Answered(Instant, Result<Acquired, StoreError>),
    /// The wait ended before the answer to this request arrived.
    Interrupted(PendingAnswer),
}

type PendingAnswer =
    futures_util::future::BoxFuture<'static, (Instant, Result<Acquired, StoreError>)>;

impl WaitLoop {
    pub(super) fn new(request: Request, waiter: Arc<Waiter>, wait: Option<Duration>) -> Self {
        waiter
            .schedule()
            .end_at(wait.map(|wait| request.began + wait));
        Self {
            request,
            waiter,
            progress: None,
            last_position: None,
            queue_place: QueuePlace::Arriving,
            has_left: false,
            answered_at: None,
            ticket: None,
            failure: None,
            has_ambiguous_attempt: false,
        }
    }

    /// Sends changes of the position to `progress`.
    pub(super) fn with_progress(mut self, progress: EventSender) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Runs the wait to its end.
    ///
    /// # Cancel safety
    /// Do not drop the future: its claim may be in the queue. To cancel, drop the waiter's
    /// [`DisconnectGuard`](super::waiter::DisconnectGuard).
    pub(super) async fn run(mut self) -> Result<AcquireAnswer, AcquireFailure> {
        let ended = self.until_end().await;
        ended.map_err(|error| AcquireFailure {
            error,
            waited: self.waited(),
        })
    }

    async fn until_end(&mut self) -> Result<AcquireAnswer, StoreError> {
        loop {
            if self.is_admitted().await
                && let Some(end) = self.poll().await
            {
                return end;
            }
            if let Some(reason) = self.next_poll().await {
                return Box::pin(self.stop(reason)).await;
            }
        }
    }

    /// Waits until the store may be polled. Returns whether that was before the end of the wait.
    async fn is_admitted(&self) -> bool {
        // Few poll at a time, at a pace, and a poll may be for a lock that is reserved for this process.
        if self.request.claim.names.len() == 1 {
            return true;
        }
        tokio::select! {
            biased;
            () = self.request.slot.retake_before_peer() => true,
            _ = self.stopped() => false,
        }
    }

    /// Polls once. `None` if the wait continues.
    async fn poll(&mut self) -> Option<Result<AcquireAnswer, StoreError>> {
        // Before the poll, whose time to execute must not begin earlier than it is sent.
        let stage = WaitStage::of(self.ticket);
        if let Some(refused) = self.request.refused_by_quota(stage, self.deadline()).await {
            return Some(self.end(Instant::now(), refused));
        }
        let (sent, answer) = match self.poll_store().await {
            PollResult::Answered(sent, answer) => (sent, answer),
            PollResult::Interrupted(in_flight) => return Some(Err(self.abandon(in_flight))),
        };
        let answer = if self.has_expired_unseen(sent, &answer) {
            // Until it is rolled back, the store may still have the lease.
            self.has_ambiguous_attempt = true;
            match self.start_new_attempt().await {
                Ok(()) => {
                    self.waiter.schedule().repeat(sent);
                    return None;
                }
                Err(error) => Err(error),
            }
        } else {
            answer
        };
        let end = self.on_answer(sent, answer);
        // A waiter needs no slot, unless it is only about to leave the queue.
        if end.is_none() && !self.waiter.is_disconnected() {
            self.request.slot.release();
        }
        end
    }

    async fn poll_store(&mut self) -> PollResult {
        let queue_request = self.queue_request();
        // A re-entry cannot be rolled back. A poll that may re-enter must be too late before the client gets its answer.
        let may_reenter = queue_request.takes_over;
        let too_late_at = Instant::now() + queue_request.execute_within;
        let mut in_flight: PendingAnswer = Box::pin(self.request.clone().poll(queue_request));
        tokio::select! {
            biased;
            (sent, answer) = &mut in_flight => return PollResult::Answered(sent, answer),
            reason = self.stopped() => if reason == StopReason::Disconnected {
                // No caller waits, so there is time to wait for the outcome.
                let (sent, answer) = in_flight.await;
                return PollResult::Answered(sent, answer);
            },
        }
        let interrupted_at = match may_reenter {
            true => too_late_at,
            false => Instant::now() + self.in_flight_max(),
        };
        match tokio::time::timeout_at(interrupted_at, &mut in_flight).await {
            Ok((sent, answer)) => PollResult::Answered(sent, answer),
            Err(_) => PollResult::Interrupted(in_flight),
        }
    }

    /// Whether this request was granted a lease that expired before the grant could be reported, because the answer was
    /// late or was lost.
    fn has_expired_unseen(&self, sent: Instant, answer: &Result<Acquired, StoreError>) -> bool {
        let has_expired = match answer {
            Ok(Acquired::Granted(granted)) if granted.kind == GrantKind::New => {
                let mut leases = granted.leases.iter();
                leases.any(|lease| remaining(lease, sent).is_none())
            }
            Ok(Acquired::Refused(Refused::Ended(lost))) => {
                self.has_ambiguous_attempt && lost.reason.ran_out()
            }
            Ok(_) | Err(_) => false,
        };
        has_expired && !self.waiter.is_disconnected()
    }

    /// Rolls back this request's attempt and continues with a new one, as if it had never been granted. The store
    /// refuses late polls of the old attempt. A claim that ended for another reason is reported as ended again.
    async fn start_new_attempt(&mut self) -> Result<(), StoreError> {
        let deadline = self.deadline();
        let request = &mut self.request;
        let (store, attempt) = (&request.inner.store, request.attempt);
        let undo = store.withdraw(&request.claim, attempt, Rollback::Undo, deadline);
        let uncount = Box::pin(request.uncount(Rollback::Undo, deadline));
        let ((), undone) = join(uncount, undo).await;
        undone?;
        (request.attempt, request.took_over) = (Attempt::random(), Arc::default());
        self.has_ambiguous_attempt = false;
        Ok(())
    }

    /// The deadline of an operation within the wait.
    fn deadline(&self) -> Instant {
        let (_, deadline) = self.request.inner.start();
        self.waiter.schedule().limit(deadline)
    }

    fn queue_request(&mut self) -> QueueRequest {
        let now = Instant::now();
        let ticket_ttl = self.ticket_ttl();
        let mut schedule = self.waiter.schedule();
        let remaining = schedule.left(now);
        if schedule.begin_poll(now) {
            restart(&mut self.ticket);
        }
        if self.ticket.is_none_or(|ticket| ticket.until.is_none()) {
            schedule.start_ticket(now, ticket_ttl);
        }
        drop(schedule);
        let inner = &self.request.inner;
        QueueRequest {
            ticket: self.ticket,
            age: now.saturating_duration_since(self.request.began),
            wait: remaining.unwrap_or(ticket_ttl).min(ticket_ttl),
            execute_within: remaining.map_or(inner.operation_timeout, |remaining| {
                inner
                    .operation_timeout
                    .min(remaining + self.in_flight_max())
            }),
            place_kept: inner.waiting.place_kept,
            poll_interval: inner.queues.pace().of_head,
            waiters_max: inner.waiting.waiters_per_lock_max,
            wants_position: self.progress.is_some(),
            is_head: inner.queues.is_head(&self.waiter),
            takes_over: !self.was_queued() || self.waiter.may_take_over(),
        }
    }

    fn ticket_ttl(&self) -> Duration {
        self.request.inner.waiting.wait_max.max(TICKET_TTL_MIN)
    }

    /// Handles the store's answer. `None` if the wait continues.
    fn on_answer(
        &mut self,
        sent: Instant,
        answer: Result<Acquired, StoreError>,
    ) -> Option<Result<AcquireAnswer, StoreError>> {
        self.has_ambiguous_attempt |= matches!(answer, Err(StoreError::Unknown { .. }));
        match answer {
            Ok(Acquired::Waiting(waiting)) => {
                self.on_queued(sent, &waiting);
                None
            }
            Ok(Acquired::WaitExpired) => {
                // The store's clock was changed. The claim keeps its place.
                restart(&mut self.ticket);
                self.waiter.schedule().repeat(sent);
                None
            }
            Ok(Acquired::Superseded) => {
                self.on_superseded(sent);
                None
            }
            Ok(end) => Some(self.end(sent, end)),
            Err(error) if self.was_queued() => {
                self.on_failure(error);
                None
            }
            Err(error) => Some(Err(self.refused(error))),
        }
    }

    fn on_queued(&mut self, sent: Instant, waiting: &Waiting) {
        self.has_ambiguous_attempt |= waiting.has_ambiguous_attempt;
        let (queues, sequence) = (self.queues(), waiting.ticket.sequence);
        queues.enqueue(&self.waiter, self.queue_place, sequence, sent);
        self.record_answer(sent, waiting.recheck_in, waiting.restored);
        // For the position of a stream; and only another poll finds out whether an earlier one was granted the locks.
        let follows_up = self.progress.is_some() || self.has_ambiguous_attempt;
        let pace = queues.pace();
        self.waiter.schedule().queued(sent, follows_up, pace);
        self.queue_place = QueuePlace::At(sequence);
        self.answered_at = Some(sent);
        self.ticket = Some(waiting.ticket);
        self.failure = None;
        self.report_position(waiting.position);
    }

    /// The claim waits or holds by another request at another process now, as a rule a retry of the client. If that one
    /// soon ends, this one gets its place back: so it polls soon, and then less often. It blocks no other waiter.
    fn on_superseded(&mut self, sent: Instant) {
        self.queues().dequeue_early(&self.waiter, self.queue_place);
        self.queue_place = QueuePlace::Superseded;
        let pace = self.queues().pace();
        self.waiter.schedule().superseded(sent, pace);
        self.failure = None;
        // A late poll could enqueue the claim here again after it has stopped waiting elsewhere.
        self.has_ambiguous_attempt = true;
    }

    fn was_queued(&self) -> bool {
        self.queue_place != QueuePlace::Arriving
    }

    fn record_answer(&self, sent: Instant, recheck_in: Option<Duration>, restored: bool) {
        let answer = QueueAnswer {
            sent,
            before: self.answered_at,
            recheck_in,
            restored,
        };
        self.queues().record_answer(&self.waiter, answer);
    }

    fn report_position(&mut self, position: Option<Position>) {
        if let (Some(progress), Some(position)) = (&self.progress, position)
            && self.last_position != Some(position)
            // A slow reader gets the position of a later poll; the wait does not block on it.
            && progress.try_send(HoldEvent::Queued(position))
        {
            self.last_position = Some(position);
        }
    }

    /// Schedules a retry with back-off: the claim still has its place in the store.
    fn on_failure(&mut self, error: StoreError) {
        let queues = self.queues();
        let (is_head, pace) = (queues.is_first(&self.waiter), queues.pace());
        let now = Instant::now();
        let retry_at = self.waiter.schedule().failed(now, is_head, pace);
        queues.record_failure(&self.waiter, retry_at);
        self.failure = Some(error);
    }

    /// Sleeps until the next poll, or returns why the wait ends before it.
    async fn next_poll(&mut self) -> Option<StopReason> {
        loop {
            if let Some(reason) = self.stop_reason() {
                return Some(reason);
            }
            let now = Instant::now();
            let head_at = self.queues().next_head_poll(&self.waiter, now);
            let next = self.waiter.schedule().next(now, head_at);
            match next {
                NextStep::Poll => return None,
                NextStep::Sleep(until) => self.sleep(until).await,
            }
        }
    }

    async fn stopped(&self) -> StopReason {
        loop {
            if let Some(reason) = self.stop_reason() {
                return reason;
            }
            let ends_at = self.waiter.schedule().ends_at();
            self.sleep(ends_at).await;
        }
    }

    /// Sleeps until then, or until woken or draining.
    async fn sleep(&self, until: Option<Instant>) {
        let time = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.waiter.woken() => {}
            () = self.request.inner.draining.cancelled() => {}
            () = time => {}
        }
    }

    fn queues(&self) -> &LocalWaiters {
        &self.request.inner.queues
    }
}

/// Restarts the ticket's lifetime at the next poll. Keeps its sequence number, so that a store that has lost the place
/// can restore it.
fn restart(ticket: &mut Option<Ticket>) {
    if let Some(ticket) = ticket {
        ticket.until = None;
    }
}
