//! The results of reads: the view of one lock, and a page of a listing.

use std::time::Duration;

use super::{Holders, LockName, Queue};

/// The public view of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// The lock.
    pub name: LockName,
    /// Its state.
    pub state: LockState,
    /// Its queue.
    pub queue: Queue,
    /// The nodes that show another state than this one, which is that of a majority. Only an inspection on a quorum
    /// names any.
    pub disagreeing_nodes: Vec<String>,
}

impl LockView {
    /// The view of one store.
    #[must_use]
    pub fn new(name: LockName, state: LockState, queue: Queue) -> Self {
        Self {
            name,
            state,
            queue,
            disagreeing_nodes: Vec::new(),
        }
    }
}

/// The state of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// No claim holds it.
    Free,
    /// Held by one or several claims.
    Held(Holders),
    /// No claim holds it, but it stays closed for a while.
    Cooling {
        /// How long it stays closed.
        free_in: Duration,
    },
}

/// One page of a listing, in the order of names. To limit its size, it may have fewer locks than requested although
/// more follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Locks that are held or waited for, and only those.
    pub locks: Vec<LockView>,
    /// The name after which the next page starts; none on the last page.
    pub next_after: Option<LockName>,
    /// Lets the store continue with the names that it has found for this page.
    pub snapshot: Option<u64>,
}
