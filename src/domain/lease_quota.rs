//! The quota of leases: how many locks a principal, or all together, may hold at a time, and the steps by which a store
//! counts them.
//!
//! The count is kept apart from the locks, because in a cluster the locks of a principal are at many nodes. So the
//! steps must not depend on their order: no step shortens the time for which another one has counted a lease, a lease
//! that two requests have counted is not undone by either, and a rollback uncounts only leases that its attempt may
//! end.

use std::sync::Arc;
use std::time::Duration;

use super::{Attempt, Bucket};

/// A new lease is counted or rolled back within this time, unless the store fails. If an older one is not counted, the
/// count was lost, or began later.
pub const UNCOUNTED_MAX: Duration = Duration::from_secs(10);

/// How many leases there may be at a time. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseQuota {
    /// Whose leases are counted.
    pub of: LeasesOf,
    /// How many there may be.
    pub leases_max: usize,
}

impl LeaseQuota {
    /// The bucket in whose slot a cluster has the count.
    #[must_use]
    pub fn bucket(&self) -> Bucket {
        Bucket::of(self.of.name())
    }
}

/// Whose leases a quota counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeasesOf {
    /// Those of all principals, and of clients that are none.
    All,
    /// Those of a principal.
    Principal(Arc<str>),
}

impl LeasesOf {
    /// What tells the counts apart where they are kept. The name of a principal is never empty.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Principal(name) => name,
            Self::All => "",
        }
    }
}

/// A step of the count of a quota, for some leases of one claim. A step that is repeated changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountStep {
    /// Counts nothing: is there room for these leases?
    Check,
    /// Counts leases, all or none, if there is room for those that are not counted.
    Take {
        /// Which attempt may undo this. A lease that another attempt has counted cannot be undone from now on.
        by: Attempt,
        /// How long they last from now on. A lease that is counted for longer stays so, here and below.
        lasts: Duration,
    },
    /// Counts leases that their claim has, whether there is room or not.
    Keep {
        /// Which attempt may roll them back from now on.
        undone_by: UndoneBy,
        /// How long they last from now on.
        lasts: Duration,
    },
    /// Counts leases for as long as they last now, but only those that are counted already.
    Extend {
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
        /// When there is room, if nothing is renewed.
        retry_in: Duration,
    },
}
