//! Time, on the safe side.

use std::time::{Duration, Instant, SystemTime};

/// A moment, on two clocks.
///
/// Nobody can set the monotonic clock, but on Linux and macOS it stops while the machine is suspended; the system clock
/// goes on. What has elapsed is the larger of what both say. So a lease is never counted for too long; a system clock
/// that is set forward ends it early.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    monotonic: Instant,
    system: SystemTime,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            system: SystemTime::now(),
        }
    }

    pub(crate) fn elapsed(self) -> Duration {
        // A system clock that was set back says nothing.
        let by_system = self.system.elapsed().unwrap_or_default();
        self.monotonic.elapsed().max(by_system)
    }
}

/// The same or up to a quarter more, so that many clients do not act at the same moment.
pub(crate) fn later(duration: Duration) -> Duration {
    duration.mul_f64(1.0 + fastrand::f64() / 4.0)
}

/// Between half of it and all of it.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.5 + fastrand::f64() / 2.0)
}
