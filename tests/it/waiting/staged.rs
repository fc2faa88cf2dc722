//! A store with staged faults: it counts the polls of waiters, answers late, is unreachable, loses answers or messages.
//! Otherwise it is the embedded store.

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

/// What happens to one poll of a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// It is applied at once, and the answer is delayed.
    Late(Duration),
    /// It is applied, and the answer is lost.
    Lost,
}

#[derive(Debug)]
pub(super) struct Staged {
    pub(super) store: MemoryStore,
    /// The fates of the next polls. Later polls are answered normally.
    pub(super) fates: Mutex<VecDeque<Fate>>,
    /// The tokens of all polls, in order.
    polls: Mutex<Vec<Token>>,
    /// The tickets that the polls sent.
    tickets: Mutex<Vec<(Token, Option<Ticket>)>>,
    /// The clean-up operations, in order.
    cleanups: Mutex<Vec<&'static str>>,
    /// Whether every operation fails as unavailable.
    pub(super) is_down: AtomicBool,
    /// Whether every operation is lost, so that its outcome is unknown.
    loses_requests: AtomicBool,
    messages: Arc<Messages>,
    pub(super) event_deliveries: Mutex<Vec<bool>>,
}

/// Forwards the store's notifications, or loses them.
#[derive(Debug, Default)]
struct Messages {
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
            polls: Mutex::default(),
            tickets: Mutex::default(),
            cleanups: Mutex::default(),
            is_down: AtomicBool::new(false),
            loses_requests: AtomicBool::new(false),
            messages: Arc::default(),
            event_deliveries: Mutex::default(),
        });
        store.store.set_listener(Arc::clone(&store.messages) as _);
        (store.another_service(change), store)
    }

    /// Another service, which replaces the former one as the listener.
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

    /// Loses messages from now on: reservations, evictions and releases.
    pub(super) fn loses_messages(&self) {
        self.messages.are_lost.store(true, Ordering::Relaxed);
    }

    /// Reconnects: messages arrive again, and the service is notified that some were lost.
    pub(super) fn reconnects(&self) {
        self.messages.are_lost.store(false, Ordering::Relaxed);
        self.listener().messages_lost();
    }

    pub(super) fn listener(&self) -> Arc<dyn Listener> {
        let listener = self.messages.listener.lock().unwrap();
        Arc::clone(listener.as_ref().expect("there is a service"))
    }

    /// Adds the fates of the next polls.
    pub(super) fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates.lock().unwrap().extend(fates);
    }

    /// The number of polls so far.
    pub(super) fn polls(&self) -> usize {
        self.polls.lock().unwrap().len()
    }

    /// The number of polls of this claim so far.
    pub(super) fn polls_of(&self, claim: &Claim) -> usize {
        let polls = self.polls.lock().unwrap();
        polls.iter().filter(|token| **token == claim.token).count()
    }

    /// The tickets that the polls of this claim sent, in order.
    pub(super) fn tickets_of(&self, claim: &Claim) -> Vec<Option<Ticket>> {
        let tickets = self.tickets.lock().unwrap();
        let own = tickets.iter().filter(|(token, _)| *token == claim.token);
        own.map(|(_, ticket)| *ticket).collect()
    }

    pub(super) fn cleanups(&self) -> Vec<&'static str> {
        self.cleanups.lock().unwrap().clone()
    }

    /// Sets whether the store is unreachable.
    pub(super) fn goes_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Sets whether requests are lost, so that their outcome is unknown.
    pub(super) fn goes_silent(&self, loses_requests: bool) {
        self.loses_requests.store(loses_requests, Ordering::Relaxed);
    }

    /// Runs an operation, unless the store is down or silent.
    fn up<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        if self.is_down.load(Ordering::Relaxed) {
            return ready(Err(unavailable())).boxed();
        }
        if self.loses_requests.load(Ordering::Relaxed) {
            return ready(Err(unknown())).boxed();
        }
        operation()
    }
}

impl Listener for Messages {
    fn reserved(&self, name: &LockName) {
        let listener = self.listener.lock().unwrap();
        if let (false, Some(listener)) = (self.are_lost.load(Ordering::Relaxed), &*listener) {
            listener.reserved(name);
        }
    }

    fn dequeued(&self, name: &LockName, claim: ClaimDigest) {
        let listener = self.listener.lock().unwrap();
        if let (false, Some(listener)) = (self.are_lost.load(Ordering::Relaxed), &*listener) {
            listener.dequeued(name, claim);
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
        queue_request: Option<&'a QueueRequest>,
        by: Instant,
    ) -> StoreFuture<'a, Acquired> {
        let fate = queue_request.and_then(|queue_request| {
            self.polls.lock().unwrap().push(claim.token);
            let ticket = (claim.token, queue_request.place);
            self.tickets.lock().unwrap().push(ticket);
            self.fates.lock().unwrap().pop_front()
        });
        let answer = || self.up(|| self.store.acquire(claim, attempt, queue_request, by));
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
        self.cleanups.lock().unwrap().push("park");
        self.up(|| self.store.suspend(claim, keep, by))
    }

    fn withdraw<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        rollback: Rollback,
        by: Instant,
    ) -> StoreFuture<'a, ()> {
        self.cleanups.lock().unwrap().push("withdraw");
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
        *self.messages.listener.lock().unwrap() = Some(listener);
    }

    fn set_event_delivery(&self, wanted: bool) -> BoxFuture<'_, ()> {
        self.event_deliveries.lock().unwrap().push(wanted);
        self.store.set_event_delivery(wanted)
    }
}
