//! Bounds of what Redis's clock shows at a given moment. By these, a script knows whether it comes too late, and which of
//! two requests was made first.
//!
//! A command that arrives after its client has received an unknown outcome must do nothing, so its deadline uses the
//! earliest that Redis's clock may show then. `clock` detects steps of the clock; it must not report false ones, so its
//! bounds are wider.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::clock::{DRIFT, micros, micros_between};

/// By how much before its deadline a request may count as late, because Redis's time was not read lately, or the answer
/// took long.
const EARLY_MAX_US: u64 = 50_000;

/// Bounds of Redis's clock, as narrow as the fastest answers permit.
#[derive(Debug)]
pub(in crate::store::redis) struct RedisTime {
    base: Instant,
    /// The earliest and the latest of Redis's time at `base`, in microseconds.
    earliest_us: AtomicU64,
    latest_us: AtomicU64,
    /// When that was measured, in microseconds after `base`.
    sampled_us: AtomicU64,
}

impl RedisTime {
    pub(super) fn new() -> Self {
        Self {
            base: Instant::now(),
            earliest_us: AtomicU64::new(0),
            latest_us: AtomicU64::new(0),
            sampled_us: AtomicU64::new(0),
        }
    }

    /// Notes Redis's time, read at some moment between two of ours. For one caller at a time.
    pub(super) fn observe(&self, redis_us: u64, sent_at: Instant, answered_at: Instant) {
        let (asked_us, answered_us) = (self.micros(sent_at), self.micros(answered_at));
        let sampled = (
            redis_us.saturating_sub(answered_us),
            redis_us.saturating_sub(asked_us),
        );
        let known = self.bounds(answered_us);
        let both = (known.0.max(sampled.0), known.1.min(sampled.1));
        // If the two do not overlap, the clock was set since, or this is the first sample.
        let (earliest_us, latest_us) = if both.0 <= both.1 { both } else { sampled };
        self.earliest_us.store(earliest_us, Ordering::Relaxed);
        self.latest_us.store(latest_us, Ordering::Relaxed);
        self.sampled_us.store(answered_us, Ordering::Relaxed);
    }

    /// The latest time of Redis at which a request may be executed whose response is due by `deadline`.
    pub(in crate::store::redis) fn not_after_us(&self, deadline: Instant) -> u64 {
        let at_us = self.micros(deadline);
        let (earliest_us, latest_us) = self.bounds(at_us);
        at_us + earliest_us.max(latest_us.saturating_sub(EARLY_MAX_US))
    }

    /// The earliest and the latest time of Redis that long before a moment, in microseconds.
    pub(in crate::store::redis) fn bounds_before(&self, at: Instant, age: Duration) -> (u64, u64) {
        let (at_us, age_us) = (self.micros(at), micros(age));
        let (earliest_us, latest_us) = self.bounds(at_us);
        let before = |bound_us: u64| (bound_us + at_us).saturating_sub(age_us);
        (before(earliest_us), before(latest_us))
    }

    /// Redis's time at `base`, allowing for drift between the clocks.
    fn bounds(&self, at_us: u64) -> (u64, u64) {
        let drift_us = at_us.saturating_sub(self.sampled_us.load(Ordering::Relaxed)) / DRIFT;
        let earliest_us = self.earliest_us.load(Ordering::Relaxed);
        let latest_us = self.latest_us.load(Ordering::Relaxed);
        (earliest_us.saturating_sub(drift_us), latest_us + drift_us)
    }

    fn micros(&self, at: Instant) -> u64 {
        micros_between(self.base, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const NOON_US: u64 = 1_795_219_506_257_721;

    /// Redis's clock shows noon at the start, and is read once, which takes a millisecond.
    fn known() -> (RedisTime, Instant) {
        let known = RedisTime::new();
        let start = known.base;
        known.observe(NOON_US + 500, start, start + MILLI);
        (known, start)
    }

    /// By how many milliseconds too soon a request counts as late. A negative number would be a window.
    fn early_ms(known: &RedisTime, deadline: Instant, shows_us: u64) -> i64 {
        (shows_us.cast_signed() - known.not_after_us(deadline).cast_signed()) / 1_000
    }

    #[test]
    fn nothing_is_carried_out_after_its_deadline_and_little_is_refused_before() {
        let (known, start) = known();
        for (deadline_ms, early_max_ms) in [(2_000, 3), (20_000, 21), (3_600_000, 50)] {
            let deadline = start + MILLI * deadline_ms;
            let shows_us = NOON_US + u64::from(deadline_ms) * 1_000;
            let early_ms = early_ms(&known, deadline, shows_us);
            assert!(early_ms <= early_max_ms, "{early_ms} ms");
            // After an hour without a reading of Redis's time, the drift exceeds the width of the bounds.
            assert!(early_ms >= 0 || deadline_ms == 3_600_000, "{early_ms} ms");
        }
    }

    /// Neither direction took long, and it is unknown which: the command was delayed, or the answer.
    #[test]
    fn an_answer_that_was_long_on_its_way_makes_nothing_less_certain() {
        let (known, start) = known();
        let (sent_at, answered_at) = (start + MILLI * 1_000, start + MILLI * 3_000);
        for redis_us in [NOON_US + 1_000_100, NOON_US + 2_999_900] {
            known.observe(redis_us, sent_at, answered_at);
            let early_ms = early_ms(&known, answered_at + MILLI * 2_000, NOON_US + 5_000_000);
            assert!((0..10).contains(&early_ms), "{early_ms} ms");
        }
    }

    #[test]
    fn a_slow_first_answer_makes_little_late_before_its_deadline() {
        let known = RedisTime::new();
        let (start, answered_at) = (known.base, known.base + MILLI * 1_000);
        for redis_us in [NOON_US, NOON_US + 1_000_000] {
            known.observe(redis_us, start, answered_at);
            let early_ms = early_ms(&known, answered_at + MILLI * 1_000, NOON_US + 2_000_000);
            assert!(early_ms <= 50, "{early_ms} ms");
        }
    }

    #[test]
    fn a_clock_that_was_set_counts_as_it_is_now() {
        for step_ms in [-3_600_000_i64, -400, 400, 3_600_000] {
            let (known, start) = known();
            let noon_us = NOON_US.saturating_add_signed(step_ms * 1_000);
            let sent_at = start + MILLI * 2_000;
            known.observe(noon_us + 2_000_500, sent_at, sent_at + MILLI);
            let early_ms = early_ms(&known, start + MILLI * 4_000, noon_us + 4_000_000);
            assert!((0..4).contains(&early_ms), "{step_ms}: {early_ms} ms");
        }
    }
}
