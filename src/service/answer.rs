//! The service's answer to an acquire: the outcome after a possible wait, and the guard for its delivery.

use std::time::Duration;

use super::UnclaimedLease;
use crate::domain::{Conflict, Lease, LockName, Mismatch, NotHeld, Position};

/// The outcome of an acquire, and the guard for its delivery.
#[derive(Debug)]
pub struct AcquireAnswer {
    /// The outcome.
    pub outcome: AcquireOutcome,
    /// How long the request waited in the queue.
    pub waited: Duration,
    /// Mark it as delivered when the response is on its way. Dropped before that, it rolls back a new grant.
    pub unclaimed: UnclaimedLease,
}

/// The outcome of an acquire and its wait. What there is per lock is in the order of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The claim was granted now.
    Granted(Vec<Lease>),
    /// The claim held already, and its hold count has increased.
    Reentered(Vec<Lease>),
    /// The claim held already; nothing changed.
    Replayed(Vec<Lease>),
    /// The claim is blocked, and the request did not ask to wait.
    Blocked(Vec<Conflict>),
    /// The claim contradicts the lock, or itself; waiting cannot help.
    Mismatched(Mismatch),
    /// A limit on waiters is reached, so the claim was not queued.
    TooManyWaiters(QueueFull),
    /// The wait timed out.
    TimedOut(NotGranted),
    /// This process is shutting down; other processes continue.
    Draining(NotGranted),
    /// The claim ended before; a token identifies one claim only.
    Ended(NotHeld),
    /// The store was unavailable or may have lost data; new grants wait.
    Recovering {
        /// How long new grants wait.
        retry_in: Duration,
    },
}

impl AcquireOutcome {
    /// The leases that the outcome reports.
    pub(super) fn leases(&self) -> &[Lease] {
        match self {
            Self::Granted(leases) | Self::Reentered(leases) | Self::Replayed(leases) => leases,
            Self::Blocked(_)
            | Self::Mismatched(_)
            | Self::TooManyWaiters(_)
            | Self::TimedOut(_)
            | Self::Draining(_)
            | Self::Ended(_)
            | Self::Recovering { .. } => &[],
        }
    }
}

/// Which limit on waiters is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// The queue of this lock is full.
    Lock {
        /// The lock.
        name: LockName,
        /// How many claims wait for it.
        queue_length: u64,
    },
    /// This process has its maximum of waiters.
    Process {
        /// How many there are; a waiter for several locks counts once per lock.
        waiters: usize,
    },
    /// The peer has its maximum of waiters on this process.
    Peer,
}

/// A claim that left the queue without a grant. Posted again in time, it resumes its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotGranted {
    /// Its last position; none if unknown.
    pub position: Option<Position>,
    /// What blocks it, as far as known.
    pub blocked_by: Vec<Conflict>,
    /// How long its place is kept; zero if it has none.
    pub place_kept: Duration,
}
