//! When a waiting request polls the store next: the earliest of all reasons.
//!
//! Only the head waiter of a queue polls regularly, by the [`HeadSchedule`] of the queue. Every other reason is one of the
//! request itself, in its [`PollSchedule`].

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::{self, Backoff};

/// The average time between two polls of a process is at least this, and n times as long for polls of n locks.
pub(super) const POLL_SPACING: Duration = Duration::from_millis(1);
/// How often a waiting stream is sent its position, at most.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Spreads the polls of all head waiters after messages may have been lost.
const RECHECK_SPREAD: Duration = Duration::from_millis(200);
/// How soon a waiter polls again if its claim now waits elsewhere; doubled up to the interval of progress.
const SUPERSEDED_PAUSE_MIN: Duration = Duration::from_millis(50);

/// How often the waiters of this process poll. With very many waiters, less often than configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollPace {
    /// How often the head waiter of a queue polls.
    pub(super) of_head: Duration,
    /// How often a waiter may poll for a reason of its own, whatever its place.
    pub(super) of_others: Duration,
}

/// When one waiting request polls. Its own task and all tasks that know of a reason share it.
#[derive(Debug, Default)]
pub(super) struct PollSchedule {
    /// When the wait times out, if ever.
    ends_at: Option<Instant>,
    /// When the ticket must be refreshed.
    refresh_at: Option<Instant>,
    /// When the request polls because of its last answer, or because it had none.
    follow_up_at: Option<Instant>,
    /// When it polls because another task knows that the state of its claim may have changed.
    recheck_at: Option<Instant>,
    backoff: Backoff,
}

/// What a waiting request does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// It polls.
    Poll,
    /// It sleeps until then, or until it is woken.
    Sleep(Option<Instant>),
}

impl PollPace {
    /// The pace of a process that polls every `interval` as configured, whose heads make this many polls in turn, and
    /// whose waiters have this many places.
    pub(super) fn new(interval: Duration, polls: usize, places: usize) -> Self {
        let spaced = |count| POLL_SPACING * u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            of_head: interval.max(spaced(polls)),
            of_others: PROGRESS_INTERVAL.max(spaced(places)),
        }
    }
}

impl PollSchedule {
    /// Sets the end of the wait.
    pub(super) fn end_at(&mut self, ends_at: Option<Instant>) {
        self.ends_at = ends_at;
    }

    /// The end of the wait.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.ends_at
    }

    /// What is left of the wait; `None` if it never times out.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        Some(self.ends_at?.saturating_duration_since(now))
    }

    /// Whether the wait has timed out.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }

    /// The earlier of this time and the end of the wait.
    pub(super) fn limit(&self, at: Instant) -> Instant {
        self.ends_at.map_or(at, |ends_at| ends_at.min(at))
    }

    /// What to do now. `head_at` is when the request polls as the head of its queues, if it is one.
    pub(super) fn next(&mut self, now: Instant, head_at: Option<Instant>) -> NextStep {
        let recheck_at = self.recheck_at;
        self.recheck_at.take_if(|at| *at <= now);
        let reasons = [head_at, recheck_at, self.follow_up_at, self.refresh_at];
        match reasons.into_iter().flatten().min() {
            Some(poll_at) if poll_at <= now => NextStep::Poll,
            poll_at => NextStep::Sleep(poll_at.into_iter().chain(self.ends_at).min()),
        }
    }

    /// The request polls. Returns whether its ticket must be refreshed.
    pub(super) fn begin_poll(&mut self, now: Instant) -> bool {
        self.follow_up_at = None;
        self.refresh_at.is_some_and(|at| at <= now)
    }

    /// The request gets a ticket with this TTL, which it refreshes in time if the wait is longer.
    pub(super) fn start_ticket(&mut self, now: Instant, ttl: Duration) {
        let outlasts_ticket = self.left(now).is_none_or(|left| left > ttl);
        self.refresh_at = outlasts_ticket.then(|| now + ttl / 6 * 5);
    }

    /// The request sent at `sent` found its claim in the queue. If it `follows_up`, it polls again by itself, although it
    /// need not be the head.
    pub(super) fn queued(&mut self, sent: Instant, follows_up: bool, pace: PollPace) {
        self.backoff.reset();
        self.follow_up_at = follows_up.then(|| sent + backoff::jittered(pace.of_others));
    }

    /// The request sent at `sent` must be repeated at once.
    pub(super) fn repeat(&mut self, sent: Instant) {
        self.follow_up_at = Some(sent);
    }

    /// The request sent at `sent` found its claim waiting or holding elsewhere: it polls soon, and then less often.
    pub(super) fn superseded(&mut self, sent: Instant, pace: PollPace) {
        self.refresh_at = None;
        let pause = self.backoff.next(SUPERSEDED_PAUSE_MIN, pace.of_others);
        self.follow_up_at = Some(sent + backoff::jittered(pause));
    }

    /// The store failed. Returns when the request is repeated.
    pub(super) fn failed(&mut self, now: Instant, is_head: bool, pace: PollPace) -> Instant {
        let (least, most) = match is_head {
            true => (pace.of_head / 10, pace.of_head),
            // There may be very many waiters that are not the head.
            false => (pace.of_others, pace.of_others),
        };
        let retry_at = now + backoff::jittered(self.backoff.next(least, most));
        self.follow_up_at = Some(retry_at);
        retry_at
    }

    /// Another task knows that the state of the claim may have changed: the request polls then, or earlier.
    pub(super) fn recheck(&mut self, at: Instant) {
        self.recheck_at = Some(self.recheck_at.map_or(at, |before| before.min(at)));
    }
}

