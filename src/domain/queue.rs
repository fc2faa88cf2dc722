//! Waiting in a lock's queue: the request's parameters, the ticket and the position.

use std::time::Duration;

use super::{Mode, Owner, Timestamp};

/// How a request waits for its locks.
#[derive(Clone, Copy, Debug)]
pub struct QueueRequest {
    /// The ticket from the store's last answer; none for a request that is not queued yet.
    pub ticket: Option<Ticket>,
    /// How long ago the client made the request. The place stays with a request of the same claim that was made later.
    pub age: Duration,
    /// How much longer the request waits.
    pub wait: Duration,
    /// How long after it was sent the store may execute the request. Later, its client has an answer already.
    pub execute_within: Duration,
    /// How long the place is kept after the request stops waiting.
    pub place_kept: Duration,
    /// The longest interval between this process's polls of the queue. A free lock is kept three times as long for a
    /// claim that meanwhile waits for another lock.
    pub poll_interval: Duration,
    /// The most waiters that a queue may have.
    pub waiters_max: u32,
    /// Whether the answer includes the claim's position.
    pub wants_position: bool,
    /// Whether this process has no waiter before this claim. If the store has one there, it is left over from a request
    /// that has ended, perhaps from a message that arrived late.
    pub is_head: bool,
    /// Whether a claim that takes leases over may take over its own lease, if it already holds. A request that has
    /// waited may do so only if it is the latest: otherwise the client has retried elsewhere, and holds by that retry.
    pub takes_over: bool,
}

impl QueueRequest {
    /// How long a free lock is kept for this claim while it waits for another lock, unless its process polls again.
    #[must_use]
    pub fn liveness_timeout(&self) -> Duration {
        self.poll_interval * 3
    }

    /// How long the store remembers the place if this process stops polling.
    #[must_use]
    pub fn remembered(&self) -> Duration {
        self.wait + self.place_kept
    }
}

/// A claim's place in the queues of its locks. Made by a store; opaque to everyone else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Orders the tickets of a queue.
    pub sequence: u64,
    /// The store's time until which the claim may be granted from this ticket; none to set it anew.
    pub until: Option<Timestamp>,
}

/// A claim's position in the queue where it is furthest from the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// 1 for the head of the queue.
    pub position: u64,
    /// How many waiters the queue has.
    pub queue_length: u64,
}

/// The public view of a lock's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// How many claims wait.
    pub length: u64,
    /// The claim at the head of the queue.
    pub head: Option<HeadWaiter>,
}

/// The public view of the claim at the head of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadWaiter {
    /// The waiter's description of itself.
    pub owner: Owner,
    /// The mode it requests.
    pub mode: Mode,
    /// When it was enqueued.
    pub since: Timestamp,
}
