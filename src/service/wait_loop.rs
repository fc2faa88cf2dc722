//! One request that waits for its locks: it asks the store, sleeps until asking again is of use, and ends with a grant,
//! at its limit, when the process stops, or when nobody waits for its answer any more.
//!
//! When to ask is what [`LocalWaiters`] knows. Asking is all that there is to being granted: a message that was lost delays a
//! waiter until it looks again by itself, and nothing else.

mod stopping;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::acquire::Request;
use super::answer::AcquireAnswer;
use super::hold::{EventSender, HoldEvent};
use super::jitter;
use super::local_waiters::{LocalWaiters, QueueAnswer, QueuePlace};
use super::waiter::Waiter;
use crate::domain::{Acquired, Attempt, Position, QueueRequest, Rollback, Ticket, Waiting};
use crate::store::StoreError;
use stopping::StopReason;

/// How long a request may finish that is under way when the wait ends.
const UNDER_WAY_MAX: Duration = Duration::from_millis(100);
/// For how long a place is good in the store at the least; a longer wait says now and then that it goes on.
const PLACE_GOOD_MIN: Duration = Duration::from_secs(60);

/// One request that waits.
pub(super) struct WaitLoop {
    request: Request,
    waiter: Arc<Waiter>,
    /// When the wait is over, if ever.
    limit: Option<Instant>,
    /// Who is told how far the claim has come.
    progress: Option<EventSender>,
    told: Option<Position>,
    standing: QueuePlace,
    has_left: bool,
    /// When the last request was sent that was answered.
    answered_at: Option<Instant>,
    place: Option<Ticket>,
    /// When the place must be made good for longer.
    refresh_at: Option<Instant>,
    /// When this waiter asks for reasons of its own.
    asks_at: Option<Instant>,
    /// What the store could not do when it was asked last.
    failure: Option<StoreError>,
    /// The outcome of one ask has stayed unknown; it may be done later still.
    has_ambiguous_attempt: bool,
    pause: Option<Duration>,
}

/// What came of asking.
enum AskResult {
    Answered(Instant, Result<Acquired, StoreError>),
    /// The wait ended and no answer had come. This is what is still under way.
    Cut(PendingAnswer),
}

type PendingAnswer =
    futures_util::future::BoxFuture<'static, (Instant, Result<Acquired, StoreError>)>;

/// What a waiter does next.
enum NextStep {
    Ask,
    Stop(StopReason),
}

impl WaitLoop {
    pub(super) fn new(request: Request, waiter: Arc<Waiter>, wait: Option<Duration>) -> Self {
        Self {
            limit: wait.map(|wait| request.began + wait),
            request,
            waiter,
            progress: None,
            told: None,
            standing: QueuePlace::Arriving,
            has_left: false,
            answered_at: None,
            place: None,
            refresh_at: None,
            asks_at: None,
            failure: None,
            has_ambiguous_attempt: false,
            pause: None,
        }
    }

    /// The same wait, of which somebody wants to know how far it has come, and whose claim does not keep its place when
    /// its caller is gone.
    pub(super) fn telling(mut self, tells: EventSender) -> Self {
        self.progress = Some(tells);
        self
    }

    /// Waits to the end.
    ///
    /// # Cancel safety
    /// Not to be dropped: it may stand in the queue. Whoever waits for the answer says by [`DisconnectGuard`](super::waiter::Caller)
    /// that it is gone.
    pub(super) async fn run(mut self) -> Result<AcquireAnswer, StoreError> {
        loop {
            match self.ask().await {
                AskResult::Answered(sent, answer) => {
                    let answer = if self.may_have_held(&answer) {
                        match self.begin_anew().await {
                            Ok(()) => continue,
                            Err(error) => Err(error),
                        }
                    } else {
                        answer
                    };
                    if let Some(end) = self.on_answer(sent, answer) {
                        return end;
                    }
                    // It waits, which takes up no room, unless it is only there to leave the queue.
                    if !self.waiter.is_gone() {
                        self.request.slot.release();
                    }
                }
                AskResult::Cut(under_way) => return Err(self.abandon(under_way)),
            }
            match self.next_step().await {
                NextStep::Ask => {}
                NextStep::Stop(why) => return Box::pin(self.stop(why)).await,
            }
        }
    }

