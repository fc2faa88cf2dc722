//! The types of histories: steps and answers.

use super::Mode;

/// One step of a history. Locks and tokens are indices.
#[derive(Clone, Debug)]
pub(in super::super) enum Step {
    /// A new request for a claim. It waits on the given process, if any.
    Acquire {
        spec: ClaimSpec,
        waits_on: Option<usize>,
    },
    /// The waiting request of the token polls again, from its place.
    Poll {
        token: usize,
    },
    /// That request ends; its place is kept.
    Suspend {
        token: usize,
        keep: u64,
    },
    /// Rolls back the first or the last of the token's attempts: it was not delivered, or its stream was closed.
    Withdraw {
        token: usize,
        takes_first: bool,
        is_closed: bool,
    },
    Renew {
        locks: Vec<usize>,
        token: usize,
        ttl: Option<u64>,
        mode: Option<Mode>,
    },
    Release {
        locks: Vec<usize>,
        token: usize,
        depth: Option<u64>,
    },
    Evict {
        lock: usize,
    },
    /// Time passes, and all waiters poll again, in their order.
    Pass {
        ticks: u64,
    },
}

/// The request of a claim.
#[derive(Clone, Debug)]
pub(in super::super) struct ClaimSpec {
    pub(in super::super) locks: Vec<usize>,
    pub(in super::super) token: usize,
    pub(in super::super) depth: u64,
    pub(in super::super) mode: Mode,
    pub(in super::super) fair: bool,
    pub(in super::super) takes_over: bool,
    pub(in super::super) terms: Terms,
}

/// The durations of a claim, in ticks.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Terms {
    pub(in super::super) ttl: u64,
    pub(in super::super) min_hold: Option<u64>,
    pub(in super::super) max_hold: Option<u64>,
    pub(in super::super) lock_delay: Option<u64>,
}

/// An answer or a view.
pub(in super::super) type Seen = Vec<Part>;

/// The part of an answer about one lock: numbers and durations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Part {
    pub(in super::super) lock: usize,
    pub(in super::super) what: What,
    pub(in super::super) counts: Vec<u64>,
    pub(in super::super) ticks: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum What {
    Granted,
    Reentered,
    Replayed,
    Waiting,
    Held,
    Holder,
    Cooling,
    Behind,
    Free,
    Queue,
    ContradictsLimit,
    ContradictsUpgrade,
    ContradictsClaim,
    TooManyWaiters,
    Ended(Why),
    Extended,
    SteppedBack,
    Freed,
    LeftQueue,
    Repeated,
    NotHolder(Why),
    Evicted,
    Suspended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Why {
    Expired,
    Lost,
    Evicted,
    Released,
    Unknown,
}

impl What {
    pub(in super::super) fn of(self, lock: usize, counts: &[u64], ticks: &[u64]) -> Part {
        Part {
            lock,
            what: self,
            counts: counts.to_vec(),
            ticks: ticks.to_vec(),
        }
    }

    pub(in super::super) fn bare(self, lock: usize) -> Part {
        self.of(lock, &[], &[])
    }
}

impl Part {
    /// The same for another lock.
    pub(super) fn at(self, lock: usize) -> Self {
        Self { lock, ..self }
    }
}
