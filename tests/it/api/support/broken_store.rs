//! A store that fails every operation with the same error, or that is recovering from a possible loss of leases.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use leasehold::domain::{
    Acquired, Attempt, Claim, Evicted, HoldCount, Holders, Listing, LockName, LockNames, LockView,
    Position, QueueRequest, Released, RenewOptions, Renewed, Rollback, Suspended, Ticket, Token,
    Waiting,
};
use leasehold::store::{
    Deadlines, ListQuery, Listener, LockStore, StoreError, StoreFuture, StoreHealth,
};
use tokio::time::Instant;

const FIRST: Position = Position {
    position: 1,
    queue_length: 1,
};

#[derive(Debug)]
pub(crate) struct BrokenStore {
    pub(crate) error: Option<StoreError>,
    /// Whether it never answers an acquire or a listing.
    pub(crate) is_silent: bool,
    /// After how many holders it stops an eviction.
    pub(crate) evicted: Option<u64>,
    pub(crate) health: StoreHealth,
}

impl BrokenStore {
    /// A store that fails with this error.
    pub(crate) fn failing(error: StoreError) -> Self {
        Self {
            error: Some(error),
            is_silent: false,
            evicted: None,
            health: StoreHealth::default(),
        }
    }

    /// A store that delays new grants, and lets claims wait in the queue of a free lock. It implements only acquire.
    pub(crate) fn recovering() -> Self {
        Self {
            error: None,
            is_silent: false,
            evicted: None,
            health: StoreHealth::default(),
        }
    }

    /// A store that stops an eviction after `count` holders.
    pub(crate) fn evicting(count: u64) -> Self {
        Self {
            evicted: Some(count),
            ..Self::recovering()
        }
    }

    /// A store that never answers an acquire or a listing, and fails every other operation with this error.
    pub(crate) fn silent(error: StoreError) -> Self {
        Self {
            is_silent: true,
            ..Self::failing(error)
        }
    }

    /// A store with this health, which gets no operations.
    pub(crate) fn in_health(health: StoreHealth) -> Self {
        Self {
            error: None,
            is_silent: false,
            evicted: None,
            health,
        }
    }

    fn fail<'a, T: Send + 'a>(&self) -> StoreFuture<'a, T> {
        let error = self.error.clone().expect("nothing else is asked of it");
        ready(Err(error)).boxed()
    }
}

impl LockStore for BrokenStore {
    fn acquire<'a>(
        &'a self,
        _: &'a Claim,
        _: Attempt,
        stand: Option<&'a QueueRequest>,
        _: Instant,
    ) -> StoreFuture<'a, Acquired> {
        if self.is_silent {
            return std::future::pending().boxed();
        }
        if self.error.is_some() {
            return self.fail();
        }
        if stand.is_some() {
            let waiting = Waiting {
                place: Ticket {
                    sequence: 1,
                    until: None,
                },
                recheck_in: None,
                position: Some(FIRST),
                restored: false,
                is_unsure: false,
            };
            return ready(Ok(Acquired::Waiting(waiting))).boxed();
        }
        let retry_in = Duration::from_millis(2_500);
        ready(Ok(Acquired::Recovering { retry_in })).boxed()
    }

    fn suspend<'a>(&'a self, _: &'a Claim, _: Duration, _: Instant) -> StoreFuture<'a, Suspended> {
        if self.error.is_some() {
            return self.fail();
        }
        let parked = Suspended {
            position: Some(FIRST),
            blocked_by: Vec::new(),
        };
        ready(Ok(parked)).boxed()
    }

    fn withdraw<'a>(
        &'a self,
        _: &'a Claim,
        _: Attempt,
        _: Rollback,
        _: Instant,
    ) -> StoreFuture<'a, ()> {
        ready(Ok(())).boxed()
    }

    fn renew<'a>(
        &'a self,
        _: &'a LockNames,
        _: Token,
        _: RenewOptions,
        _: Instant,
    ) -> StoreFuture<'a, Renewed> {
        self.fail()
    }

    fn release<'a>(
        &'a self,
        _: &'a LockNames,
        _: Token,
        _: Option<HoldCount>,
        _: Instant,
    ) -> StoreFuture<'a, Vec<Released>> {
        self.fail()
    }

    fn evict<'a>(&'a self, _: &'a LockName, _: &'a str, _: Deadlines) -> StoreFuture<'a, Evicted> {
        let Some(total) = self.evicted else {
            return self.fail();
        };
        let listed = Vec::new();
        let holders = Holders { listed, total };
        let evicted = Evicted {
            holders,
            is_complete: false,
        };
        ready(Ok(evicted)).boxed()
    }

    fn inspect<'a>(&'a self, _: &'a LockName, _: Instant) -> StoreFuture<'a, LockView> {
        self.fail()
    }

    fn list<'a>(&'a self, _: &'a ListQuery, _: Deadlines) -> StoreFuture<'a, Listing> {
        if self.is_silent {
            return std::future::pending().boxed();
        }
        self.fail()
    }

    fn refresh_health(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        futures_util::future::ready(()).boxed()
    }

    fn health(&self) -> StoreHealth {
        self.health.clone()
    }

    fn set_listener(&self, _: Arc<dyn Listener>) {}

    fn set_event_delivery(&self, _: bool) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}