    async fn ask(&mut self) -> AskResult {
        let stand = self.stand();
        self.asks_at = None;
        // What is entered again cannot be rolled back, so an ask that may do that has to be too late before its client is answered.
        let may_reenter = stand.takes_over;
        let deadline = self.ask_deadline();
        let asked = self.request.clone().ask(Some(stand), deadline);
        let mut under_way: PendingAnswer = Box::pin(asked);
        tokio::select! {
            biased;
            (sent, answer) = &mut under_way => return AskResult::Answered(sent, answer),
            why = self.stopped() => if why == StopReason::Disconnected {
                // Nobody waits for it, so there is time to find out what became of it.
                let (sent, answer) = under_way.await;
                return AskResult::Answered(sent, answer);
            },
        }
        let cut_at = if may_reenter {
            deadline
        } else {
            Instant::now() + UNDER_WAY_MAX
        };
        match tokio::time::timeout_at(cut_at, &mut under_way).await {
            Ok((sent, answer)) => AskResult::Answered(sent, answer),
            Err(_) => AskResult::Cut(under_way),
        }
    }

    /// When the store must have answered what is asked now.
    fn ask_deadline(&self) -> Instant {
        let (_, deadline) = self.request.inner.start();
        let cut_at = self.limit.map(|limit| limit + UNDER_WAY_MAX);
        cut_at.map_or(deadline, |cut_at| cut_at.min(deadline))
    }

    /// Whether the claim may have ended by a lease of this very request that ran out: the answer that granted it was lost.
    fn may_have_held(&self, answer: &Result<Acquired, StoreError>) -> bool {
        let ran_out = matches!(answer, Ok(Acquired::Ended(lost)) if lost.reason.ran_out());
        ran_out && self.has_ambiguous_attempt && !self.waiter.is_gone()
    }

    /// Goes on waiting as one that was never granted anything. What this request did before is withdrawn, and asks of it that
    /// are late are refused; so another attempt asks from now on. A claim that ended otherwise is found to have ended again.
    async fn begin_anew(&mut self) -> Result<(), StoreError> {
        let Request {
            inner,
            claim,
            attempt,
            ..
        } = &mut self.request;
        let (_, deadline) = inner.start();
        let deadline = self.limit.map_or(deadline, |limit| limit.min(deadline));
        let withdrawn = inner
            .store
            .withdraw(claim, *attempt, Rollback::Undo, deadline);
        withdrawn.await?;
        *attempt = Attempt::random();
        self.has_ambiguous_attempt = false;
        Ok(())
    }

