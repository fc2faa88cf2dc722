//! Leases, holders and fencing tokens. Only the store's clock appears here; a client counts `expires_in` from its response.
//! The counters of fencing tokens live in the stores.
//!
//! One answer lists a limited number of holders: a semaphore may have a million, each with metadata, and a request may
//! concern many locks. The scripts follow the same rule, see `lease.lua`.

use std::fmt;
use std::time::Duration;

use super::{ClaimDigest, HoldCount, LockState, LockView, Metadata, Mode, Owner, Ttl};

/// A time on the store's clock, in milliseconds since 1970; for people to read, never to decide by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Takes milliseconds since 1970, UTC.
    #[must_use]
    pub fn from_unix_ms(unix_ms: u64) -> Self {
        Self(unix_ms)
    }

    /// Milliseconds since 1970, UTC.
    #[must_use]
    pub fn unix_ms(self) -> u64 {
        self.0
    }
}

/// The public view of a claim that has been granted and is still valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The claim, as stores know it on this lock. Its digest is not shown to clients.
    pub claim: ClaimDigest,
    /// The holder's description of itself.
    pub owner: Owner,
    /// Additional data of the holder for others to read.
    pub metadata: Option<Metadata>,
    /// Whether the lock is held exclusively or shared.
    pub mode: Mode,
    /// The fencing token of the grant.
    pub fence: Fence,
    /// The re-entry depth.
    pub hold_count: HoldCount,
    /// When the lock was granted.
    pub acquired_at: Timestamp,
    /// When the lease ends unless renewed.
    pub expires_at: Timestamp,
    /// How long the lease still lasts, counted from the request to the store.
    pub expires_in: Duration,
}

impl Holder {
    /// How long the claim had held the lock when the store was asked, by the clock of the store alone.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        let left_ms = u64::try_from(self.expires_in.as_millis()).unwrap_or(u64::MAX);
        let asked_ms = self.expires_at.unix_ms().saturating_sub(left_ms);
        Duration::from_millis(asked_ms.saturating_sub(self.acquired_at.unix_ms()))
    }

    /// How many bytes of text the holder adds to an answer.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let metadata = self.metadata.as_ref().map_or("", Metadata::as_json);
        self.owner.as_str().len() + metadata.len()
    }
}

/// The holders of a lock, present or evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// The holders whose leases end first, as many as the answer has [room](super::AnswerRoom) for.
    pub listed: Vec<Holder>,
    /// How many holders there are in all.
    pub total: u64,
}

impl Holders {
    /// No holders.
    #[must_use]
    pub fn none() -> Self {
        Self {
            listed: Vec::new(),
            total: 0,
        }
    }
}

impl From<Holder> for Holders {
    fn from(holder: Holder) -> Self {
        Self {
            listed: vec![holder],
            total: 1,
        }
    }
}

/// The holder's own view of its lease: the public part and the TTL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The public part.
    pub holder: Holder,
    /// How long the lease lasts without renewal.
    pub ttl: Ttl,
}

/// Orders the grants of one lock: a later grant always has a larger one. Public.
///
/// `max(last + 1, the store's time in microseconds)` is a hybrid logical clock in one word (Kulkarni et al., "Logical
/// Physical Clocks", 2014): it grows even when the clock stops or steps back, and when the counter is lost and the
/// clock is right, it stays larger than everything granted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The largest fencing token, 2^53 - 1: JSON numbers represent it exactly in every language.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Takes a number that a store gave.
    #[must_use]
    pub fn new(value: u64) -> Option<Self> {
        (value <= Self::MAX).then_some(Self(value))
    }

    /// The fencing token of the grant after `last`, at the store's time `now_us` (microseconds since 1970).
    ///
    /// None when the numbers are exhausted, which a correct clock reaches in the year 2255.
    #[must_use]
    pub fn after(last: u64, now_us: u64) -> Option<Self> {
        Self::new(last.checked_add(1)?.max(now_us))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The space in an answer about given locks.
///
/// Each lock may list an equal share of the holders. Owners and metadata consume bytes in the order of locks and
/// holders; the first holder that does not fit ends the list, for all further locks too.
#[derive(Clone, Copy, Debug)]
pub struct AnswerRoom {
    of_lock_max: usize,
    bytes: Option<usize>,
}

impl AnswerRoom {
    /// The most holders that an answer lists.
    pub const HOLDERS_MAX: usize = 100;
    /// The most bytes of their owners and metadata.
    pub const BYTES_MAX: usize = 64 * 1024;

    /// The space in an answer about this many locks.
    #[must_use]
    pub fn for_locks(locks: usize) -> Self {
        Self {
            of_lock_max: (Self::HOLDERS_MAX / locks.max(1)).max(1),
            bytes: Some(Self::BYTES_MAX),
        }
    }

    /// Takes the holders of one lock that the answer lists.
    pub fn take(&mut self, holders: impl Iterator<Item = Holder>) -> Vec<Holder> {
        let fits = |holder: &Holder| {
            let bytes = self.bytes;
            self.bytes = bytes.and_then(|bytes| bytes.checked_sub(holder.text_bytes()));
            self.bytes.is_some()
        };
        holders.take(self.of_lock_max).take_while(fits).collect()
    }
}

/// The space in one page of a listing. Each lock on the page has the same view as in a single inspection.
#[derive(Clone, Copy, Debug)]
pub struct PageRoom {
    locks: usize,
    holders: usize,
    bytes: usize,
    is_empty: bool,
}

impl PageRoom {
    /// The most holders that a page lists, unless its first lock alone has more.
    pub const HOLDERS_MAX: usize = 1_000;
    /// The most bytes of their owners and metadata, unless its first lock alone has more.
    pub const BYTES_MAX: usize = 256 * 1024;

    /// The space in a page of at most this many locks.
    #[must_use]
    pub fn for_locks(page_size: usize) -> Self {
        Self {
            locks: page_size,
            holders: Self::HOLDERS_MAX,
            bytes: Self::BYTES_MAX,
            is_empty: true,
        }
    }

    /// Adds the next lock if the page has room for it, and returns whether it has.
    pub fn take(&mut self, lock: &LockView) -> bool {
        let listed = match &lock.state {
            LockState::Held(holders) => &holders.listed[..],
            LockState::Free | LockState::Cooling { .. } => &[],
        };
        let bytes = listed.iter().map(Holder::text_bytes).sum::<usize>();
        let fits = listed.len() <= self.holders && bytes <= self.bytes;
        if self.locks == 0 || !(fits || self.is_empty) {
            return false;
        }
        self.is_empty = false;
        self.locks -= 1;
        self.holders = self.holders.saturating_sub(listed.len());
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_within_one_microsecond_and_when_the_clock_steps_back() {
        let first = Fence::after(0, 1_000).expect("far from the end");
        let second = Fence::after(first.get(), 1_000).expect("far from the end");
        let third = Fence::after(second.get(), 10).expect("far from the end");
        assert_eq!(
            [first.get(), second.get(), third.get()],
            [1_000, 1_001, 1_002]
        );
    }

    #[test]
    fn a_lost_counter_continues_from_the_clock() {
        assert_eq!(Fence::after(0, 7_000).map(Fence::get), Some(7_000));
    }

    #[test]
    fn the_last_number_is_granted_and_none_after_it() {
        assert_eq!(
            Fence::after(Fence::MAX - 1, 0).map(Fence::get),
            Some(Fence::MAX)
        );
        assert_eq!(Fence::after(Fence::MAX, 0), None);
        assert_eq!(Fence::after(u64::MAX, 0), None);
    }
}
