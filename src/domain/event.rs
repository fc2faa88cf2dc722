//! Lock events, as watchers receive them.

use super::{Fence, LockName, Owner, Timestamp};

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockEvent {
    /// Identifies the event: unique within a store, and the same for all watchers.
    pub id: String,
    /// What happened.
    pub kind: EventKind,
    /// The lock.
    pub name: LockName,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// The fencing token of the lease concerned; none if there is no lease.
    pub fence: Option<Fence>,
    /// When the lease ends unless renewed; none if the event ended it.
    pub expires_at: Option<Timestamp>,
    /// The owner text of the holder, the former holder or the waiter.
    pub owner: Owner,
}

/// What can happen to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A claim was granted.
    Acquired,
    /// A lease was extended.
    Renewed,
    /// A holder released the lock.
    Released,
    /// A lease expired.
    Expired,
    /// An operator evicted the holders.
    Evicted,
    /// A claim was enqueued.
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
