//! What limits are made of: amounts that may be in use at once, by one peer and in all, and a count of what was refused
//! because they were. Which limits there are is listed here, because they share one metric; where each one holds is not
//! known here.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::{Instant, timeout_at};

use crate::telemetry::Metrics;

/// An amount that may be in use at once. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<BudgetShared>);

#[derive(Debug)]
struct BudgetShared {
    used: AtomicUsize,
    max: usize,
}

/// A part of a budget that is in use until this is dropped.
#[derive(Debug)]
pub struct Taken {
    budget: Budget,
    amount: usize,
}

impl Budget {
    /// A budget of which nothing is in use.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let used = AtomicUsize::new(0);
        Self(Arc::new(BudgetShared { used, max }))
    }

    /// How much is in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// How much may be in use.
    #[must_use]
    pub fn max(&self) -> usize {
        self.0.max
    }

    /// Takes the amount if there is room for it. What is larger than the whole budget is let in when nothing else is in
    /// use, because it would otherwise be refused for ever.
    #[must_use]
    pub fn take(&self, amount: usize) -> Option<Taken> {
        self.take_within(self.0.max, amount)
    }

    /// Takes the amount if no more than `max` is in use then, by the same rule.
    #[must_use]
    pub fn take_within(&self, max: usize, amount: usize) -> Option<Taken> {
        let admit = |used: usize| fits(used, amount, max).then(|| used.saturating_add(amount));
        let used = &self.0.used;
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit);
        taken.is_ok().then(|| self.taken(amount))
    }

    /// Whether there is room for the amount now.
    #[must_use]
    pub fn has_room(&self, amount: usize) -> bool {
        fits(self.used(), amount, self.0.max)
    }

    /// Takes the amount whether there is room for it or not.
    #[must_use]
    pub fn take_anyway(&self, amount: usize) -> Taken {
        self.0.used.fetch_add(amount, Ordering::Relaxed);
        self.taken(amount)
    }

    fn taken(&self, amount: usize) -> Taken {
        Taken {
            budget: self.clone(),
            amount,
        }
    }
}

fn fits(used: usize, amount: usize, max: usize) -> bool {
    used == 0 || used.saturating_add(amount) <= max
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// A budget of operations, whose users wait in turn until there is room. Clones share it.
#[derive(Clone, Debug)]
pub struct Gate {
    free: Arc<Semaphore>,
    max: u32,
}

/// An operation that was let through a gate; it counts until this is dropped.
#[derive(Debug)]
pub struct Passed(#[expect(dead_code, reason = "it is held, not read")] OwnedSemaphorePermit);

impl Gate {
    /// A gate through which so many may go at once.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(max)),
            max: u32::try_from(max).unwrap_or(u32::MAX),
        }
    }

    /// Lets one through that counts for so many, as soon as there is room, or returns `None` at the deadline. Nobody counts
    /// for more than may go through at once.
    ///
    /// # Cancel safety
    /// Whoever is dropped has not gone through.
    pub async fn pass(&self, counts: usize, deadline: Instant) -> Option<Passed> {
        let counts = u32::try_from(counts).map_or(self.max, |counts| counts.min(self.max));
        match Arc::clone(&self.free).try_acquire_many_owned(counts) {
            Ok(permit) => return Some(Passed(permit)),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {}
        }
        let permit = Arc::clone(&self.free).acquire_many_owned(counts);
        timeout_at(deadline, permit).await.ok()?.ok().map(Passed)
    }
}

/// The room that an operation takes up until it is over, or until it is released. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Slot(Option<Arc<Mutex<Option<Room>>>>);

#[derive(Debug)]
#[expect(dead_code, reason = "it is held, not read")]
struct Room {
    of_all: Passed,
    of_peer: Option<Passed>,
    /// What a peer has in use is known for as long as it is in use, though its connections are gone.
    peer: Option<Arc<PeerLimits>>,
}

