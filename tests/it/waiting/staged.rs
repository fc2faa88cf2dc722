//! A store that does what a test has staged: counts the asks of waiters, is late, cannot be reached, loses answers or
//! offers. Otherwise it is the embedded store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use leasehold::config::WaitingConfig;
use leasehold::domain::{
    Acquired, Attempt, Claim, ClaimDigest, Evicted, HoldCount, Listing, LockEvent, LockName,
    LockNames, LockView, QueueRequest, Released, RenewOptions, Renewed, Rollback, Suspended,
    Ticket, Token,
};
use leasehold::service::LockService;
use leasehold::service::metrics::LockMetrics;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{
    Deadlines, Fault, ListQuery, Listener, LockStore, StoreError, StoreFuture, StoreHealth,
};
use leasehold::telemetry::Metrics;
use tokio::time::{Instant, sleep};

use crate::support::stores::{OPERATION_TIMEOUT, waiting_config};

/// What happens to one ask of a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// It is done at once, and the answer takes so long.
    Late(Duration),
    /// It is done, and the answer is lost.
    Lost,
}

#[derive(Debug)]
pub(super) struct Staged {
    pub(super) store: MemoryStore,
    /// What happens to the next asks; after that they are answered as they should be.
    pub(super) fates: Mutex<VecDeque<Fate>>,
    /// Whoever asked to wait, in the order of asking.
    asks: Mutex<Vec<Token>>,
    /// The places that they said they had.
    places: Mutex<Vec<(Token, Option<Ticket>)>>,
    /// How waits were brought to their ends, in that order.
    endings: Mutex<Vec<&'static str>>,
    /// Whether nothing can be asked at all.
    pub(super) is_down: AtomicBool,
    /// Whether nothing arrives, and nobody is told so.
    is_silent: AtomicBool,
    offers: Arc<Offers>,
    pub(super) wants: Mutex<Vec<bool>>,
}

/// Passes on what the store tells, or loses it.
#[derive(Debug, Default)]
struct Offers {
    are_lost: AtomicBool,
    listener: Mutex<Option<Arc<dyn Listener>>>,
}

impl Staged {
    /// A service over a staged store, configured as in production.
    pub(super) fn service() -> (LockService, Arc<Self>) {
        Self::service_with(|_| {})
    }

    pub(super) fn service_with(
        change: impl FnOnce(&mut WaitingConfig),
    ) -> (LockService, Arc<Self>) {
        let store = Arc::new(Self {
            store: MemoryStore::new(100_000),
            fates: Mutex::default(),
            asks: Mutex::default(),
            places: Mutex::default(),
            endings: Mutex::default(),
            is_down: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            offers: Arc::default(),
            wants: Mutex::default(),
        });
        store.store.set_listener(Arc::clone(&store.offers) as _);
        (store.another_service(change), store)
    }

    /// A service that takes the place of the former one: only it is told anything from now on.
    pub(super) fn another_service(
        self: &Arc<Self>,
        change: impl FnOnce(&mut WaitingConfig),
    ) -> LockService {
        let mut config = WaitingConfig {
            poll_interval: Duration::from_secs(1),
            events_kept: 10,
            ..waiting_config()
        };
        change(&mut config);
        let metrics = LockMetrics::new(&Metrics::default());
        LockService::new(Arc::clone(self) as _, OPERATION_TIMEOUT, config, metrics)
    }

    /// Offers are lost from now on.
    pub(super) fn loses_offers(&self) {
        self.offers.are_lost.store(true, Ordering::Relaxed);
    }

    /// The connection on which offers arrive has come back.
    pub(super) fn tells_again(&self) {
        self.offers.are_lost.store(false, Ordering::Relaxed);
        self.listener().messages_lost();
    }

    pub(super) fn listener(&self) -> Arc<dyn Listener> {
        let listener = self.offers.listener.lock().unwrap();
        Arc::clone(listener.as_ref().expect("a service is there"))
    }

    /// The fates of the next asks.
    pub(super) fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates.lock().unwrap().extend(fates);
    }

    /// How often waiters have asked.
    pub(super) fn asks(&self) -> usize {
        self.asks.lock().unwrap().len()
    }

    /// How often this claim has asked.
    pub(super) fn asks_of(&self, claim: &Claim) -> usize {
        let asks = self.asks.lock().unwrap();
        asks.iter().filter(|token| **token == claim.token).count()
    }

    /// The places that this claim said it had, in the order of asking.
    pub(super) fn places_of(&self, claim: &Claim) -> Vec<Option<Ticket>> {
        let places = self.places.lock().unwrap();
        let own = places.iter().filter(|(token, _)| *token == claim.token);
        own.map(|(_, place)| *place).collect()
    }

    pub(super) fn endings(&self) -> Vec<&'static str> {
        self.endings.lock().unwrap().clone()
    }

    /// Whether the store can be reached.
    pub(super) fn goes_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Whether requests are lost, so that their outcome is unknown.
    pub(super) fn goes_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// What the store answers, which does at once what it is asked for, unless it cannot be reached.
    fn up<'a, T: Send + 'a>(
        &'a self,
        ask: impl FnOnce() -> StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        if self.is_down.load(Ordering::Relaxed) {
            return ready(Err(unavailable())).boxed();
        }
        if self.is_silent.load(Ordering::Relaxed) {
            return ready(Err(unknown())).boxed();
        }
        ask()
    }
}

