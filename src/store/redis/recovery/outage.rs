//! Whether Redis was away of late, as far as this process has noticed. Those who wait must be heard again before anybody
//! is granted past them: Redis may have been away for longer than it remembers who waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long the processes get to be heard once Redis is back. Longer than any of them pauses between two tries.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// From this length on Redis may have forgotten who waits. It remembers that for six seconds, of which a request that was not
/// answered in time may not have noticed the first two.
const FORGETS_AFTER: Duration = Duration::from_secs(3);

/// Moments are milliseconds after `base`; 0 for none.
#[derive(Debug)]
pub(super) struct Outage {
    base: Instant,
    /// Since when nothing was answered.
    since_ms: AtomicU64,
    /// Until when the last outage counts as recent.
    recent_until_ms: AtomicU64,
}

impl Outage {
    pub(super) fn new() -> Self {
        Self {
            base: Instant::now(),
            since_ms: AtomicU64::new(0),
            recent_until_ms: AtomicU64::new(0),
        }
    }

    /// Something that was begun at `since` was not answered.
    pub(super) fn noticed(&self, since: Instant) {
        let since_ms = self.ms_of(since);
        // Of many requests the first one tells how long it has been.
        let _ = self
            .since_ms
            .compare_exchange(0, since_ms, Ordering::SeqCst, Ordering::SeqCst);
        self.prolong(Instant::now());
    }

    /// Something was answered. Says until when nothing new may be granted, if Redis may have forgotten who waits.
    pub(super) fn is_over(&self) -> Option<Instant> {
        if self.since_ms.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let since_ms = self.since_ms.swap(0, Ordering::SeqCst);
        let now = Instant::now();
        self.prolong(now);
        let lasted_ms = self.ms_of(now).saturating_sub(since_ms);
        let has_forgotten = since_ms > 0 && lasted_ms >= ms(FORGETS_AFTER);
        has_forgotten.then(|| now + HEARD_WITHIN)
    }

    /// Whether somebody who waits may not have been heard since the last outage.
    pub(super) fn is_recent(&self) -> bool {
        let until_ms = self.recent_until_ms.load(Ordering::Relaxed);
        until_ms > 0 && self.ms_of(Instant::now()) < until_ms
    }

    fn prolong(&self, now: Instant) {
        let until_ms = self.ms_of(now + HEARD_WITHIN);
        self.recent_until_ms.fetch_max(until_ms, Ordering::SeqCst);
    }

    fn ms_of(&self, moment: Instant) -> u64 {
        ms(moment.saturating_duration_since(self.base)) + 1
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_recent_until_all_had_time_to_be_heard() {
        let outage = Outage::new();
        assert!(!outage.is_recent());
        outage.noticed(Instant::now());
        advance(Duration::from_secs(2)).await;
        assert_eq!(outage.is_over(), None);
        advance(HEARD_WITHIN - Duration::from_millis(1)).await;
        assert!(outage.is_recent());
        advance(Duration::from_millis(1)).await;
        assert!(!outage.is_recent());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_long_outage_nothing_is_granted_until_all_had_time_to_be_heard() {
        let outage = Outage::new();
        let began = Instant::now();
        advance(Duration::from_secs(2)).await;
        outage.noticed(began);
        advance(Duration::from_millis(500)).await;
        outage.noticed(Instant::now());
        advance(Duration::from_millis(500)).await;
        assert_eq!(outage.is_over(), Some(Instant::now() + HEARD_WITHIN));
        // One end is enough.
        assert_eq!(outage.is_over(), None);
    }
}
