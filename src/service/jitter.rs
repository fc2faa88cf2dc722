//! Chance, which keeps processes and waiters out of step with each other.

use std::time::Duration;

use crate::domain::Attempt;

/// Any duration from zero to `end`.
pub(super) fn up_to(end: Duration) -> Duration {
    // 16 bits of chance are more than enough to scatter by.
    let [high, low, ..] = Attempt::random().0.to_be_bytes();
    end.mul_f64(f64::from(u16::from_be_bytes([high, low])) / f64::from(u16::MAX))
}

/// The duration, or up to a quarter less. Never more: what others wait for is not late by chance.
pub(super) fn about(duration: Duration) -> Duration {
    duration.mul_f64(0.75) + up_to(duration.mul_f64(0.2))
}
