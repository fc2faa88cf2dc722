//! The longest TTL that any process of the fleet may have granted lately, as far as this process knows.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::UNPOISONED;

/// How long a TTL is remembered beyond itself. The store keeps the longest one for much longer, and returns it with
/// every exchange.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// How long after learning a TTL this process assumes that every other one remembers it. The margin allows for
/// processes that learn it at different moments.
const SHARED: Duration = Duration::from_secs(300);

/// The TTLs of leases that may be alive.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct LongestTtl {
    /// The longest TTL that this process has reported since the last exchange, in milliseconds.
    used_ms: AtomicU64,
    /// The longest TTL that all processes know, in milliseconds.
    shared_ms: AtomicU64,
    memory: Mutex<TtlHistory>,
}

#[derive(Debug, Default)]
struct TtlHistory {
    /// In the order of their arrival, with decreasing TTLs: a TTL shorter than a later one adds nothing.
    entries: Vec<SharedTtl>,
    /// When the data were last lost: processes that have joined since do not know what was shared before.
    shared_since: Option<Instant>,
}

#[derive(Debug)]
struct SharedTtl {
    ttl_ms: u64,
    at: Instant,
}

impl LongestTtl {
    /// Notes that a lease with this TTL is about to be reported. Returns whether the other processes know of leases
    /// this long.
    pub(super) fn use_ttl(&self, ttl: Duration) -> bool {
        let ttl_ms = millis(ttl);
        if ttl_ms > self.used_ms.load(Ordering::Relaxed) {
            self.used_ms.fetch_max(ttl_ms, Ordering::AcqRel);
        }
        ttl_ms <= self.shared_ms.load(Ordering::Acquire)
    }

    /// The longest TTL used since the last exchange.
    pub(super) fn used_ms(&self) -> u64 {
        self.used_ms.load(Ordering::Acquire)
    }

    /// The store knows what was used. Later uses are for the next exchange.
    pub(super) fn announced(&self, used_ms: u64) {
        // Failing means that a longer TTL has been used since.
        let _ = self
            .used_ms
            .compare_exchange(used_ms, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// All processes know of leases this long.
    pub(super) fn note_shared(&self, ttl_ms: u64, at: Instant) {
        let mut memory = self.memory.lock().expect(UNPOISONED);
        let shared_since = memory.shared_since;
        let entries = &mut memory.entries;
        while entries.last().is_some_and(|last| last.ttl_ms <= ttl_ms) {
            entries.pop();
        }
        entries.push(SharedTtl { ttl_ms, at });
        entries.retain(|entry| entry.is_within(KNOWN_FOR + entry.ttl(), at));
        let is_shared = |entry: &&SharedTtl| {
            entry.is_within(SHARED, at) && shared_since.is_none_or(|since| entry.at >= since)
        };
        let shared = entries.iter().find(is_shared);
        let shared_ms = shared.map_or(0, |entry| entry.ttl_ms);
        self.shared_ms.store(shared_ms, Ordering::Release);
    }

    /// The data were lost, so processes that join will not learn earlier TTLs.
    pub(super) fn lost(&self, at: Instant) {
        let mut memory = self.memory.lock().expect(UNPOISONED);
        memory.shared_since = Some(at);
        self.shared_ms.store(0, Ordering::Release);
    }

    /// The longest TTL of a lease that may be alive.
    pub(super) fn known_ms(&self, now: Instant) -> u64 {
        let memory = self.memory.lock().expect(UNPOISONED);
        let known = memory
            .entries
            .iter()
            .find(|entry| entry.is_within(KNOWN_FOR + entry.ttl(), now));
        known.map_or(0, |entry| entry.ttl_ms).max(self.used_ms())
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

/// Rounded up, so that no grant waits for less than a lease lasts.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_ttl_is_shared_once_it_was_announced() {
        let (longest, now) = (LongestTtl::default(), Instant::now());
        assert!(!longest.use_ttl(SECOND));
        longest.note_shared(1_000, now);
        assert!(longest.use_ttl(SECOND));
        assert!(!longest.use_ttl(SECOND * 2));
        assert_eq!(longest.known_ms(now), 2_000);
    }

    /// While one process assumes a TTL to be shared, every other one remembers it until the lease must have ended.
    #[test]
    fn a_ttl_is_remembered_for_longer_than_it_is_taken_to_be_shared() {
        let (longest, start) = (LongestTtl::default(), Instant::now());
        longest.note_shared(60_000, start);
        let last_use = start + SHARED - SECOND;
        longest.note_shared(1_000, last_use);
        assert!(longest.use_ttl(SECOND * 60));
        longest.announced(60_000);
        longest.note_shared(1_000, last_use + SECOND * 2);
        assert!(!longest.use_ttl(SECOND * 60));
        longest.announced(60_000);
        assert_eq!(longest.known_ms(last_use + SECOND * 60 * 4), 60_000);
        assert_eq!(longest.known_ms(start + KNOWN_FOR + SECOND * 61), 1_000);
    }

    #[test]
    fn a_ttl_replaces_earlier_shorter_ones() {
        let (longest, now) = (LongestTtl::default(), Instant::now());
        for ttl_ms in [5, 4, 3, 6, 2, 2] {
            longest.note_shared(ttl_ms, now);
        }
        let memory = longest.memory.lock().expect(UNPOISONED);
        let left: Vec<_> = memory.entries.iter().map(|entry| entry.ttl_ms).collect();
        assert_eq!(left, [6, 2]);
    }

    #[test]
    fn a_ttl_is_shared_anew_after_a_loss_and_still_known() {
        let (longest, now) = (LongestTtl::default(), Instant::now());
        longest.note_shared(60_000, now);
        longest.lost(now + SECOND);
        longest.note_shared(1_000, now + SECOND);
        assert!(longest.use_ttl(SECOND));
        assert!(!longest.use_ttl(SECOND * 60));
        assert_eq!(longest.known_ms(now + SECOND), 60_000);
    }

    #[test]
    fn a_ttl_used_during_an_exchange_is_reported_by_the_next_one() {
        let longest = LongestTtl::default();
        longest.use_ttl(SECOND);
        let reported = longest.used_ms();
        longest.use_ttl(SECOND * 2);
        longest.announced(reported);
        assert_eq!(longest.used_ms(), 2_000);
    }
}
