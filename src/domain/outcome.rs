//! The possible outcomes of each operation. "Held by another" and "not yours" are outcomes here, never errors.

use std::time::Duration;

use super::{
    Attempt, ClaimDigest, Fence, HoldCount, Holders, Lease, LockName, Mode, Position, Ticket, Ttl,
};

/// The outcome of an acquire. Lists with an entry per lock are in the order of the claim's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The claim holds its locks.
    Granted(Granted),
    /// The claim is in the queue of each lock. Only for a request that waits.
    Waiting(Waiting),
    /// A later request of the client replaced this one: the claim now waits on another process, or holds by that
    /// request, even if this one has held before. Only for a request with a ticket; nothing changed.
    Superseded,
    /// The ticket has passed its deadline, so this request can no longer be granted from it; nothing changed.
    WaitExpired,
    /// The claim does not hold its locks and is not in their queues.
    Refused(Refused),
}

/// Why a store refuses a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// At least one lock has a conflict; nothing changed. Never for a request that waits.
    Blocked(Vec<Conflict>),
    /// The claim is incompatible with the lock, or with its own earlier request; nothing changed, and waiting cannot
    /// help.
    Mismatched(Mismatch),
    /// The queue of this lock is full.
    TooManyWaiters {
        /// The lock.
        name: LockName,
        /// How many claims wait.
        queue_length: u64,
    },
    /// The claim has ended before; a token is valid for one claim only.
    Ended(NotHeld),
    /// The store was unavailable, or may have lost data; new grants wait.
    Recovering {
        /// How long new grants wait.
        retry_in: Duration,
    },
    /// There are as many leases as a quota permits: the service says so, with the count of the store. The store itself
    /// says so of a claim whose grant is being rolled back for that reason, see [`Rollback::Refuse`].
    TooManyLeases {
        /// Whether it is the quota of all. A store does not know which one it is, and says that it is the principal's.
        of_all: bool,
        /// When there is room for the claim, if nothing is renewed; or when the grant is final, if it stays.
        retry_in: Duration,
    },
}

impl Acquired {
    /// How the claim came to hold its locks; none if it does not hold them.
    #[must_use]
    pub fn kind(&self) -> Option<GrantKind> {
        match self {
            Self::Granted(granted) => Some(granted.kind),
            Self::Waiting(_) | Self::Superseded | Self::WaitExpired | Self::Refused(_) => None,
        }
    }
}

/// The leases of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// How the claim came to hold them.
    pub kind: GrantKind,
    /// The leases, in the order of names.
    pub leases: Vec<Lease>,
    /// What else applies to them. Empty for new grants, to which applies what their claim asks for.
    pub options: Vec<HoldOptions>,
    /// The previous leases that had expired; only for new grants.
    pub expired: Vec<PreviousLease>,
}

/// How a claim came to hold its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantKind {
    /// It was granted them just now, with new fencing tokens.
    New,
    /// It held them already; its hold count was raised.
    Reentered,
    /// It held them already; nothing changed.
    Replayed,
}

/// The lease of a lock before a new grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousLease {
    /// The lock.
    pub name: LockName,
    /// How long it had been held.
    pub held_for: Duration,
}

impl Granted {
    /// Leases that the claim held already, and what else applies to each.
    #[must_use]
    pub fn before(kind: GrantKind, held: impl IntoIterator<Item = (Lease, HoldOptions)>) -> Self {
        let (leases, options) = held.into_iter().unzip();
        Self {
            kind,
            leases,
            options,
            expired: Vec::new(),
        }
    }
}

/// A claim in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its ticket.
    pub ticket: Ticket,
    /// When a recheck could have another result without any operation on the lock: the next expiry in the claim's way.
    pub recheck_in: Option<Duration>,
    /// Its position in the queue, if the request asked for it.
    pub position: Option<Position>,
    /// Whether the store had lost the ticket and restored it. It may then have lost the tickets of all waiters of this
    /// process, so those should recheck too.
    pub restored: bool,
    /// Whether an earlier try of this same request may still reach the store and be granted.
    pub has_ambiguous_attempt: bool,
}

/// A lock that the claim cannot be granted now.
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
    /// No claim holds the lock, but `min_hold` or `lock_delay` keeps it closed.
    Cooling {
        /// How long it stays closed.
        free_in: Duration,
    },
    /// The lock would admit the claim, but earlier waiters are queued.
    Waiters,
}

/// How a request is incompatible with the lock or with its own claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The holders of the lock use another limit.
    Limit {
        /// The lock.
        name: LockName,
        /// The limit in force; none for a read lock.
        in_force: Option<u32>,
    },
    /// The claim holds the lock shared and cannot change to exclusive.
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

/// A claim that left the queue with its ticket kept for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspended {
    /// Its position in the queue; none if it was not queued.
    pub position: Option<Position>,
    /// The conflicts of the claim, if they were asked for.
    pub blocked_by: Vec<Conflict>,
}

/// How a claim leaves the queue.
#[derive(Clone, Copy, Debug)]
pub struct SuspendOptions {
    /// How long its place is kept.
    pub keep: Duration,
    /// Whether the answer lists the conflicts. With many holders, that takes the store most of the time.
    pub lists_conflicts: bool,
}

