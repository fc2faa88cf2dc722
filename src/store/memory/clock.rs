//! The embedded store's clock: tokio's monotonic one, which tests can stop, and its timestamps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::domain::Timestamp;

/// A moment on this process's monotonic clock, with its Unix time.
#[derive(Clone, Copy)]
pub(super) struct StoreTime {
    pub(super) instant: Instant,
    pub(super) unix_us: u64,
}

impl StoreTime {
    /// The timestamp of this moment.
    pub(super) fn timestamp(self) -> Timestamp {
        self.timestamp_of(self.instant)
    }

    /// The timestamp of another moment, by its distance from this one.
    pub(super) fn timestamp_of(self, instant: Instant) -> Timestamp {
        let unix_us = match instant.checked_duration_since(self.instant) {
            Some(ahead) => self.unix_us + micros(ahead),
            None => self.unix_us - micros(self.instant - instant),
        };
        Timestamp::from_unix_ms(unix_us / 1_000)
    }
}

/// Wall time that never jumps: read once at the start, then advanced by the monotonic clock.
pub(super) struct Clock {
    started: Instant,
    unix_us_at_start: u64,
}

impl Clock {
    pub(super) fn start() -> Self {
        // A clock before 1970 counts as 1970, which is harmless: fencing tokens start anew with each process.
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
