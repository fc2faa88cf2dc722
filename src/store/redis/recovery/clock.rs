//! An estimate of Redis's clock from this process's monotonic clock, to detect that Redis's clock was set. `deadline`
//! decides when a request is too late to be executed.
//!
//! Redis ends leases by its wall clock. A clock that is set forward ends them early, and nothing in Redis shows it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::UNPOISONED;

/// By how much Redis's clock may exceed the estimate before it counts as set.
const TOLERANCE_US: u64 = 500_000;
/// How much two free-running clocks may drift apart: one part in this many.
pub(super) const DRIFT: u64 = 1_000;

/// The estimate. It is a bound: unless its clock was set, Redis is never ahead of it.
#[derive(Debug)]
pub(in crate::store::redis) struct RedisClock {
    base: Instant,
    /// The latest and the earliest of Redis's time at `base`, in microseconds.
    origin_us: AtomicU64,
    floor_us: AtomicU64,
    /// When that was measured, in microseconds after `base`.
    sampled_us: AtomicU64,
    /// By how much the clock was set since the first sample, in milliseconds.
    shift_ms: AtomicI64,
    /// The latest that Redis's clock would have shown at `base` if it had never been set back; 0 if it never was.
    unset_us: AtomicU64,
    last: Mutex<Option<Sample>>,
}

/// A time of Redis, in the answer to a request that was sent then.
#[derive(Clone, Copy, Debug)]
struct Sample {
    redis_us: u64,
    sent_at: Instant,
}

