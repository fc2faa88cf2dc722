//! Leases and holders. Only the store's clock appears here; a client counts `expires_in` from its response.

use std::time::Duration;

use super::{Fence, HoldCount, Metadata, Mode, Owner, Ttl};

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
