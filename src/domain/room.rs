//! Limits how many holders one answer lists: a semaphore may have a million, each with metadata, and a request may
//! concern many locks. The scripts follow the same rule, see `lease.lua`.

use super::{Holder, LockState, LockView};

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
