//! The words of histories: what a step asks for, and what it is answered.

use super::Mode;

/// One step of a history. Locks and tokens are indices.
#[derive(Clone, Debug)]
pub(in super::super) enum Step {
    /// A new request for a claim. Where it comes to stand if it does is said by the process.
    Acquire {
        ask: Ask,
        stands_on: Option<usize>,
    },
    /// The request that brought the token into the queue asks again, from its place.
    Look {
        token: usize,
    },
    /// That request is over; its place is kept.
    Park {
        token: usize,
        keep: u64,
    },
    /// Rolls back the first or the last of the token's attempts: nobody was told, or its stream was closed.
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
    /// Time passes, and all who wait look again, in their order.
    Pass {
        ticks: u64,
    },
}

/// What a claim asks for.
#[derive(Clone, Debug)]
pub(in super::super) struct Ask {
    pub(in super::super) locks: Vec<usize>,
    pub(in super::super) token: usize,
    pub(in super::super) depth: u64,
    pub(in super::super) mode: Mode,
    pub(in super::super) fair: bool,
    pub(in super::super) takes_over: bool,
    pub(in super::super) terms: Terms,
}

/// The durations that a claim asks for, in ticks.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Terms {
    pub(in super::super) ttl: u64,
    pub(in super::super) min_hold: Option<u64>,
    pub(in super::super) max_hold: Option<u64>,
    pub(in super::super) lock_delay: Option<u64>,
}

/// An answer or a view.
pub(in super::super) type Seen = Vec<Part>;

/// What an answer says of one lock: in numbers, and in durations.
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
    Parked,
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
    /// The same of another lock.
    pub(super) fn at(self, lock: usize) -> Self {
        Self { lock, ..self }
    }
}