    fn stand(&mut self) -> QueueRequest {
        let now = Instant::now();
        let good_for = self.ticket_ttl();
        let remaining = self.limit.map(|limit| limit.saturating_duration_since(now));
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.count_anew();
        }
        if self.place.is_none_or(|place| place.until.is_none()) {
            let goes_on = remaining.is_none_or(|remaining| remaining > good_for);
            self.refresh_at = goes_on.then(|| now + good_for / 6 * 5);
        }
        let inner = &self.request.inner;
        QueueRequest {
            place: self.place,
            wait: remaining.unwrap_or(good_for).min(good_for),
            place_kept: inner.waiting.place_kept,
            poll_interval: inner.queues.poll_interval(),
            waiters_max: inner.waiting.waiters_per_lock_max,
            tells_position: self.progress.is_some(),
            is_head: inner.queues.is_head(&self.waiter),
            takes_over: !self.has_stood() || self.waiter.is_heir(),
        }
    }

    /// The time for which the place is good is to be counted from the next request on. The place itself is kept: a store that
    /// has lost it learns where the claim stood.
    fn count_anew(&mut self) {
        if let Some(place) = &mut self.place {
            place.until = None;
        }
    }

    fn ticket_ttl(&self) -> Duration {
        self.request.inner.waiting.wait_max.max(PLACE_GOOD_MIN)
    }

    /// Takes in what the store answered. None if the wait goes on.
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
                // The store's clock was set. The claim still has its place.
                self.count_anew();
                self.asks_at = Some(sent);
                None
            }
            Ok(Acquired::Superseded) => {
                self.step_aside();
                None
            }
            Ok(end) => Some(self.end(sent, end)),
            Err(error) if self.has_stood() => {
                self.failed(error);
                None
            }
            Err(error) => Some(Err(self.refused(error))),
        }
    }

    fn on_queued(&mut self, sent: Instant, waiting: &Waiting) {
        self.has_ambiguous_attempt |= waiting.is_unsure;
        let (queues, sequence) = (self.queues(), waiting.place.sequence);
        queues.stand(&self.waiter, self.standing, sequence, sent);
        self.record_answer(sent, waiting.recheck_in, waiting.restored);
        if self.progress.is_some() {
            self.asks_at = Some(sent + jitter::about(queues.progress_interval()));
        } else if self.has_ambiguous_attempt {
            // An ask that is late may be granted behind the back of those who stand before it here.
            self.asks_at = Some(sent + jitter::about(queues.poll_interval()));
        }
        self.standing = QueuePlace::At(sequence);
        self.answered_at = Some(sent);
        self.place = Some(waiting.place);
        self.failure = None;
        self.pause = None;
        self.tell(waiting.position);
    }

    /// The client has asked again elsewhere, where the claim waits or holds now. This request stays until its client is gone or
    /// its time is over, and keeps nobody waiting meanwhile.
    fn step_aside(&mut self) {
        self.queues().step_out_early(&self.waiter, self.standing);
        self.standing = QueuePlace::Aside;
        self.refresh_at = None;
        self.failure = None;
        // Should an earlier try of an ask arrive when the claim waits nowhere any more, it would stand here again.
        self.has_ambiguous_attempt = true;
    }

    fn has_stood(&self) -> bool {
        self.standing != QueuePlace::Arriving
    }

    fn record_answer(&self, sent: Instant, look_in: Option<Duration>, restored: bool) {
        let answered = QueueAnswer {
            sent,
            before: self.answered_at,
            recheck_in: look_in,
            restored,
        };
        self.queues().record_answer(&self.waiter, answered);
    }

    fn tell(&mut self, position: Option<Position>) {
        if let (Some(tells), Some(position)) = (&self.progress, position)
            && self.told != Some(position)
            // Who reads slowly is told the next time. Nothing waits for that.
            && tells.at_once(HoldEvent::Queued(position))
        {
            self.told = Some(position);
        }
    }

    /// The claim goes on waiting though the store did not answer: it stands there all the same.
    fn failed(&mut self, error: StoreError) {
        let queues = self.queues();
        let (least, most) = if queues.is_first(&self.waiter) {
            let looks_every = queues.poll_interval();
            (looks_every / 10, looks_every)
        } else {
            // There may be very many of these.
            (queues.progress_interval(), queues.progress_interval())
        };
        let pause = self.pause.map_or(least, |pause| (pause * 2).min(most));
        let again = Instant::now() + jitter::about(pause);
        self.queues().record_failure(&self.waiter, again);
        self.asks_at = Some(again);
        self.pause = Some(pause);
        self.failure = Some(error);
    }

    /// Sleeps until there is something to do.
    async fn next_step(&mut self) -> NextStep {
        loop {
            if let Some(why) = self.why_stop() {
                return NextStep::Stop(why);
            }
            let now = Instant::now();
            let own = [self.asks_at, self.refresh_at].into_iter().flatten();
            let asks_at = self
                .queues()
                .next_poll(&self.waiter, now)
                .into_iter()
                .chain(own)
                .min();
            if asks_at.is_some_and(|at| at <= now) {
                return NextStep::Ask;
            }
            self.sleep(asks_at.into_iter().chain(self.limit).min())
                .await;
        }
    }

    async fn stopped(&self) -> StopReason {
        loop {
            if let Some(why) = self.why_stop() {
                return why;
            }
            self.sleep(self.limit).await;
        }
    }

    /// Until then, or until something may have changed.
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