/// When the head waiter of one queue polls, whichever that is.
#[derive(Debug)]
pub(super) struct HeadSchedule {
    /// The next regular poll, or the expiry of something in the way.
    poll_at: Instant,
    /// The lock was reserved, and no waiter has polled since.
    is_reserved: bool,
    reserved_at: Option<Instant>,
}

impl HeadSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            poll_at: now,
            is_reserved: false,
            reserved_at: None,
        }
    }

    /// When the head must poll. This takes a reservation: the head must then poll now.
    pub(super) fn next(&mut self, now: Instant) -> Instant {
        match std::mem::take(&mut self.is_reserved) {
            true => now,
            false => self.poll_at,
        }
    }

    /// The poll sent at `sent` was answered. `recheck_in` is when something expires, counted from the request.
    pub(super) fn on_answer(
        &mut self,
        sent: Instant,
        recheck_in: Option<Duration>,
        pace: PollPace,
    ) {
        let regular = sent + backoff::jittered(pace.of_head);
        let recheck = recheck_in.map(|recheck_in| sent + recheck_in + backoff::past_expiry());
        self.poll_at = recheck.map_or(regular, |recheck| recheck.min(regular));
    }

    /// The head, or its successor, polls then.
    pub(super) fn poll_at(&mut self, at: Instant) {
        self.poll_at = at;
    }

    /// Messages may have been lost: the head polls soon.
    pub(super) fn poll_soon(&mut self, now: Instant) {
        let soon = now + backoff::up_to(RECHECK_SPREAD);
        self.poll_at = self.poll_at.min(soon);
    }

    /// The store reserved the lock for the head.
    pub(super) fn reserve(&mut self, now: Instant) {
        self.is_reserved = true;
        self.reserved_at = Some(now);
    }

    /// A waiter became the head by the answer to a poll sent at `sent`. A reservation that overtook this answer may
    /// have gone to another head, or to none.
    pub(super) fn new_head(&mut self, sent: Instant) {
        self.is_reserved |= self
            .reserved_at
            .is_some_and(|reserved_at| reserved_at >= sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const PACE: PollPace = PollPace {
        of_head: Duration::from_secs(10),
        of_others: Duration::from_secs(4),
    };

    fn waiting_for(wait: Duration) -> (PollSchedule, Instant) {
        let (mut schedule, now) = (PollSchedule::default(), Instant::now());
        schedule.end_at(Some(now + wait));
        (schedule, now)
    }

    /// Fails unless the request sleeps until within 5 % to 25 % before `latest`.
    #[track_caller]
    fn assert_jittered(step: NextStep, now: Instant, latest: Duration) {
        let NextStep::Sleep(Some(until)) = step else {
            panic!("it sleeps, but: {step:?}");
        };
        let pause = until - now;
        let range = latest.mul_f64(0.75)..=latest.mul_f64(0.951);
        assert!(range.contains(&pause), "{pause:?} is not in {range:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_polls_for_the_first_of_its_reasons_and_else_sleeps_until_the_end_of_its_wait()
     {
        let (mut schedule, now) = waiting_for(SECOND * 60);
        assert_eq!(
            schedule.next(now, None),
            NextStep::Sleep(Some(now + SECOND * 60))
        );
        schedule.start_ticket(now, SECOND * 30);
        let until = |seconds| NextStep::Sleep(Some(now + SECOND * seconds));
        assert_eq!(schedule.next(now, None), until(25), "the ticket");
        schedule.repeat(now + SECOND * 20);
        assert_eq!(schedule.next(now, None), until(20), "the follow-up");
        let head_at = Some(now + SECOND * 15);
        assert_eq!(schedule.next(now, head_at), until(15), "the head");
        schedule.recheck(now + SECOND * 10);
        assert_eq!(schedule.next(now, head_at), until(10), "the recheck");
        assert_eq!(
            schedule.next(now + SECOND * 10, head_at),
            NextStep::Poll,
            "the first of them"
        );
        schedule.begin_poll(now + SECOND * 10);
        let refresh_at = now + SECOND * 25;
        let next = schedule.next(refresh_at - SECOND, None);
        assert_eq!(next, until(25), "the poll was the follow-up, too");
        assert_eq!(schedule.next(refresh_at, None), NextStep::Poll);
        assert!(schedule.begin_poll(refresh_at), "the ticket is refreshed");
        assert!(!schedule.is_over(now + SECOND * 59));
        assert!(schedule.is_over(now + SECOND * 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_without_end_sleeps_until_it_is_woken() {
        let (mut schedule, now) = (PollSchedule::default(), Instant::now());
        assert_eq!(schedule.next(now, None), NextStep::Sleep(None));
        assert_eq!(schedule.left(now), None);
        assert!(!schedule.is_over(now + SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_recheck_makes_a_request_poll_once_and_a_later_one_does_not_delay_it() {
        let (mut schedule, now) = waiting_for(SECOND * 60);
        schedule.recheck(now);
        schedule.recheck(now + SECOND);
        assert_eq!(schedule.next(now, None), NextStep::Poll);
        let end = NextStep::Sleep(Some(now + SECOND * 60));
        assert_eq!(schedule.next(now, None), end);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_is_refreshed_only_if_the_wait_outlasts_it() {
        let (mut schedule, now) = waiting_for(SECOND * 60);
        schedule.start_ticket(now, SECOND * 60);
        let last = now + SECOND * 59;
        assert!(!schedule.begin_poll(last));
        schedule.start_ticket(now, SECOND * 54);
        assert!(!schedule.begin_poll(now + SECOND * 44));
        assert!(schedule.begin_poll(now + SECOND * 45));
    }

    #[tokio::test(start_paused = true)]
    async fn only_requests_with_a_reason_of_their_own_poll_again_after_an_answer() {
        let (mut schedule, now) = waiting_for(SECOND * 60);
        schedule.queued(now, false, PACE);
        let end = NextStep::Sleep(Some(now + SECOND * 60));
        assert_eq!(schedule.next(now, None), end);
        schedule.queued(now, true, PACE);
        assert_jittered(schedule.next(now, None), now, PACE.of_others);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_back_off_to_the_regular_interval_and_an_answer_ends_that() {
        let (mut schedule, now) = waiting_for(SECOND * 60);
        for seconds in [1, 2, 4, 8, 10, 10] {
            let retry_at = schedule.failed(now, true, PACE);
            assert_eq!(schedule.next(now, None), NextStep::Sleep(Some(retry_at)));
            assert_jittered(schedule.next(now, None), now, SECOND * seconds);
        }
        schedule.queued(now, false, PACE);
        schedule.failed(now, true, PACE);
        assert_jittered(schedule.next(now, None), now, SECOND);
        schedule.queued(now, false, PACE);
        schedule.failed(now, false, PACE);
        assert_jittered(schedule.next(now, None), now, PACE.of_others);
    }

    #[tokio::test(start_paused = true)]
    async fn a_superseded_request_polls_ever_less_often() {
        let (mut schedule, now) = waiting_for(SECOND * 60);
        schedule.start_ticket(now, SECOND);
        for milliseconds in [50, 100, 200, 400, 800, 1_600, 3_200, 4_000, 4_000] {
            schedule.superseded(now, PACE);
            let pause = Duration::from_millis(milliseconds);
            assert_jittered(schedule.next(now, None), now, pause);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_polls_regularly_after_an_expiry_and_once_for_each_reservation() {
        let now = Instant::now();
        let mut head = HeadSchedule::new(now);
        assert_eq!(head.next(now), now, "a new queue polls at once");
        head.on_answer(now, None, PACE);
        let regular = head.next(now);
        assert_jittered(NextStep::Sleep(Some(regular)), now, PACE.of_head);
        head.on_answer(now, Some(SECOND), PACE);
        let recheck = head.next(now);
        assert!(now + SECOND < recheck && recheck < now + SECOND * 2);
        head.reserve(now);
        assert_eq!(head.next(now), now);
        assert_eq!(head.next(now), recheck, "it has polled");
        head.poll_soon(now);
        assert!(head.next(now) <= now + RECHECK_SPREAD);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_head_follows_a_reservation_that_overtook_its_answer() {
        let now = Instant::now();
        let mut head = HeadSchedule::new(now + SECOND);
        head.reserve(now);
        assert_eq!(head.next(now), now, "another one has taken it");
        head.new_head(now + SECOND);
        assert_ne!(head.next(now), now, "it was reserved before the poll");
        head.new_head(now);
        assert_eq!(head.next(now), now);
    }

    #[test]
    fn very_many_waiters_poll_less_often() {
        let few = PollPace::new(SECOND, 10, 10);
        assert_eq!((few.of_head, few.of_others), (SECOND, PROGRESS_INTERVAL));
        let many = PollPace::new(SECOND, 5_000, 20_000);
        assert_eq!((many.of_head, many.of_others), (SECOND * 5, SECOND * 20));
    }
}
