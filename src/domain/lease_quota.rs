//! The quota of leases: how many locks a principal may hold at a time, and the steps by which a store counts them.
//!
//! A lease is counted beside the lock that it is on, not with it, because in a cluster the locks of a principal are at
//! many nodes. So the steps are such that their order does not matter: a new lease is counted before it is reported, one
//! that is replayed or renewed is counted in any case, and a rollback stops the count only of what its attempt may end.

use std::sync::Arc;
use std::time::Duration;

use super::{Attempt, Bucket};

/// How many leases a principal may have at a time. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseQuota {
    /// Whose leases are counted together.
    pub principal: Arc<str>,
    /// How many there may be.
    pub leases_max: usize,
}

impl LeaseQuota {
    /// The bucket whose place in a cluster has the count.
    #[must_use]
    pub fn bucket(&self) -> Bucket {
        Bucket::of(&self.principal)
    }
}

/// A step of the count of a principal's leases, for some leases of one claim. A step that is repeated changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountStep {
    /// Counts nothing: is there room for these leases?
    Check,
    /// Counts new leases, all or none, if there is room for them.
    Take {
        /// The attempt that was granted them, and may roll them back.
        by: Attempt,
        /// How long they last from now on, unless they are kept.
        lasts: Duration,
    },
    /// Counts leases that their claim has, whether there is room or not.
    Keep {
        /// Which attempt may roll them back from now on.
        undone_by: UndoneBy,
        /// How long they last from now on.
        lasts: Duration,
    },
    /// Stops counting the leases that this attempt may roll back.
    Undo(Attempt),
    /// Stops counting leases that have ended.
    End,
}

/// Which attempt may roll back leases that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoneBy {
    /// None of them.
    Nobody,
    /// This one alone.
    Attempt(Attempt),
    /// The same as before.
    AsBefore,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOutcome {
    /// It was taken, or there is room.
    Within,
    /// There is no room, and nothing changed.
    Full {
        /// When there is room, if the principal renews nothing.
        retry_in: Duration,
    },
}
