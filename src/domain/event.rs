//! What happens to locks, as it is told to those who watch.

use super::{Fence, LockName, Owner, Timestamp};

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockEvent {
    /// Names the event: no other event of the same store has the same, and all who watch are told the same.
    pub id: String,
    /// What happened.
    pub kind: EventKind,
    /// The lock.
    pub name: LockName,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// The fencing token of the lease that this is about; none where there is no lease.
    pub fence: Option<Fence>,
    /// When the lease ends unless it is renewed, where it goes on.
    pub expires_at: Option<Timestamp>,
    /// Who holds, held or waits, in their own words.
    pub owner: Owner,
}

/// What can happen to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A claim was granted.
    Acquired,
    /// A lease lasts longer.
    Renewed,
    /// A holder let go.
    Released,
    /// A lease ran out.
    Expired,
    /// An operator took the lock away.
    Evicted,
    /// A claim has come to wait.
    Queued,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Acquired,
        Self::Renewed,
        Self::Released,
        Self::Expired,
        Self::Evicted,
        Self::Queued,
    ];

    /// The name on the wire.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Renewed => "renewed",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Queued => "queued",
        }
    }
}
