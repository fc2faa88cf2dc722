//! The clock of the embedded store in memory. What happens at which time is not known here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::store::state::StoreTime;

/// Wall time that never jumps: read once at the start, then advanced by tokio's monotonic clock.
pub(super) struct Clock {
    started: Instant,
    since_1970: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self {
            started: Instant::now(),
            // A clock before 1970 counts as 1970, which is harmless: fencing tokens start anew with each process.
            since_1970: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        }
    }

    pub(super) fn now(&self) -> StoreTime {
        StoreTime::at(self.since_1970 + self.started.elapsed())
    }
}
