//! Pauses: between the retries of an operation, and with jitter, which keeps processes and waiters from acting at the
//! same moment.

use std::time::Duration;

const PAST_EXPIRY_MIN: Duration = Duration::from_millis(5);
const PAST_EXPIRY_SPREAD: Duration = Duration::from_millis(20);

/// The growing pauses between attempts: each is twice the one before, within bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// The pause before the next attempt.
    pub(crate) fn next(&mut self, least: Duration, most: Duration) -> Duration {
        let pause = self.last.map_or(least, |last| last * 2).min(most);
        self.last = Some(pause);
        pause
    }

    /// The last pause, if the last attempt failed.
    pub(crate) fn last(&self) -> Option<Duration> {
        self.last
    }

    /// Begins again with the shortest pause.
    pub(crate) fn reset(&mut self) {
        self.last = None;
    }
}

/// A random duration from zero to `end`.
pub(crate) fn up_to(end: Duration) -> Duration {
    end.mul_f64(fastrand::f64())
}

/// The duration less 5 % to 25 %. Never more, so that jitter delays nothing that others wait for.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.75) + up_to(duration.mul_f64(0.2))
}

/// The duration and up to a quarter more, for a pause that the other side asked for: repeating sooner would be refused.
pub(crate) fn at_least(duration: Duration) -> Duration {
    duration + up_to(duration / 4)
}

/// How long after the known end of a lease it is safe to assume that it has expired by the store's clock.
pub(crate) fn past_expiry() -> Duration {
    PAST_EXPIRY_MIN + up_to(PAST_EXPIRY_SPREAD)
}
