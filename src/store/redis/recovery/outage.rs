//! Whether Redis had a recent outage, as far as this process has noticed. Waiters must be able to poll again before
//! any claim is granted past them: the outage may have been longer than Redis remembers waiters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long no process is passed over once Redis is back: processes reconnect one after the other.
const RECENT: Duration = Duration::from_secs(8);
/// From this length on, Redis may have forgotten waiters. It remembers them for six seconds; a request that was not
/// answered in time may have missed the first two.
const FORGETS_AFTER: Duration = Duration::from_secs(3);

/// For so long after a request that was answered, Redis counts as available although no connection can be opened.
const ANSWERED_LATELY: Duration = Duration::from_secs(1);

/// How long a process uses its connections after it has opened one. Checks open one again and again: the time is twice the
/// interval of the checks if that is longer.
const VERIFIED_FOR: Duration = Duration::from_secs(5);

/// That time, where a process checks the store so often.
pub(in crate::store::redis) fn verified_for(check_interval: Duration) -> Duration {
    VERIFIED_FOR.max(check_interval * 2)
}

/// Moments in milliseconds after `base`; 0 for none.
#[derive(Debug)]
pub(in crate::store::redis) struct Outage {
    base: Instant,
    /// Wakes the probe when an outage begins.
    pub(in crate::store::redis) began: Notify,
    /// Since when requests got no answer.
    since_ms: AtomicU64,
    /// When the last request that was answered was begun.
    answered_ms: AtomicU64,
    /// Until when the last outage counts as recent.
    recent_until_ms: AtomicU64,
    /// When the last connection that could be opened was begun; none once those that are open are no longer used.
    verified_ms: AtomicU64,
    verified_for: Duration,
    /// Whether a probe has failed since this outage was long.
    is_confirmed: AtomicBool,
    /// Whether connections from before this outage are no longer used.
    is_distrusted: AtomicBool,
    /// Whether Redis takes no writes, by the last check of its data. What it answers meanwhile ends no outage.
    is_unwritable: AtomicBool,
}

impl Outage {
    /// A process opens a connection at every check.
    pub(super) fn new(check_interval: Duration) -> Self {
        Self {
            base: Instant::now(),
            began: Notify::new(),
            since_ms: AtomicU64::new(0),
            answered_ms: AtomicU64::new(0),
            recent_until_ms: AtomicU64::new(0),
            verified_ms: AtomicU64::new(0),
            verified_for: verified_for(check_interval),
            is_confirmed: AtomicBool::new(false),
            is_distrusted: AtomicBool::new(false),
            is_unwritable: AtomicBool::new(false),
        }
    }

    /// Notes that a request that began at `since` got no answer.
    pub(super) fn note_no_answer(&self, since: Instant) {
        let since_ms = self.ms_of(since);
        // Of many requests, the first one shows how long the outage has lasted.
        let noted = self
            .since_ms
            .compare_exchange(0, since_ms, Ordering::SeqCst, Ordering::SeqCst);
        self.prolong(Instant::now());
        if noted.is_ok() {
            self.began.notify_one();
        }
    }

    /// Notes that a request could not be executed because the slot of its keys is on its way. Other requests can, so that
    /// is no outage; but waiters may have to poll again.
    pub(in crate::store::redis) fn note_moving(&self) {
        self.prolong(Instant::now());
    }

    /// Notes that no connection could be opened since `since`. That is no outage while other connections work: Redis may
    /// have reached its `maxclients`.
    pub(super) fn note_not_connected(&self, since: Instant) {
        let answered_ms = self.answered_ms.load(Ordering::Relaxed);
        let answered_lately = answered_ms > 0
            && self.ms_of(Instant::now()) < answered_ms.saturating_add(ms(ANSWERED_LATELY));
        if !answered_lately {
            self.note_no_answer(since);
        }
    }

    /// Notes that a request that began at `since` was answered.
    pub(super) fn note_answer(&self, since: Instant) {
        let since_ms = self.ms_of(since);
        // Many requests come within a millisecond, and all threads read this.
        if self.answered_ms.load(Ordering::Relaxed) < since_ms {
            self.answered_ms.store(since_ms, Ordering::Relaxed);
        }
        self.end();
    }

    /// Notes whether Redis has stored a check of its data that was sent at `since`.
    pub(super) fn note_check(&self, since: Instant, is_stored: bool) {
        self.is_unwritable.store(!is_stored, Ordering::SeqCst);
        if !is_stored {
            self.note_no_answer(since);
        }
    }

    /// Whether Redis takes no writes, by the last check of its data.
    pub(in crate::store::redis) fn is_unwritable(&self) -> bool {
        self.is_unwritable.load(Ordering::Relaxed)
    }

    /// Ends the outage, because Redis has answered.
    pub(super) fn end(&self) {
        if self.since_ms.load(Ordering::Relaxed) > 0 && !self.is_unwritable() {
            self.since_ms.store(0, Ordering::SeqCst);
            self.is_confirmed.store(false, Ordering::SeqCst);
            self.is_distrusted.store(false, Ordering::SeqCst);
            self.prolong(Instant::now());
        }
    }

    /// Notes that a probe has failed.
    pub(in crate::store::redis) fn confirm(&self) {
        self.is_confirmed.store(true, Ordering::SeqCst);
    }

    /// Whether a probe has failed. The length alone may be that of a pause of this process.
    pub(in crate::store::redis) fn is_confirmed(&self) -> bool {
        self.is_confirmed.load(Ordering::SeqCst)
    }

