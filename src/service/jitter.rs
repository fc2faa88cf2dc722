//! Random jitter, which keeps processes and waiters from acting at the same moment.

use std::time::Duration;

use crate::domain::Attempt;

/// A random duration from zero to `end`.
pub(super) fn up_to(end: Duration) -> Duration {
    // 16 random bits are enough for jitter.
    let [high, low, ..] = Attempt::random().0.to_be_bytes();
    end.mul_f64(f64::from(u16::from_be_bytes([high, low])) / f64::from(u16::MAX))
}

/// The duration less 5 % to 25 %. Never more, so that jitter delays nothing that others wait for.
pub(super) fn about(duration: Duration) -> Duration {
    duration.mul_f64(0.75) + up_to(duration.mul_f64(0.2))
}
