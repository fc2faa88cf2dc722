//! Building blocks of limits: amounts that may be in use at once, per peer and in total, how fast requests may come, and
//! [counters of refusals](refusals). Where each limit is enforced is not known here.

mod gate;
mod leases;
mod rate;
mod refusals;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

pub use gate::{Gate, GatePermit, Slot};
pub use leases::{LeaseBudget, LeaseCount};
pub use rate::{BucketEmpty, BucketLevel, RequestBucket};
pub use refusals::{Limit, Refusals};

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