/// The options of a renewal.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenewOptions {
    /// How long the lease lasts from now on; the claim's own TTL if none.
    pub ttl: Option<Ttl>,
    /// The new mode; unchanged if none. Only from exclusive to shared.
    pub mode: Option<Mode>,
    /// Which attempt may roll back the grant from now on.
    pub rollback_right: RollbackRight,
}

impl RenewOptions {
    /// Those of a renewal that extends the lease, and leaves the right to roll it back to the attempt that has it.
    pub const AS_BEFORE: Self = Self {
        ttl: None,
        mode: None,
        rollback_right: RollbackRight::AsBefore,
    };
}

/// Which attempt may still roll back the grant. Replaying the grant to another attempt makes it final.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RollbackRight {
    /// None: the grant is final.
    #[default]
    Never,
    /// The same as before.
    AsBefore,
    /// None, unless the lease is young: one that was granted less than [`UNCOUNTED_MAX`](super::UNCOUNTED_MAX) ago and
    /// that an attempt may still roll back is left as it is, and its end does not move.
    UnlessYoung,
}

/// A release that lowers the hold count instead of ending the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBack {
    /// The new hold count, if it is smaller.
    pub hold_count: HoldCount,
    /// Which attempt may roll back the grant from now on.
    pub rollback_right: RollbackRight,
}

impl From<HoldCount> for StepBack {
    /// The grant is final.
    fn from(hold_count: HoldCount) -> Self {
        Self {
            hold_count,
            rollback_right: RollbackRight::Never,
        }
    }
}

/// How a rollback ends the lease of its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// As if the grant had never been made, because no client received it: `min_hold` does not apply. For a lease that
    /// the attempt took over and that was in use before, `min_hold` applies.
    Undo,
    /// The same, and while it is young, an undecided lease passes to no further attempt, because it was not counted. An
    /// attempt that has received it already keeps what it has.
    Refuse,
    /// Like a release, because the lease was in use: the lock stays taken for its `min_hold`. An expired lease stays
    /// expired.
    Close,
}

/// The outcome of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// All leases were extended; in the order of names.
    Extended(Vec<Renewal>),
    /// The token does not hold these locks; nothing changed on any lock.
    NotHolder(Vec<NotHeld>),
    /// The claim does not permit this change; nothing changed on any lock.
    Mismatched(Mismatch),
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
    /// What else applies to the lease.
    pub options: HoldOptions,
    /// The attempt that may roll the lease back, if one may. A part of a store that lacks the lease gets it back as granted
    /// to that attempt, so that it ends there, too, when its stream closes.
    pub withdrawable_by: Option<Attempt>,
}

/// What a claim has asked for besides its TTL, as it still applies; none of what it has not asked for. A part of a store that
/// gets the lease back has to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldOptions {
    /// How long the lock is still kept even if it is released.
    pub min_hold_left: Option<Duration>,
    /// How long the lease can still be extended.
    pub max_hold_left: Option<Duration>,
    /// How long the lock stays closed after the lease has expired or was evicted.
    pub lock_delay: Option<Duration>,
    /// Whether a stream holds the lease, or has held it.
    pub is_of_stream: bool,
}

/// The outcome of a release, for one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The claim ended.
    Freed {
        /// How long the lease had been held.
        held_for: Duration,
        /// The fencing token of the lease; none if parts of the store had it with different ones.
        fence: Option<Fence>,
    },
    /// The claim still holds, with the requested hold count or a smaller one.
    SteppedBack(Lease),
    /// The claim was queued and has ended without a grant.
    LeftQueue,
    /// The claim had been released before, within the last minute.
    Repeated,
    /// The token does not hold the lock; nothing changed.
    NotHolder(NotHolder),
}

impl Released {
    /// The outcome of a release whose token does not hold the lock.
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
    /// The lease expired, and the lock has not been granted since.
    Expired,
    /// The lease expired, and the lock was then granted to another claim.
    Lost,
    /// An operator evicted the claim.
    Evicted {
        /// What the operator gave as the reason; may be empty.
        reason: String,
    },
    /// The claim was released.
    Released,
    /// No lease with this token is known: the claim waits, never held this lock, was rolled back, or ended more than a
    /// minute ago.
    Unknown,
}

impl NotHolder {
    /// Whether the lease ended by expiry.
    #[must_use]
    pub fn ran_out(&self) -> bool {
        match self {
            Self::Expired | Self::Lost => true,
            Self::Evicted { .. } | Self::Released | Self::Unknown => false,
        }
    }
}

/// The outcome of an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The evicted holders. Those listed need not be the ones whose leases would have ended first.
    pub holders: Holders,
    /// The claims of all of them, but at most [`CLAIMS_MAX`](Self::CLAIMS_MAX).
    pub claims: Vec<ClaimDigest>,
    /// For how long `lock_delay` keeps the lock closed from now on if one of them held it alone; zero otherwise.
    pub closed_for: Duration,
    /// Whether every claim that held the lock when the eviction began has lost it. If not, time ran out or the store
    /// stopped answering, and a few more holders than listed may have been evicted.
    pub is_complete: bool,
}

impl Evicted {
    /// The most claims that an outcome has: a node of a quorum that was away evicts no more of a lock.
    pub const CLAIMS_MAX: usize = 4_096;
}
