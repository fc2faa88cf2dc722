//! The embedded store's clock: tokio's monotonic one, which tests can stop, and what to call its moments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::domain::Timestamp;

/// A moment on this process's monotonic clock, and what to call it.
#[derive(Clone, Copy)]
pub(super) struct StoreTime {
    pub(super) instant: Instant,
    pub(super) unix_us: u64,
}

impl StoreTime {
    /// What to call this moment.
    pub(super) fn timestamp(self) -> Timestamp {
        self.timestamp_of(self.instant)
    }

    /// What to call another moment, by its distance from this one.
    pub(super) fn timestamp_of(self, instant: Instant) -> Timestamp {
        let unix_us = match instant.checked_duration_since(self.instant) {
            Some(ahead) => self.unix_us + micros(ahead),
            None => self.unix_us - micros(self.instant - instant),
        };
        Timestamp::from_unix_ms(unix_us / 1_000)
    }
}

/// Wall time that never jumps: read once at the start, then carried on by the monotonic clock.
pub(super) struct Clock {
    started: Instant,
    unix_us_at_start: u64,
}

impl Clock {
    pub(super) fn start() -> Self {
        // A clock before 1970 is as good as 1970: the fencing tokens of a process begin anew with it.
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            unix_us_at_start: micros(since_1970),
        }
    }

    pub(super) fn now(&self) -> StoreTime {
        let instant = Instant::now();
        StoreTime {
            instant,
            unix_us: self.unix_us_at_start + micros(instant - self.started),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