impl Slot {
    /// Takes room for so many, of the peer, which comes first so that nobody has to wait behind a greedy one, and of all.
    ///
    /// # Errors
    /// There was no room until the deadline. This is the limit that was in the way.
    ///
    /// # Cancel safety
    /// Dropped, it has taken nothing.
    pub async fn take(
        of_all: (&Gate, Limit),
        of_peer: Option<(&Arc<PeerLimits>, &Gate, Limit)>,
        counts: usize,
        deadline: Instant,
    ) -> Result<Self, Limit> {
        let (all, limit_of_all) = of_all;
        let (peer, of_peer) = match of_peer {
            Some((peer, gate, limit)) => (
                Some(Arc::clone(peer)),
                Some(gate.pass(counts, deadline).await.ok_or(limit)?),
            ),
            None => (None, None),
        };
        let of_all = all.pass(counts, deadline).await.ok_or(limit_of_all)?;
        let room = Room {
            of_all,
            of_peer,
            peer,
        };
        Ok(Self(Some(Arc::new(Mutex::new(Some(room))))))
    }

    /// The peer for whom the operation is, while it takes up room.
    #[must_use]
    pub fn peer(&self) -> Option<Arc<PeerLimits>> {
        let room = self.0.as_ref()?;
        let room = room.lock().unwrap_or_else(PoisonError::into_inner);
        room.as_ref()?.peer.clone()
    }

    /// Gives the room back before the operation is over, because it has begun to wait.
    pub fn release(&self) {
        if let Some(room) = &self.0 {
            room.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

/// What one peer may have in use at once, on all of its connections together.
#[derive(Debug)]
pub struct PeerLimits {
    /// Connections.
    pub connections: Budget,
    /// Connections of HTTP/2.
    pub http2_connections: Budget,
    /// Requests that have no complete answer yet.
    pub requests: Budget,
    /// Bytes of large answers.
    pub answer_bytes: Budget,
    /// Bytes of large bodies of requests.
    pub body_bytes: Budget,
    /// Operations of the store, renewals, releases and listings not counted.
    pub operations: Gate,
    /// Listings.
    pub listings: Gate,
    /// Event streams.
    pub event_streams: Gate,
    /// Places in queues where claims wait, one for each lock of a claim. What it may have of them is known to the queues.
    pub places: Budget,
    /// Renewals and releases.
    pub renewals: Gate,
}

/// Every limit whose refusals are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The connections of one peer address.
    ConnectionsPerPeer,
    /// The last connections, which are kept for peers that have hardly any.
    ConnectionsReserved,
    /// The connections of HTTP/2 of one peer address.
    Http2ConnectionsPerPeer,
    /// The connections of HTTP/2.
    Http2Connections,
    /// What a connection of HTTP/2 may send that belongs to no request.
    Http2Flood,
    /// The requests of one peer address.
    RequestsPerPeer,
    /// The requests of all.
    Requests,
    /// The time that the head of a request may take.
    HeadTimeout,
    /// The time in which a peer has to take something of an answer.
    WriteTimeout,
    /// The time in which a peer has to take the whole of an answer.
    AnswerTimeout,
    /// The bytes of large bodies that one peer address is sending.
    BodyBytesPerPeer,
    /// The bytes of large bodies that all are sending.
    BodyBytes,
    /// The bytes of large answers under way to one peer address.
    AnswerBytesPerPeer,
    /// The bytes of large answers under way to all.
    AnswerBytes,
    /// The operations under way for one peer address.
    OperationsPerPeer,
    /// The operations under way for all, renewals, releases and listings not counted.
    Operations,
    /// The renewals and releases under way for one peer address.
    RenewalsPerPeer,
    /// The renewals and releases under way for all.
    Renewals,
    /// The listings under way for one peer address.
    ListingsPerPeer,
    /// The listings under way for all.
    Listings,
    /// The event streams of one peer address.
    EventStreamsPerPeer,
    /// The event streams of all.
    EventStreams,
    /// The places where claims of one peer address wait.
    WaitersPerPeer,
    /// The places where claims wait.
    Waiters,
    /// The leases and places that the embedded store keeps.
    Locks,
}

impl Limit {
    /// Every limit.
    pub const ALL: [Self; 25] = [
        Self::ConnectionsPerPeer,
        Self::ConnectionsReserved,
        Self::Http2ConnectionsPerPeer,
        Self::Http2Connections,
        Self::Http2Flood,
        Self::RequestsPerPeer,
        Self::Requests,
        Self::HeadTimeout,
        Self::WriteTimeout,
        Self::AnswerTimeout,
        Self::BodyBytesPerPeer,
        Self::BodyBytes,
        Self::AnswerBytesPerPeer,
        Self::AnswerBytes,
        Self::OperationsPerPeer,
        Self::Operations,
        Self::RenewalsPerPeer,
        Self::Renewals,
        Self::ListingsPerPeer,
        Self::Listings,
        Self::EventStreamsPerPeer,
        Self::EventStreams,
        Self::WaitersPerPeer,
        Self::Waiters,
        Self::Locks,
    ];

    /// The label of the metric.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::ConnectionsPerPeer => "connections_per_peer",
            Self::ConnectionsReserved => "connections_reserved",
            Self::Http2ConnectionsPerPeer => "http2_connections_per_peer",
            Self::Http2Connections => "http2_connections",
            Self::Http2Flood => "http2_flood",
            Self::RequestsPerPeer => "requests_per_peer",
            Self::Requests => "requests",
            Self::HeadTimeout => "head_timeout",
            Self::WriteTimeout => "write_timeout",
            Self::AnswerTimeout => "answer_timeout",
            Self::BodyBytesPerPeer => "body_bytes_per_peer",
            Self::BodyBytes => "body_bytes",
            Self::AnswerBytesPerPeer => "answer_bytes_per_peer",
            Self::AnswerBytes => "answer_bytes",
            Self::OperationsPerPeer => "operations_per_peer",
            Self::Operations => "operations",
            Self::RenewalsPerPeer => "renewals_per_peer",
            Self::Renewals => "renewals",
            Self::ListingsPerPeer => "listings_per_peer",
            Self::Listings => "listings",
            Self::EventStreamsPerPeer => "event_streams_per_peer",
            Self::EventStreams => "event_streams",
            Self::WaitersPerPeer => "waiters_per_peer",
            Self::Waiters => "waiters",
            Self::Locks => "locks",
        }
    }
}

