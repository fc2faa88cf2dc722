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
}

/// The time on the system's clock. A clock before 1970 counts as 1970. The fencing tokens of an embedded store still grow:
/// they start anew with each process, or continue from those that were written. A quorum refuses its nodes meanwhile,
/// because their tokens are far ahead of this time.
pub(in crate::store) fn wall_time() -> StoreTime {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    StoreTime::at(since_1970.unwrap_or_default())
}
