//! Building blocks of limits: amounts that may be in use at once, per peer and in total, and counters of refusals. All
//! limits are listed here because they share one metric; where each one is enforced is not known here.

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

/// A part of a budget, in use until dropped.
#[derive(Debug)]
pub struct Taken {
    budget: Budget,
    amount: usize,
}

impl Budget {
    /// An unused budget.
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

    /// How much may be in use at once.
    #[must_use]
    pub fn max(&self) -> usize {
        self.0.max
    }

    /// Takes the amount if it fits. An amount larger than the whole budget is accepted while nothing else is in use;
    /// otherwise it would be refused for ever.
    #[must_use]
    pub fn take(&self, amount: usize) -> Option<Taken> {
        self.take_within(self.0.max, amount)
    }

    /// Like [`take`](Self::take), but with `max` as the size of the budget.
    #[must_use]
    pub fn take_within(&self, max: usize, amount: usize) -> Option<Taken> {
        let admit = |used: usize| fits(used, amount, max).then(|| used.saturating_add(amount));
        let used = &self.0.used;
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit);
        taken.is_ok().then(|| self.taken(amount))
    }

    /// Whether the amount fits now.
    #[must_use]
    pub fn has_room(&self, amount: usize) -> bool {
        fits(self.used(), amount, self.0.max)
    }

    /// Takes the amount whether it fits or not.
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

/// A budget of concurrent operations. Callers queue until there is capacity. Clones share it.
#[derive(Clone, Debug)]
pub struct Gate {
    free: Arc<Semaphore>,
    max: u32,
}

/// Permits of a gate, held until dropped.
#[derive(Debug)]
pub struct Passed(#[expect(dead_code, reason = "it is held, not read")] OwnedSemaphorePermit);

impl Gate {
    /// A gate with `max` permits.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(max)),
            max: u32::try_from(max).unwrap_or(u32::MAX),
        }
    }

    /// Waits for `counts` permits, at most all of the gate's. Returns `None` at the deadline.
    ///
    /// # Cancel safety
    /// A dropped future holds no permits.
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

/// The capacity that one operation occupies until it ends or releases it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Slot(Option<Arc<Mutex<Option<SlotPermits>>>>);

#[derive(Debug)]
#[expect(dead_code, reason = "it is held, not read")]
struct SlotPermits {
    of_all: Passed,
    of_peer: Option<Passed>,
    /// Keeps the peer's limits alive while they are in use, even after its last connection has closed.
    peer: Option<Arc<PeerLimits>>,
}

impl Slot {
    /// Takes `counts` permits of the peer's gate, then of the common gate. In this order, an operation that waits for
    /// its own peer's gate holds nothing that other peers need.
    ///
    /// # Errors
    /// The limit that was still reached at the deadline.
    ///
    /// # Cancel safety
    /// A dropped future has taken nothing.
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
        let permits = SlotPermits {
            of_all,
            of_peer,
            peer,
        };
        Ok(Self(Some(Arc::new(Mutex::new(Some(permits))))))
    }

    /// The peer of the operation, until the slot is released.
    #[must_use]
    pub fn peer(&self) -> Option<Arc<PeerLimits>> {
        let permits = self.0.as_ref()?;
        let permits = permits.lock().unwrap_or_else(PoisonError::into_inner);
        permits.as_ref()?.peer.clone()
    }

    /// Releases the capacity before the operation ends, because it has begun to wait.
    pub fn release(&self) {
        if let Some(permits) = &self.0 {
            permits
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
        }
    }
}

/// What one peer may use at once, over all of its connections.
#[derive(Debug)]
pub struct PeerLimits {
    /// Connections.
    pub connections: Budget,
    /// HTTP/2 connections.
    pub http2_connections: Budget,
    /// Requests without a complete response.
    pub requests: Budget,
    /// Bytes of large responses.
    pub answer_bytes: Budget,
    /// Bytes of large request bodies.
    pub body_bytes: Budget,
    /// Store operations except renewals, releases and listings.
    pub operations: Gate,
    /// Listings.
    pub listings: Gate,
    /// Event streams.
    pub event_streams: Gate,
    /// Places in queues, one for each lock of a waiting claim. The service's table of waiters sets the maximum.
    pub places: Budget,
    /// Renewals and releases.
    pub renewals: Gate,
}

/// Every limit whose refusals are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Connections of one peer address.
    ConnectionsPerPeer,
    /// The last connections, reserved for peers with few connections.
    ConnectionsReserved,
    /// HTTP/2 connections of one peer address.
    Http2ConnectionsPerPeer,
    /// HTTP/2 connections in total.
    Http2Connections,
    /// Bytes that an HTTP/2 connection sends beyond its requests.
    Http2Flood,
    /// Requests of one peer address.
    RequestsPerPeer,
    /// Requests in total.
    Requests,
    /// Time to receive the head of a request.
    HeadTimeout,
    /// Time in which a peer must accept a part of a response.
    WriteTimeout,
    /// Time in which a peer must accept a whole response.
    AnswerTimeout,
    /// Bytes of large request bodies in flight from one peer address.
    BodyBytesPerPeer,
    /// Bytes of large request bodies in flight in total.
    BodyBytes,
    /// Bytes of large responses in flight to one peer address.
    AnswerBytesPerPeer,
    /// Bytes of large responses in flight in total.
    AnswerBytes,
    /// Operations in flight for one peer address, except renewals, releases and listings.
    OperationsPerPeer,
    /// Operations in flight in total, except renewals, releases and listings.
    Operations,
    /// Renewals and releases in flight for one peer address.
    RenewalsPerPeer,
    /// Renewals and releases in flight in total.
    Renewals,
    /// Listings in flight for one peer address.
    ListingsPerPeer,
    /// Listings in flight in total.
    Listings,
    /// Event streams of one peer address.
    EventStreamsPerPeer,
    /// Event streams in total.
    EventStreams,
    /// Places in queues, of waiters of one peer address.
    WaitersPerPeer,
    /// Places in queues, of all waiters.
    Waiters,
    /// Leases and places in queues that the embedded store keeps.
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

    /// The metric label.
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

/// Counters of what limits refused. Clones share them.
#[derive(Clone)]
pub struct Refusals(Arc<[Counter]>);

impl Refusals {
    /// Registers a counter for each limit.
    #[must_use]
    pub fn new(registry: &Metrics) -> Self {
        let help = "What a limit refused or ended on this process, by the limit.";
        let counter = |limit: Limit| {
            registry.counter("leasehold_refused_total", help, &[("limit", limit.label())])
        };
        Self(Limit::ALL.map(counter).into())
    }

    /// Counters that no metric shows.
    #[must_use]
    pub fn uncounted() -> Self {
        Self(Limit::ALL.map(|_| Counter::noop()).into())
    }

    /// Counts something that the limit refused or ended.
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
    fn dropping_a_part_of_a_budget_gives_it_back() {
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
    fn an_amount_larger_than_the_budget_uses_it_alone() {
        let budget = Budget::new(10);
        let large = budget.take(20).expect("nothing else is in use");
        assert!(budget.take(1).is_none());
        drop(large);
        assert!(budget.take(1).is_some());
    }
}
