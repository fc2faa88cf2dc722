//! What can come of each operation. "Held by another" and "not yours" are answers here, never errors.

use std::time::Duration;

use super::{Holder, Lease, LockName};

/// What came of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The claim was granted just now.
    Granted {
        /// The lease, with a new fencing token.
        lease: Lease,
        /// How long the lease was held that had run out before this grant, if one had.
        after_expiry: Option<Duration>,
    },
    /// The claim holds already and now holds deeper.
    Reentered(Lease),
    /// The claim holds already; nothing changed.
    Replayed(Lease),
    /// Other claims hold the lock.
    Held(Vec<Holder>),
    /// Nobody holds the lock, but it stays closed for a while (`min_hold` or `lock_delay`).
    Cooling {
        /// How long it stays closed.
        free_in: Duration,
    },
    /// The claim has ended before; a token is good for one claim.
    Ended(NotHolder),
    /// The store may have forgotten leases that are still alive; new grants wait for their end.
    Recovering {
        /// How long new grants wait.
        retry_in: Duration,
    },
}

/// What came of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease lasts longer now.
    Extended(Renewal),
    /// The token does not hold the lock; nothing changed.
    NotHolder(NotHolder),
}

/// A renewed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The lease as it is now.
    pub lease: Lease,
    /// How much of the lease was left when the renewal arrived.
    pub slack: Duration,
}

/// What came of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The claim ended.
    Freed {
        /// How long the lease had been held.
        held_for: Duration,
    },
    /// The claim holds on at a smaller depth, or already did.
    SteppedBack(Lease),
    /// The claim had been released before, within the last minute.
    Repeated,
    /// The token does not hold the lock; nothing changed.
    NotHolder(NotHolder),
}

impl Released {
    /// What a release comes to whose token does not hold the lock.
    #[must_use]
    pub fn by_other(reason: NotHolder) -> Self {
        if reason == NotHolder::Released {
            Self::Repeated
        } else {
            Self::NotHolder(reason)
        }
    }
}

/// Why a token does not hold a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotHolder {
    /// The lease ran out, and nobody has been granted the lock since.
    Expired,
    /// The lease ran out, and the lock was granted to another claim afterwards.
    Lost,
    /// An operator took the lock away.
    Evicted {
        /// What the operator gave as the reason; may be empty.
        reason: String,
    },
    /// The claim itself let go of it.
    Released,
    /// No claim with this token is known: it never held this lock, or it ended more than a minute ago.
    Unknown,
}

/// A lock as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// The lock.
    pub name: LockName,
    /// What it is doing.
    pub state: LockState,
}

/// What a lock is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// Nobody holds it.
    Free,
    /// Somebody holds it.
    Held(Vec<Holder>),
    /// Nobody holds it, but it stays closed for a while.
    Cooling {
        /// How long it stays closed.
        free_in: Duration,
    },
}

/// One page of a listing, in the order of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Locks that are held, and only those.
    pub locks: Vec<LockView>,
    /// The name after which the next page starts; none on the last page.
    pub next_after: Option<LockName>,
}