/// Counts what limits refused. Clones share the counts.
#[derive(Clone)]
pub struct Refusals(Arc<[Counter]>);

impl Refusals {
    /// Registers a series for each limit.
    #[must_use]
    pub fn new(registry: &Metrics) -> Self {
        let help = "What a limit refused or ended on this process, by the limit.";
        let counter = |limit: Limit| {
            registry.counter("leasehold_refused_total", help, &[("limit", limit.label())])
        };
        Self(Limit::ALL.map(counter).into())
    }

    /// Counts for nobody.
    #[must_use]
    pub fn uncounted() -> Self {
        Self(Limit::ALL.map(|_| Counter::noop()).into())
    }

    /// Something was refused or ended.
    pub fn count(&self, limit: Limit) {
        self.0[limit as usize].increment(1);
    }
}

impl std::fmt::Debug for Refusals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refusals")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_given_back_when_its_part_is_dropped() {
        let budget = Budget::new(10);
        let six = budget.take(6).expect("there is room");
        assert!(budget.take(5).is_none());
        let four = budget.take(4).expect("there is room for it exactly");
        drop(six);
        assert_eq!(budget.used(), 4);
        drop(four);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_is_larger_than_the_budget_has_it_for_itself() {
        let budget = Budget::new(10);
        let large = budget.take(20).expect("nothing else is in use");
        assert!(budget.take(1).is_none());
        drop(large);
        assert!(budget.take(1).is_some());
    }
}
