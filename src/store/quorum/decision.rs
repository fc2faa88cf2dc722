//! What a round decides, one after the other, for all nodes to follow. How it comes to that is in `round`.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::grants::is_from_before;
use super::recording::Recording;
use super::restoring::HeldBefore;
use crate::domain::{Fence, Granted};
use crate::store::StoreResult;

/// What was decided. A round that ends without [`Keep`](Self::Keep) is rolled back.
#[derive(Clone, Debug)]
pub(super) enum Decision {
    Open,
    /// The claim waits: ask again, with this place in the queues.
    Place(u64),
    /// A majority has granted the locks: record these tokens.
    Assign(Assignment),
    /// The claim holds its locks.
    Keep(Kept),
    /// The claim has not been granted. If it waits, at this place.
    RollBack(Option<u64>),
}

impl Decision {
    /// Decisions come in this order; a node that is late gets only the last.
    pub(super) fn stage(&self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Place(_) => 1,
            Self::Assign(assignment) => 2 + assignment.number,
            Self::Keep(_) | Self::RollBack(_) => u8::MAX,
        }
    }
}

/// Tokens to be recorded, and where nodes answer to that.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    /// How often tokens were decided before.
    pub(super) number: u8,
    pub(super) decided: Arc<[Fence]>,
    /// Whether a majority has the leases from before. Then a node that has granted them just now does not count.
    pub(super) were_held: bool,
    pub(super) answers: mpsc::UnboundedSender<(usize, StoreResult<Recording>)>,
}

impl Assignment {
    /// Whether a node with this grant takes part.
    pub(super) fn counts(&self, granted: &Granted) -> bool {
        !self.were_held || is_from_before(granted)
    }
}

/// What a claim holds.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) decided: Arc<[Fence]>,
    /// What a majority has from before this round, if it does.
    pub(super) held_before: Option<Arc<HeldBefore>>,
}
