//! What a granted claim has. Only the store's clock appears here; a client counts `expires_in` from its answer.

use std::time::Duration;

use super::{Fence, HoldCount, Metadata, Mode, Owner, Ttl};

/// A moment on the store's clock, in milliseconds since 1970; for people to read, never to decide by.
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

/// A claim that has been granted and is still valid, as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who holds, in the holder's own words.
    pub owner: Owner,
    /// What else the holder wants others to see.
    pub metadata: Option<Metadata>,
    /// How the lock is held.
    pub mode: Mode,
    /// The fencing token of the grant.
    pub fence: Fence,
    /// How many times over it is held.
    pub hold_count: HoldCount,
    /// When the lock was granted.
    pub acquired_at: Timestamp,
    /// When the lease ends unless renewed.
    pub expires_at: Timestamp,
    /// How long the lease still lasts, counted from when the store was asked.
    pub expires_in: Duration,
}

impl Holder {
    /// How many bytes of text the holder makes others read.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let metadata = self.metadata.as_ref().map_or("", Metadata::as_json);
        self.owner.as_str().len() + metadata.len()
    }
}

/// All who hold a lock, or held it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// Those whose leases end first, as many as the answer has [room](super::AnswerRoom) for.
    pub listed: Vec<Holder>,
    /// How many there are.
    pub total: u64,
}

impl Holders {
    /// Nobody.
    #[must_use]
    pub fn none() -> Self {
        let told = Vec::new();
        Self {
            listed: told,
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

/// What the holder itself gets to know: its place as a holder, and its TTL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The public side.
    pub holder: Holder,
    /// How long the lease lasts without renewal.
    pub ttl: Ttl,
}
