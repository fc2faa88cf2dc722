//! The store's time: a plain number of microseconds. Which clock it comes from is not known here.

use std::num::NonZeroU64;
use std::ops::Add;
use std::time::Duration;

use crate::domain::Timestamp;

/// A time on the store's clock, in microseconds since 1970. The clock must never go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(NonZeroU64);

impl StoreTime {
    /// Takes microseconds since 1970. The first of them counts as the second, so that an optional time takes no more
    /// memory than a time.
    #[must_use]
    pub fn from_unix_us(unix_us: u64) -> Self {
        Self(NonZeroU64::new(unix_us).unwrap_or(NonZeroU64::MIN))
    }

    /// Takes the time since 1970.
    #[must_use]
    pub fn at(since_1970: Duration) -> Self {
        Self::from_unix_us(micros(since_1970))
    }

    /// Microseconds since 1970.
    #[must_use]
    pub fn unix_us(self) -> u64 {
        self.0.get()
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.unix_us().saturating_sub(earlier.unix_us()))
    }

    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp::from_unix_ms(self.unix_us() / 1_000)
    }

    pub(super) fn plus_us(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }
}

impl Add<Duration> for StoreTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.plus_us(micros(duration))
    }
}

/// The duration in microseconds.
pub(super) fn micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(duration.subsec_micros()))
}
