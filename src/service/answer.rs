//! What the service answers to an acquire: the store's outcome as it came out of the wait, and the duty to deliver it.

use std::time::Duration;

use super::UnclaimedLease;
use crate::domain::{Conflict, Lease, LockName, Mismatch, NotHeld, Position};

/// What came of an acquire, and the duty to deliver it.
#[derive(Debug)]
pub struct AcquireAnswer {
    /// What came of it.
    pub outcome: AcquireOutcome,
    /// How long the request waited in the queue.
    pub waited: Duration,
    /// To be marked as delivered when the answer is on its way; dropped before that, a new grant is given back.
    pub undelivered: UnclaimedLease,
}

/// What came of an acquire and its wait. Where there is something for each lock, it is in the order of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The claim was granted just now.
    Granted(Vec<Lease>),
    /// The claim holds already and now holds deeper.
    Reentered(Vec<Lease>),
    /// The claim holds already; nothing changed.
    Replayed(Vec<Lease>),
    /// Something is in the way, and the request did not want to wait.
    Blocked(Vec<Conflict>),
    /// The claim contradicts the lock, or itself; waiting cannot help.
    Contradicts(Mismatch),
    /// There are so many waiters already that this one was not let into the queue.
    TooManyWaiters(QueueFull),
    /// The time for waiting is over.
    TimedOut(NotGranted),
    /// This process is about to stop; other ones go on.
    Draining(NotGranted),
    /// The claim has ended before; a token is good for one claim.
    Ended(NotHeld),
    /// The store was away, or may have lost data; new grants wait.
    Recovering {
        /// How long new grants wait.
        retry_in: Duration,
    },
}

impl AcquireOutcome {
    /// What the claim holds by it.
    pub(super) fn leases(&self) -> &[Lease] {
        match self {
            Self::Granted(leases) | Self::Reentered(leases) | Self::Replayed(leases) => leases,
            Self::Blocked(_)
            | Self::Contradicts(_)
            | Self::TooManyWaiters(_)
            | Self::TimedOut(_)
            | Self::Draining(_)
            | Self::Ended(_)
            | Self::Recovering { .. } => &[],
        }
    }
}

/// Where there are too many waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// The queue of this lock is full.
    Lock {
        /// The lock.
        name: LockName,
        /// How many wait for it.
        queue_length: u64,
    },
    /// This process has as many waiters as it may.
    Process {
        /// How many there are, one on several locks counted for each.
        waiters: usize,
    },
    /// The peer has as many waiters on this process as one peer may.
    Peer,
}

/// A claim that left the queue without having been granted. Posted again in time, it stands where it stood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotGranted {
    /// How far it had come; none if that is not known.
    pub position: Option<Position>,
    /// What is in its way, as far as that is known.
    pub blocked_by: Vec<Conflict>,
    /// How long its place is kept; zero if it has none.
    pub place_kept: Duration,
}