impl RedisClock {
    pub(super) fn new() -> Self {
        Self {
            base: Instant::now(),
            origin_us: AtomicU64::new(0),
            floor_us: AtomicU64::new(0),
            sampled_us: AtomicU64::new(0),
            shift_ms: AtomicI64::new(0),
            unset_us: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }

    /// The latest that Redis's clock may show at a moment, in microseconds.
    pub(super) fn latest_us(&self, at: Instant) -> u64 {
        let at_us = self.micros(at);
        let drift_us = at_us.saturating_sub(self.sampled_us.load(Ordering::Relaxed)) / DRIFT;
        self.origin_us.load(Ordering::Relaxed) + at_us + drift_us + TOLERANCE_US
    }

    /// The earliest that Redis's clock may show at a moment, in microseconds, unless it was set back.
    pub(super) fn earliest_us(&self, at: Instant) -> u64 {
        let at_us = self.micros(at);
        let drift_us = at_us.saturating_sub(self.sampled_us.load(Ordering::Relaxed)) / DRIFT;
        (self.floor_us.load(Ordering::Relaxed) + at_us).saturating_sub(drift_us + TOLERANCE_US)
    }

    /// By how much the clock was set since the first sample, in milliseconds.
    pub(super) fn shift_ms(&self) -> i64 {
        self.shift_ms.load(Ordering::Relaxed)
    }

    /// The latest that the clock would show at a moment if it had never been set back, in microseconds: no fencing
    /// token was larger by then. 0 if it never was set back.
    pub(super) fn unset_us(&self, at: Instant) -> u64 {
        match self.unset_us.load(Ordering::Relaxed) {
            0 => 0,
            unset_us => unset_us + self.micros(at),
        }
    }

    /// Notes an epoch that began at `since` at the earliest. Returns whether larger fencing tokens may have been
    /// granted before it, because the process that began it did not know that the clock was set back.
    pub(super) fn is_too_low(&self, epoch: u64, now_us: u64, since: Instant) -> bool {
        let known_us = self.unset_us(since);
        if epoch > now_us {
            self.had_reached(epoch, since);
        }
        epoch < known_us
    }

    /// Notes that the clock, had it never been set back, would have reached this time at a moment.
    pub(super) fn had_reached(&self, redis_us: u64, at: Instant) {
        let unset_us = redis_us.saturating_sub(self.micros(at));
        self.unset_us.fetch_max(unset_us, Ordering::Relaxed);
    }

    /// Notes Redis's time. If its clock was set forward since the last sample, returns the latest time that it would
    /// show otherwise.
    pub(super) fn observe(
        &self,
        redis_us: u64,
        sent_at: Instant,
        answered_at: Instant,
    ) -> Option<u64> {
        let mut last = self.last.lock().expect(UNPOISONED);
        let before = last.replace(Sample { redis_us, sent_at });
        let latest_us = self.latest_us(answered_at);
        let earliest_us = self.earliest_us(sent_at);
        let origin_us = redis_us.saturating_sub(self.micros(sent_at));
        self.origin_us.store(origin_us, Ordering::Relaxed);
        let floor_us = redis_us.saturating_sub(self.micros(answered_at));
        self.floor_us.store(floor_us, Ordering::Relaxed);
        self.sampled_us
            .store(self.micros(sent_at), Ordering::Relaxed);
        let before = before?;
        let is_ahead = redis_us > latest_us;
        let is_behind = redis_us < earliest_us;
        if is_behind {
            self.had_reached(latest_us, answered_at);
        }
        if is_ahead || is_behind {
            let expected_us = before.redis_us + micros_between(before.sent_at, sent_at);
            let step_us = redis_us.cast_signed() - expected_us.cast_signed();
            self.shift_ms.fetch_add(step_us / 1_000, Ordering::Relaxed);
        }
        is_ahead.then_some(latest_us)
    }

    fn micros(&self, at: Instant) -> u64 {
        micros_between(self.base, at)
    }
}

/// By how much Redis's clock is ahead of this machine's, as far as the answer shows it that was asked for at `sent_at`. For
/// display only: no decision depends on this machine's wall clock.
pub(super) fn offset_ms(redis_us: u64, sent_at: Instant) -> i64 {
    let here = SystemTime::now().duration_since(UNIX_EPOCH);
    let latest_us = micros(here.unwrap_or_default());
    offset_from(
        redis_us,
        latest_us.saturating_sub(micros(sent_at.elapsed())),
        latest_us,
    )
}

/// How far the time is from these two, in milliseconds; none if it is between them.
fn offset_from(redis_us: u64, earliest_us: u64, latest_us: u64) -> i64 {
    let nearest_us = redis_us.clamp(earliest_us, latest_us);
    redis_us
        .cast_signed()
        .saturating_sub(nearest_us.cast_signed())
        / 1_000
}

pub(super) fn micros_between(earlier: Instant, later: Instant) -> u64 {
    micros(later.saturating_duration_since(earlier))
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const NOON_US: u64 = 1_795_219_506_257_721;

    fn clock() -> (RedisClock, Instant) {
        let clock = RedisClock::new();
        let start = clock.base;
        assert_eq!(clock.observe(NOON_US, start, start + MILLI), None);
        (clock, start)
    }

    #[test]
    fn a_clock_that_runs_as_ours_was_not_set() {
        let (clock, start) = clock();
        let minute = start + MILLI * 60_000;
        assert_eq!(clock.observe(NOON_US + 60_000_000, minute, minute), None);
        assert_eq!((clock.shift_ms(), clock.unset_us(minute)), (0, 0));
    }

    /// It may have been late either way.
    #[test]
    fn an_answer_that_was_long_on_its_way_shows_no_offset_of_the_clocks() {
        let offset = |redis_us| offset_from(redis_us, NOON_US, NOON_US + 300_000);
        let offsets = [0, 150_000, 300_000].map(|after| offset(NOON_US + after));
        assert_eq!(offsets, [0; 3]);
        assert_eq!(offset(NOON_US - 5_000), -5);
        assert_eq!(offset(NOON_US + 307_000), 7);
    }

    /// However long the process or Redis stalled: the answer was in flight meanwhile.
    #[test]
    fn an_answer_that_was_long_on_its_way_is_no_step() {
        let (clock, start) = clock();
        let answered_at = start + MILLI * 3_600_000;
        for redis_us in [NOON_US + 1_000, NOON_US + 3_600_000_000] {
            assert_eq!(clock.observe(redis_us, start + MILLI, answered_at), None);
        }
    }

    /// Requests are answered on several connections at a time.
    #[test]
    fn an_answer_that_is_seen_after_a_later_one_is_no_step() {
        let (clock, start) = clock();
        let [first, second] = [1_000, 6_000].map(|ms| start + MILLI * ms);
        let seen = second + MILLI;
        assert_eq!(clock.observe(NOON_US + 6_000_000, second, seen), None);
        assert_eq!(clock.observe(NOON_US + 1_000_000, first, seen), None);
        assert_eq!((clock.shift_ms(), clock.unset_us(seen)), (0, 0));
    }

    #[test]
    fn clocks_that_drift_apart_are_no_step() {
        let (clock, start) = clock();
        let hour = start + MILLI * 3_600_000;
        // 500 parts in a million, the most that NTP corrects.
        assert_eq!(clock.observe(NOON_US + 3_601_800_000, hour, hour), None);
    }

    #[test]
    fn a_step_forward_is_noticed_once() {
        let (clock, start) = clock();
        let later = start + MILLI * 1_000;
        let redis_us = NOON_US + 1_000_000 + 3_600_000_000;
        let latest_us = clock.observe(redis_us, later, later);
        assert!(latest_us.is_some_and(|latest_us| latest_us < NOON_US + 2_000_000));
        assert_eq!(clock.shift_ms(), 3_600_000);
        assert_eq!(
            clock.observe(redis_us + 1_000, later + MILLI, later + MILLI),
            None
        );
    }

    #[test]
    fn a_step_back_loses_nothing_and_is_counted() {
        let (clock, start) = clock();
        let later = start + MILLI * 1_000;
        let redis_us = NOON_US + 1_000_000 - 3_600_000_000;
        assert_eq!(clock.observe(redis_us, later, later), None);
        assert_eq!(clock.shift_ms(), -3_600_000);
        let reached_us = NOON_US + 1_000_000;
        assert!((reached_us..reached_us + 1_000_000).contains(&clock.unset_us(later)));
        // It continues as it would have.
        let minute = later + MILLI * 60_000;
        assert_eq!(clock.observe(redis_us + 60_000_000, minute, minute), None);
        let unset_us = clock.unset_us(minute);
        assert!((reached_us + 60_000_000..reached_us + 61_000_000).contains(&unset_us));
    }

    #[test]
    fn a_request_in_time_never_counts_as_late() {
        let (clock, start) = clock();
        let deadline = start + MILLI * 2_000;
        assert!(clock.latest_us(deadline) >= NOON_US + 2_000_000);
        assert!(clock.latest_us(deadline) < NOON_US + 3_000_000);
    }
}
