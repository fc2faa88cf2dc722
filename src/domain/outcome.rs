//! What can come of each operation. "Held by another" and "not yours" are answers here, never errors.

use std::time::Duration;

use super::{Holders, Lease, LockName, Mode, Position, Queue, Ticket, Ttl};

/// What came of an acquire. Where there is something for each lock, it is in the order of the claim's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The claim was granted just now.
    Granted(Vec<Grant>),
    /// The claim holds already and now holds deeper.
    Reentered(Vec<Lease>),
    /// The claim holds already; nothing changed.
    Replayed(Vec<Lease>),
    /// The claim stands in the queue of each lock. Only for a claim that asked to.
    Waiting(Waiting),
    /// The client has asked again since: the claim waits at another process, or holds by a later request. Only for a claim
    /// that said where it stands; nothing changed.
    Superseded,
    /// Something is in the way; nothing changed. Never for a claim that asked to wait.
    Blocked(Vec<Conflict>),
    /// The claim contradicts the lock, or itself; nothing changed, and waiting cannot help.
    Mismatched(Mismatch),
    /// The queue of this lock is full.
    TooManyWaiters {
        /// The lock.
        name: LockName,
        /// How many wait.
        queue_length: u64,
    },
    /// The time until which this request might have been granted from its place is over; nothing changed.
    WaitExpired,
    /// The claim has ended before; a token is good for one claim.
    Ended(NotHeld),
    /// The store was away, or may have lost data; new grants wait.
    Recovering {
        /// How long new grants wait.
        retry_in: Duration,
    },
}

/// A lock that was granted just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lease, with a new fencing token.
    pub lease: Lease,
    /// How long the lease was held that had run out before this grant, if one had.
    pub after_expiry: Option<Duration>,
}

/// A claim that stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Where it stands.
    pub place: Ticket,
    /// When looking again could find another answer even if nobody does anything: something runs out then.
    pub recheck_in: Option<Duration>,
    /// How many are before it, for a stand that asked for it.
    pub position: Option<Position>,
    /// Whether the store had lost the place and has restored it; then it may have lost those of all the waiters of this
    /// process, who should ask again too.
    pub restored: bool,
    /// Whether an earlier try of this very request may still arrive, and be granted then.
    pub is_unsure: bool,
}

/// A lock that keeps a claim from being granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The lock.
    pub name: LockName,
    /// What is in the way.
    pub by: ConflictKind,
    /// How many claims wait for the lock.
    pub queue_length: u64,
}

/// What is in the way of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// Other claims hold the lock.
    Holders(Holders),
    /// Nobody holds the lock, but it stays closed for a while (`min_hold` or `lock_delay`).
    Cooling {
        /// How long it stays closed.
        free_in: Duration,
    },
    /// The claim could be granted, but others wait for the lock and came first.
    Waiters,
}

/// How a request contradicts the lock or its own claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Those who hold the lock agreed on another limit.
    Limit {
        /// The lock.
        name: LockName,
        /// The limit in force; none for a read lock.
        in_force: Option<u32>,
    },
    /// The claim holds the lock together with others and cannot come to hold it alone.
    Upgrade {
        /// The lock.
        name: LockName,
    },
    /// The claim was made before with another mode, limit or number of permits, or on other locks.
    Claim {
        /// The lock.
        name: LockName,
    },
}

/// A claim that stepped out of the queue; its place is kept for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspended {
    /// How far it had come; none if it did not stand there.
    pub position: Option<Position>,
    /// What is in its way.
    pub blocked_by: Vec<Conflict>,
}

/// What a renewal asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenewOptions {
    /// How long the lease lasts from now on; the claim's own TTL if none.
    pub ttl: Option<Ttl>,
    /// How the lock is held from now on; as before if none. Only from alone to shared.
    pub mode: Option<Mode>,
    /// Who may withdraw the grant from now on.
    pub rollback_right: RollbackRight,
}

/// Which attempt may withdraw a grant. A request with the same token that is told of the grant ends that in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RollbackRight {
    /// None: somebody has been told of the grant.
    #[default]
    Never,
    /// The one that could before.
    AsBefore,
}

/// How a withdrawal ends what its attempt holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// As if the grant had never been, because nobody was told of it: it closes nothing. A lease that the attempt took over
    /// was in use before, and is closed.
    Undo,
    /// As a release does, because the lease was in use: the lock stays taken for its `min_hold`. One that ran out has expired.
    Close,
}

/// What came of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// All leases last longer now; in the order of names.
    Extended(Vec<Renewal>),
    /// The token does not hold these locks; nothing changed on any lock.
    NotHolder(Vec<NotHeld>),
    /// The claim cannot be changed so; nothing changed on any lock.
    Contradicts(Mismatch),
}

/// A lock that a token does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHeld {
    /// The lock.
    pub name: LockName,
    /// Why not.
    pub reason: NotHolder,
}

/// A renewed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The lease as it is now.
    pub lease: Lease,
    /// How much of the lease was left when the renewal arrived.
    pub remaining_before: Duration,
}

/// What came of a release, for one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The claim ended.
    Freed {
        /// How long the lease had been held.
        held_for: Duration,
    },
    /// The claim holds on at a smaller depth, or already did.
    SteppedBack(Lease),
    /// The claim stood in the queue and has ended without being granted.
    LeftQueue,
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
    /// No lease with this token is known: the claim waits, never held this lock, was rolled back, or ended more than a
    /// minute ago.
    Unknown,
}

impl NotHolder {
    /// Whether the lease ended because its time was over, and not because somebody ended it.
    #[must_use]
    pub fn ran_out(&self) -> bool {
        match self {
            Self::Expired | Self::Lost => true,
            Self::Evicted { .. } | Self::Released | Self::Unknown => false,
        }
    }
}

/// A lock as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// The lock.
    pub name: LockName,
    /// What it is doing.
    pub state: LockState,
    /// Who waits for it.
    pub queue: Queue,
}

/// What a lock is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// Nobody holds it.
    Free,
    /// Somebody holds it.
    Held(Holders),
    /// Nobody holds it, but it stays closed for a while.
    Cooling {
        /// How long it stays closed.
        free_in: Duration,
    },
}

/// What came of an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Who was evicted; not necessarily all whose leases would have ended first are among those that are told of.
    pub holders: Holders,
    /// Whether all who held the lock when the eviction began hold it no more. Else there was no time for the rest, or the
    /// store did not answer any more, and a few more may have been evicted.
    pub is_complete: bool,
}

/// One page of a listing, in the order of names. It may have fewer locks than were asked for though others follow, so that
/// it does not become too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Locks that are held or waited for, and only those.
    pub locks: Vec<LockView>,
    /// The name after which the next page starts; none on the last page.
    pub next_after: Option<LockName>,
}
