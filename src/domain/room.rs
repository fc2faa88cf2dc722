//! How much one answer may tell of holders: a semaphore may have a million, each with metadata, and a request may be about
//! many locks. Scripts keep to the same rule, see `lease.lua`.

use super::{Holder, LockState, LockView};

/// What an answer about certain locks may tell.
///
/// Each of its locks has an equal share of the holders. Bytes of owners and metadata are taken in the order of locks and
/// holders, and the first holder that does not fit ends that: of no further one is told.
#[derive(Clone, Copy, Debug)]
pub struct AnswerRoom {
    of_lock_max: usize,
    bytes: Option<usize>,
}

impl AnswerRoom {
    /// Of how many holders an answer tells.
    pub const HOLDERS_MAX: usize = 100;
    /// How many bytes of their owners and metadata it has.
    pub const BYTES_MAX: usize = 64 * 1024;

    /// The room of an answer about so many locks.
    #[must_use]
    pub fn for_locks(locks: usize) -> Self {
        Self {
            of_lock_max: (Self::HOLDERS_MAX / locks.max(1)).max(1),
            bytes: Some(Self::BYTES_MAX),
        }
    }

    /// Takes those holders of one lock that the answer tells of.
    pub fn take(&mut self, holders: impl Iterator<Item = Holder>) -> Vec<Holder> {
        let fits = |holder: &Holder| {
            let bytes = self.bytes;
            self.bytes = bytes.and_then(|bytes| bytes.checked_sub(holder.text_bytes()));
            self.bytes.is_some()
        };
        holders.take(self.of_lock_max).take_while(fits).collect()
    }
}

/// What one page of a listing may tell. Each lock in it looks as it does alone.
#[derive(Clone, Copy, Debug)]
pub struct PageRoom {
    locks: usize,
    holders: usize,
    bytes: usize,
    is_empty: bool,
}

impl PageRoom {
    /// Of how many holders a page tells, unless its first lock alone has more.
    pub const HOLDERS_MAX: usize = 1_000;
    /// How many bytes of their owners and metadata it has, unless its first lock alone has more.
    pub const BYTES_MAX: usize = 256 * 1024;

    /// The room of a page of so many locks.
    #[must_use]
    pub fn for_locks(page_size: usize) -> Self {
        Self {
            locks: page_size,
            holders: Self::HOLDERS_MAX,
            bytes: Self::BYTES_MAX,
            is_empty: true,
        }
    }

    /// Takes the next lock. Says whether the page has room for it.
    pub fn take(&mut self, lock: &LockView) -> bool {
        let told = match &lock.state {
            LockState::Held(holders) => &holders.listed[..],
            LockState::Free | LockState::Cooling { .. } => &[],
        };
        let bytes = told.iter().map(Holder::text_bytes).sum::<usize>();
        let fits = told.len() <= self.holders && bytes <= self.bytes;
        if self.locks == 0 || !(fits || self.is_empty) {
            return false;
        }
        self.is_empty = false;
        self.locks -= 1;
        self.holders = self.holders.saturating_sub(told.len());
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }
}
