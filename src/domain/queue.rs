//! Standing in a lock's queue: where a claim stands, and what it tells the store about how it waits.

use std::time::Duration;

use super::{Mode, Owner, Timestamp};

/// How a request waits for its locks.
#[derive(Clone, Copy, Debug)]
pub struct QueueRequest {
    /// Where the request stands already, as the store told it last; none when it comes to stand.
    pub place: Option<Ticket>,
    /// How long it goes on waiting.
    pub wait: Duration,
    /// How long its place is kept once nobody waits there any more.
    pub place_kept: Duration,
    /// How often this process looks after the queue at the least. A free lock that is kept for a claim which waits for
    /// another lock meanwhile is kept for three times as long.
    pub poll_interval: Duration,
    /// How many waiters a queue may have.
    pub waiters_max: u32,
    /// Whether the answer says how many waiters are before this one.
    pub tells_position: bool,
    /// Whether nobody waits at this process before this claim. Whoever the store has there was left behind by a request
    /// that is over, perhaps by a message that arrived late.
    pub is_head: bool,
    /// Whether a claim that takes leases over may take over its own, should it hold already. A request that has waited may
    /// only if it is the later one: else its client has asked again elsewhere, and holds by that request.
    pub takes_over: bool,
}

impl QueueRequest {
    /// How long a free lock is kept for this claim while it waits for another one, unless its process asks again.
    #[must_use]
    pub fn liveness_timeout(&self) -> Duration {
        self.poll_interval * 3
    }

    /// How long what is known of the place lasts without this process.
    #[must_use]
    pub fn remembered(&self) -> Duration {
        self.wait + self.place_kept
    }
}

/// Where a claim stands in the queues of its locks. Made by a store, and of use to that store alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Orders the places of a queue.
    pub sequence: u64,
    /// Until when it may be granted from this place, by the store's clock; none when the time is to be counted anew.
    pub until: Option<Timestamp>,
}

/// How far a claim has come in the longest queue that it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// 1 for the next in turn.
    pub position: u64,
    /// How many waiters there are in all.
    pub queue_length: u64,
}

/// The claims that wait for a lock, as everybody may see them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// How many there are.
    pub length: u64,
    /// The next in turn.
    pub head: Option<HeadWaiter>,
}

/// A claim standing in a lock's queue, as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadWaiter {
    /// Who waits, in their own words.
    pub owner: Owner,
    /// How it wants to hold the lock.
    pub mode: Mode,
    /// Since when it waits.
    pub since: Timestamp,
}
