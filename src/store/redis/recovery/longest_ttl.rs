//! The longest TTL that any process of the fleet may have granted lately, as far as this process knows.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::UNPOISONED;

/// How long a TTL is remembered beyond itself. The store keeps the longest one for much longer, and tells it with every
/// exchange.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// For how long after a TTL was heard this process takes it to be remembered by every other one. The margin covers that
/// processes hear of it at different moments.
const SHARED: Duration = Duration::from_secs(300);

/// What is remembered of the TTLs of leases.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct LongestTtl {
    /// The longest of what this process reported since the last exchange, in milliseconds.
    used_ms: AtomicU64,
    /// What all processes know, in milliseconds.
    shared_ms: AtomicU64,
    memory: Mutex<TtlHistory>,
}

#[derive(Debug, Default)]
struct TtlHistory {
    /// The latest last and the longest first: what is shorter than a later one adds nothing.
    heard: Vec<SharedTtl>,
    /// When the data were lost last: what was shared before is not known to who came since.
    shared_since: Option<Instant>,
}

#[derive(Debug)]
struct SharedTtl {
    ttl_ms: u64,
    at: Instant,
}

impl LongestTtl {
    /// A lease with this TTL is about to be reported. Says whether the other processes know that leases last so long.
    pub(super) fn use_ttl(&self, ttl: Duration) -> bool {
        let ttl_ms = millis(ttl);
        if ttl_ms > self.used_ms.load(Ordering::Relaxed) {
            self.used_ms.fetch_max(ttl_ms, Ordering::AcqRel);
        }
        ttl_ms <= self.shared_ms.load(Ordering::Acquire)
    }

    /// The longest that was used since the last exchange.
    pub(super) fn used_ms(&self) -> u64 {
        self.used_ms.load(Ordering::Acquire)
    }

    /// The store has been told what was used. What is used from now on is for the next exchange.
    pub(super) fn announced(&self, used_ms: u64) {
        // Failing means that a longer one has been used since.
        let _ = self
            .used_ms
            .compare_exchange(used_ms, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// All processes know of leases that last so long.
    pub(super) fn hear(&self, ttl_ms: u64, at: Instant) {
        let mut memory = self.memory.lock().expect(UNPOISONED);
        let shared_since = memory.shared_since;
        let heard = &mut memory.heard;
        while heard.last().is_some_and(|last| last.ttl_ms <= ttl_ms) {
            heard.pop();
        }
        heard.push(SharedTtl { ttl_ms, at });
        heard.retain(|heard| heard.is_within(KNOWN_FOR + heard.ttl(), at));
        let is_shared = |heard: &&SharedTtl| {
            heard.is_within(SHARED, at) && shared_since.is_none_or(|since| heard.at >= since)
        };
        let shared = heard.iter().find(is_shared);
        let shared_ms = shared.map_or(0, |heard| heard.ttl_ms);
        self.shared_ms.store(shared_ms, Ordering::Release);
    }

    /// The data were lost, and with them what they told those who come.
    pub(super) fn lost(&self, at: Instant) {
        let mut memory = self.memory.lock().expect(UNPOISONED);
        memory.shared_since = Some(at);
        self.shared_ms.store(0, Ordering::Release);
    }

    /// The longest TTL of a lease that may be alive.
    pub(super) fn known_ms(&self, now: Instant) -> u64 {
        let memory = self.memory.lock().expect(UNPOISONED);
        let known = memory
            .heard
            .iter()
            .find(|heard| heard.is_within(KNOWN_FOR + heard.ttl(), now));
        known.map_or(0, |heard| heard.ttl_ms).max(self.used_ms())
    }
}

impl SharedTtl {
    fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    fn is_within(&self, time: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < time
    }
}

/// Rounded up, so that nobody waits for less than a lease lasts.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_ttl_is_shared_once_it_was_heard() {
        let (longest, now) = (LongestTtl::default(), Instant::now());
        assert!(!longest.use_ttl(SECOND));
        longest.hear(1_000, now);
        assert!(longest.use_ttl(SECOND));
        assert!(!longest.use_ttl(SECOND * 2));
        assert_eq!(longest.known_ms(now), 2_000);
    }

    /// As long as one process takes it to be known, every other one knows it until the lease must be over.
    #[test]
    fn a_ttl_is_remembered_for_longer_than_it_is_taken_to_be_shared() {
        let (longest, heard) = (LongestTtl::default(), Instant::now());
        longest.hear(60_000, heard);
        let last_use = heard + SHARED - SECOND;
        longest.hear(1_000, last_use);
        assert!(longest.use_ttl(SECOND * 60));
        longest.announced(60_000);
        longest.hear(1_000, last_use + SECOND * 2);
        assert!(!longest.use_ttl(SECOND * 60));
        longest.announced(60_000);
        assert_eq!(longest.known_ms(last_use + SECOND * 60 * 4), 60_000);
        assert_eq!(longest.known_ms(heard + KNOWN_FOR + SECOND * 61), 1_000);
    }

    #[test]
    fn of_shorter_ttls_that_were_heard_before_nothing_is_left() {
        let (longest, now) = (LongestTtl::default(), Instant::now());
        for ttl_ms in [5, 4, 3, 6, 2, 2] {
            longest.hear(ttl_ms, now);
        }
        let memory = longest.memory.lock().expect(UNPOISONED);
        let left: Vec<_> = memory.heard.iter().map(|heard| heard.ttl_ms).collect();
        assert_eq!(left, [6, 2]);
    }

    #[test]
    fn a_ttl_is_shared_anew_after_a_loss_and_still_known() {
        let (longest, now) = (LongestTtl::default(), Instant::now());
        longest.hear(60_000, now);
        longest.lost(now + SECOND);
        longest.hear(1_000, now + SECOND);
        assert!(longest.use_ttl(SECOND));
        assert!(!longest.use_ttl(SECOND * 60));
        assert_eq!(longest.known_ms(now + SECOND), 60_000);
    }

    #[test]
    fn what_is_used_while_the_store_is_told_is_told_the_next_time() {
        let longest = LongestTtl::default();
        longest.use_ttl(SECOND);
        let told = longest.used_ms();
        longest.use_ttl(SECOND * 2);
        longest.announced(told);
        assert_eq!(longest.used_ms(), 2_000);
    }
}
