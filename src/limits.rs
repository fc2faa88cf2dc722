//! Building blocks of limits: amounts that may be in use at once, per peer and in total, how fast requests may come, and
//! counters of refusals. All limits are listed here because they share one metric; where each one is enforced is not known
//! here.

mod gate;
mod leases;
mod rate;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::Counter;
use tokio::sync::Semaphore;

use crate::telemetry::Metrics;
pub use gate::{Gate, GatePermit, Slot};
pub use leases::{LeaseBudget, LeaseCount};
pub use rate::{BucketEmpty, BucketLevel, RequestBucket};

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
pub struct BudgetPermit {
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
    /// otherwise it would be refused for ever. A budget of nothing accepts nothing.
    #[must_use]
    pub fn take(&self, amount: usize) -> Option<BudgetPermit> {
        self.take_within(self.0.max, amount)
    }

    /// Like [`take`](Self::take), but with `max` as the size of the budget.
    #[must_use]
    pub fn take_within(&self, max: usize, amount: usize) -> Option<BudgetPermit> {
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
    pub fn take_anyway(&self, amount: usize) -> BudgetPermit {
        self.0.used.fetch_add(amount, Ordering::Relaxed);
        self.taken(amount)
    }

    fn taken(&self, amount: usize) -> BudgetPermit {
        BudgetPermit {
            budget: self.clone(),
            amount,
        }
    }
}

impl BudgetPermit {
    /// Whether it is a part of this budget, or of a clone.
    #[must_use]
    pub fn is_of(&self, budget: &Budget) -> bool {
        Arc::ptr_eq(&self.budget.0, &budget.0)
    }
}

fn fits(used: usize, amount: usize, max: usize) -> bool {
    used == 0 && max > 0 || used.saturating_add(amount) <= max
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// The share of one request in the limits on requests. Clones share it; it is in use until all are dropped.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "it is held, not read")]
pub struct RequestPermit(Arc<RequestShares>);

#[derive(Debug)]
#[expect(dead_code, reason = "it is held, not read")]
struct RequestShares {
    of_peer: BudgetPermit,
    of_all: BudgetPermit,
    /// The limits of a peer are forgotten once nothing refers to them, and no connection refers to those of a proxy's
    /// client.
    peer: Arc<PeerLimits>,
}

impl RequestPermit {
    /// The share, taken from the limits of this peer and from those of all.
    #[must_use]
    pub fn new(of_peer: BudgetPermit, of_all: BudgetPermit, peer: Arc<PeerLimits>) -> Self {
        Self(Arc::new(RequestShares {
            of_peer,
            of_all,
            peer,
        }))
    }
}

/// What one peer may use at once, over all of its connections.
#[derive(Debug)]
pub struct PeerLimits {
    /// Connections.
    pub connections: Budget,
    /// HTTP/2 connections.
    pub http2_connections: Budget,
    /// TLS handshakes under way.
    pub handshakes: Budget,
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
    /// Releases of closed streams. As many as renewals, which they must not delay.
    pub closings: Gate,
    /// Requests over HTTP/1 that begin right behind another one of their connection.
    pub pipelined: Arc<Semaphore>,
}

/// Every limit whose refusals are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Connections of one peer address.
    ConnectionsPerPeer,
    /// The last connections, reserved for peers with few connections.
    ConnectionsReserved,
    /// TLS handshakes of one peer address.
    TlsHandshakesPerPeer,
    /// TLS handshakes in total.
    TlsHandshakes,
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
    /// Bytes and headers of the head of one request.
    HeadSize,
    /// Bytes of one token of an issuer.
    TokenSize,
    /// Time to receive the body of a request.
    BodyTimeout,
    /// Bytes of one request body.
    BodySize,
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
    /// Recent events, kept for streams that fall behind.
    EventsKept,
    /// Places in queues, of waiters of one peer address.
    WaitersPerPeer,
    /// Places in queues, of all waiters.
    Waiters,
    /// Places in the queue of one lock.
    WaitersPerLock,
    /// Requests per second of all clients, except renewals and releases.
    RequestRate,
    /// Requests per second of one principal, except renewals and releases.
    RequestRatePerPrincipal,
    /// Places in queues, of waiters of one principal.
    WaitersPerPrincipal,
    /// Leases of one principal.
    LocksPerPrincipal,
    /// Leases of all together.
    LocksHeld,
    /// Leases and places in queues that the embedded store keeps.
    Locks,
}

impl Limit {
    /// Every limit.
    pub const ALL: [Self; 38] = [
        Self::ConnectionsPerPeer,
        Self::ConnectionsReserved,
        Self::TlsHandshakesPerPeer,
        Self::TlsHandshakes,
        Self::Http2ConnectionsPerPeer,
        Self::Http2Connections,
        Self::Http2Flood,
        Self::RequestsPerPeer,
        Self::Requests,
        Self::HeadTimeout,
        Self::HeadSize,
        Self::TokenSize,
        Self::BodyTimeout,
        Self::BodySize,
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
        Self::EventsKept,
        Self::WaitersPerPeer,
        Self::Waiters,
        Self::WaitersPerLock,
        Self::RequestRate,
        Self::RequestRatePerPrincipal,
        Self::WaitersPerPrincipal,
        Self::LocksPerPrincipal,
        Self::LocksHeld,
        Self::Locks,
    ];

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::ConnectionsPerPeer => "connections_per_peer",
            Self::ConnectionsReserved => "connections_reserved",
            Self::TlsHandshakesPerPeer => "tls_handshakes_per_peer",
            Self::TlsHandshakes => "tls_handshakes",
            Self::Http2ConnectionsPerPeer => "http2_connections_per_peer",
            Self::Http2Connections => "http2_connections",
            Self::Http2Flood => "http2_flood",
            Self::RequestsPerPeer => "requests_per_peer",
            Self::Requests => "requests",
            Self::HeadTimeout => "head_timeout",
            Self::HeadSize => "head_size",
            Self::TokenSize => "token_size",
            Self::BodyTimeout => "body_timeout",
            Self::BodySize => "body_size",
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
            Self::EventsKept => "events_kept",
            Self::WaitersPerPeer => "waiters_per_peer",
            Self::Waiters => "waiters",
            Self::WaitersPerLock => "waiters_per_lock",
            Self::RequestRate => "request_rate",
            Self::RequestRatePerPrincipal => "request_rate_per_principal",
            Self::WaitersPerPrincipal => "waiters_per_principal",
            Self::LocksPerPrincipal => "locks_per_principal",
            Self::LocksHeld => "locks_held",
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
        let help = "What limits refused or ended on this process, by limit.";
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
    fn a_budget_of_nothing_accepts_nothing() {
        let budget = Budget::new(0);
        assert!(!budget.has_room(1) && budget.take(1).is_none());
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
