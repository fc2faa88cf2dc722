//! The clock of the embedded stores. What happens at which time is not known here.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::store::state::StoreTime;

/// A time that never jumps: set once at the start, then advanced by tokio's monotonic clock.
pub(super) struct Clock {
    started: Instant,
    at: StoreTime,
}

impl Clock {
    /// A clock that shows this time now.
    pub(super) fn start_at(at: StoreTime) -> Self {
        let started = Instant::now();
        Self { started, at }
    }

    pub(super) fn now(&self) -> StoreTime {
        self.at + self.started.elapsed()
    }

    /// By how many milliseconds it is ahead of the system's clock.
    pub(super) fn ahead_ms(&self) -> i64 {
        let [own, system] =
            [self.now(), wall_time()].map(|time| (time.unix_us() / 1_000).cast_signed());
        own - system
    }
}

/// The time on the system's clock. A clock before 1970 counts as 1970. The fencing tokens of an embedded store still grow:
/// they start anew with each process, or continue from those that were written. A quorum refuses its nodes meanwhile,
/// because their tokens are far ahead of this time.
pub(in crate::store) fn wall_time() -> StoreTime {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    StoreTime::at(since_1970.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::MemoryStore;
    use super::*;
    use crate::store::LockStore as _;

    #[test]
    fn a_clock_that_differs_from_that_of_the_system_is_reported() {
        let ahead = wall_time() + Duration::from_secs(3_600);
        let reported = MemoryStore::starting_at(1, ahead).health().clock_offset_ms;
        assert!((3_500_000..=3_600_000).contains(&reported.expect("it has a clock")));
        let behind = StoreTime::from_unix_us(1);
        let reported = MemoryStore::starting_at(1, behind).health().clock_offset_ms;
        assert!(reported.is_some_and(|ahead| ahead < -1_000_000));
    }
}
