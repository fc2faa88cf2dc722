//! Random jitter, which keeps processes and waiters from acting at the same moment.

use std::time::Duration;

/// A random duration from zero to `end`.
pub(super) fn up_to(end: Duration) -> Duration {
    end.mul_f64(fastrand::f64())
}

/// The duration less 5 % to 25 %. Never more, so that jitter delays nothing that others wait for.
pub(super) fn about(duration: Duration) -> Duration {
    duration.mul_f64(0.75) + up_to(duration.mul_f64(0.2))
}
