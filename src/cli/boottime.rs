//! The clock that leases are measured with: it counts from the start of the machine, also while the machine is
//! suspended, and cannot be set. All processes of a machine read the same.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{
    ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags,
};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

/// A moment, as the time since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct BootTime(Duration);

impl BootTime {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has it");
        Self(now.into())
    }

    pub(super) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    pub(super) fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }

    /// The time from here to a later moment, zero if it is earlier.
    pub(super) fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }

    /// The time until then, zero if it has passed.
    pub(super) fn remaining(self) -> Duration {
        Self::now().until(self)
    }

    pub(super) fn has_passed(self) -> bool {
        self <= Self::now()
    }
}

/// A timer of the system on this clock. It goes off at once when the machine wakes up past its moment, which a timer of
/// the runtime does not.
pub(super) struct Alarm(TimerFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self(TimerFd::new(TimerClock::CLOCK_BOOTTIME, flags)?))
    }

    /// Makes it go off at this moment, and no longer at the one before.
    pub(super) fn set(&self, at: BootTime) -> io::Result<()> {
        // A time of zero would switch the timer off.
        let at = at.0.max(Duration::from_nanos(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(at));
        Ok(self.0.set(once, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?)
    }

    /// Makes it not go off.
    pub(super) fn clear(&self) -> io::Result<()> {
        Ok(self.0.unset()?)
    }

    /// Whether it has gone off since it was last asked.
    pub(super) fn has_gone_off(&self) -> bool {
        self.0.wait().is_ok()
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The same for asynchronous code.
pub(super) struct AsyncAlarm(AsyncFd<Alarm>);

impl AsyncAlarm {
    #[expect(
        deprecated,
        reason = "the alarm owns its descriptor, which never changes, so this is sound; the other constructor is unsafe code"
    )]
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(AsyncFd::new(Alarm::new()?)?))
    }

    pub(super) fn set(&self, at: BootTime) -> io::Result<()> {
        self.0.get_ref().set(at)
    }

    pub(super) fn clear(&self) -> io::Result<()> {
        self.0.get_ref().clear()
    }

    /// Waits until it goes off.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn goes_off(&self) -> io::Result<()> {
        loop {
            let mut readable = self.0.readable().await?;
            if self.0.get_ref().has_gone_off() {
                return Ok(());
            }
            readable.clear_ready();
        }
    }
}