    /// Whether the outage is so long that Redis may have forgotten waiters.
    pub(super) fn is_long(&self) -> bool {
        self.length().is_some_and(|it| it >= FORGETS_AFTER)
    }

    /// How long the outage has lasted; none if there is none.
    pub(in crate::store::redis) fn length(&self) -> Option<Duration> {
        let since_ms = self.since_ms.load(Ordering::Relaxed);
        let length_ms = self.ms_of(Instant::now()).saturating_sub(since_ms);
        (since_ms > 0).then(|| Duration::from_millis(length_ms))
    }

    /// Whether connections from before must no longer be used, because the outage has become long. Returns true only
    /// once.
    pub(super) fn distrusts(&self) -> bool {
        self.is_long() && !self.is_distrusted.swap(true, Ordering::SeqCst)
    }

    /// Notes that the address led to the Redis of the open connections at `since` or later.
    pub(super) fn note_verified(&self, since: Instant) {
        self.verified_ms
            .fetch_max(self.ms_of(since), Ordering::SeqCst);
    }

    /// Whether the address was verified so long ago that the open connections may lead to another Redis than it does now.
    /// Returns true only once. It counts from the last success: how long a failure takes to show depends on the failure.
    pub(super) fn is_unverified(&self) -> bool {
        let verified_ms = self.verified_ms.load(Ordering::SeqCst);
        let age_ms = self.ms_of(Instant::now()).saturating_sub(verified_ms);
        let is_due = verified_ms > 0 && age_ms >= ms(self.verified_for);
        let forget = || {
            self.verified_ms
                .compare_exchange(verified_ms, 0, Ordering::SeqCst, Ordering::SeqCst)
        };
        is_due && forget().is_ok()
    }

    /// Whether the last outage is so recent that some waiters may not have polled yet.
    pub(super) fn is_recent(&self) -> bool {
        let until_ms = self.recent_until_ms.load(Ordering::Relaxed);
        until_ms > 0 && self.ms_of(Instant::now()) < until_ms
    }

    fn prolong(&self, now: Instant) {
        let until_ms = self.ms_of(now + RECENT);
        self.recent_until_ms.fetch_max(until_ms, Ordering::SeqCst);
    }

    fn ms_of(&self, moment: Instant) -> u64 {
        ms(moment.saturating_duration_since(self.base)) + 1
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_recent_until_all_had_time_to_come_back() {
        let outage = Outage::new(Duration::from_secs(2));
        assert!(!outage.is_recent());
        outage.note_no_answer(Instant::now());
        advance(Duration::from_secs(2)).await;
        outage.end();
        advance(RECENT - Duration::from_millis(1)).await;
        assert!(outage.is_recent());
        advance(Duration::from_millis(1)).await;
        assert!(!outage.is_recent());
    }

    /// A Redis that has reached its `maxclients` refuses further connections, and answers on the open ones.
    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_is_no_outage_while_requests_are_answered() {
        let outage = Outage::new(Duration::from_secs(2));
        outage.note_answer(Instant::now());
        outage.note_not_connected(Instant::now());
        assert!(!outage.is_recent());
        advance(ANSWERED_LATELY).await;
        outage.note_not_connected(Instant::now());
        assert!(outage.is_recent());
    }

    /// Otherwise the time that the first failure takes, and the time until it is tried, are added.
    #[tokio::test(start_paused = true)]
    async fn connections_are_used_until_five_seconds_after_the_last_one_that_opened_was_begun() {
        let outage = Outage::new(Duration::from_secs(2));
        assert!(!outage.is_unverified(), "there is none");
        let began = Instant::now();
        advance(Duration::from_secs(1)).await;
        outage.note_verified(began);
        advance(Duration::from_millis(3_999)).await;
        outage.note_not_connected(Instant::now());
        assert!(!outage.is_unverified());
        advance(Duration::from_millis(1)).await;
        assert!(outage.is_unverified());
        assert!(!outage.is_unverified(), "one request closes them for all");
        outage.note_verified(Instant::now());
        assert!(!outage.is_unverified());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_used_from_one_check_to_the_next_however_rare_checks_are() {
        let outage = Outage::new(Duration::from_secs(60));
        outage.note_verified(Instant::now());
        advance(Duration::from_secs(119)).await;
        assert!(!outage.is_unverified());
        advance(Duration::from_secs(1)).await;
        assert!(outage.is_unverified());
    }

    /// A Redis that lacks replicas still answers what only reads.
    #[tokio::test(start_paused = true)]
    async fn an_outage_lasts_as_long_as_checks_are_not_stored_whatever_is_answered() {
        let outage = Outage::new(Duration::from_secs(2));
        outage.note_check(Instant::now(), false);
        advance(FORGETS_AFTER).await;
        outage.note_answer(Instant::now());
        assert!(outage.is_long() && outage.is_unwritable());
        outage.note_check(Instant::now(), true);
        assert!(outage.is_long(), "the check has yet to end");
        outage.end();
        assert!(!outage.is_long() && outage.is_recent());
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_long_from_its_first_request_on() {
        let outage = Outage::new(Duration::from_secs(2));
        let began = Instant::now();
        advance(Duration::from_secs(2)).await;
        outage.note_no_answer(began);
        outage.note_no_answer(Instant::now());
        assert!(!outage.is_long());
        advance(Duration::from_secs(1)).await;
        assert!(outage.is_long());
        outage.end();
        assert!(!outage.is_long());
    }
}