impl Listener for Offers {
    fn reserved(&self, name: &LockName) {
        let listener = self.listener.lock().unwrap();
        if let (false, Some(listener)) = (self.are_lost.load(Ordering::Relaxed), &*listener) {
            listener.reserved(name);
        }
    }

    fn evicted(&self, name: &LockName) {
        let listener = self.listener.lock().unwrap();
        if let (false, Some(listener)) = (self.are_lost.load(Ordering::Relaxed), &*listener) {
            listener.evicted(name);
        }
    }

    fn released(&self, name: &LockName, claim: ClaimDigest) {
        let listener = self.listener.lock().unwrap();
        if let (false, Some(listener)) = (self.are_lost.load(Ordering::Relaxed), &*listener) {
            listener.released(name, claim);
        }
    }

    fn event(&self, event: LockEvent) {
        if let Some(listener) = &*self.listener.lock().unwrap() {
            listener.event(event);
        }
    }

    fn messages_lost(&self) {}

    fn events_lost(&self) {}
}

fn unavailable() -> StoreError {
    StoreError::Unavailable {
        fault: Fault::Io,
        detail: "staged".to_owned(),
    }
}

fn unknown() -> StoreError {
    StoreError::Unknown {
        fault: Fault::Timeout,
        detail: "staged".to_owned(),
    }
}

impl LockStore for Staged {
    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        stand: Option<&'a QueueRequest>,
        by: Instant,
    ) -> StoreFuture<'a, Acquired> {
        let fate = stand.and_then(|stand| {
            self.asks.lock().unwrap().push(claim.token);
            let place = (claim.token, stand.place);
            self.places.lock().unwrap().push(place);
            self.fates.lock().unwrap().pop_front()
        });
        let answer = || self.up(|| self.store.acquire(claim, attempt, stand, by));
        match fate {
            None => answer(),
            Some(Fate::Lost) => answer().map(|_| Err(unknown())).boxed(),
            Some(Fate::Late(late)) => {
                let answer = answer();
                async move {
                    let answer = answer.await;
                    sleep(late).await;
                    answer
                }
                .boxed()
            }
        }
    }

    fn suspend<'a>(
        &'a self,
        claim: &'a Claim,
        keep: Duration,
        by: Instant,
    ) -> StoreFuture<'a, Suspended> {
        self.endings.lock().unwrap().push("park");
        self.up(|| self.store.suspend(claim, keep, by))
    }

    fn withdraw<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        rollback: Rollback,
        by: Instant,
    ) -> StoreFuture<'a, ()> {
        self.endings.lock().unwrap().push("withdraw");
        self.up(|| self.store.withdraw(claim, attempt, rollback, by))
    }

    fn renew<'a>(
        &'a self,
        names: &'a LockNames,
        token: Token,
        change: RenewOptions,
        by: Instant,
    ) -> StoreFuture<'a, Renewed> {
        self.up(|| self.store.renew(names, token, change, by))
    }

    fn release<'a>(
        &'a self,
        names: &'a LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        by: Instant,
    ) -> StoreFuture<'a, Vec<Released>> {
        self.up(|| self.store.release(names, token, hold_count, by))
    }

    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        reason: &'a str,
        by: Deadlines,
    ) -> StoreFuture<'a, Evicted> {
        self.up(|| self.store.evict(name, reason, by))
    }

    fn inspect<'a>(&'a self, name: &'a LockName, by: Instant) -> StoreFuture<'a, LockView> {
        self.up(|| self.store.inspect(name, by))
    }

    fn list<'a>(&'a self, query: &'a ListQuery, by: Deadlines) -> StoreFuture<'a, Listing> {
        self.up(|| self.store.list(query, by))
    }

    fn refresh_health(&self) -> BoxFuture<'_, ()> {
        self.store.refresh_health()
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        self.store.sweep()
    }

    fn health(&self) -> StoreHealth {
        self.store.health()
    }

    fn set_listener(&self, listener: Arc<dyn Listener>) {
        *self.offers.listener.lock().unwrap() = Some(listener);
    }

    fn set_event_delivery(&self, wanted: bool) -> BoxFuture<'_, ()> {
        self.wants.lock().unwrap().push(wanted);
        self.store.set_event_delivery(wanted)
    }
}
