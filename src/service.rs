//! Timing of requests: deadlines, waiting, disconnected clients and unknown outcomes.
//!
//! Nothing here knows HTTP or any particular store. Every operation but a listing runs to completion even if its caller
//! disconnects, an undelivered grant is rolled back, and a failed rollback is retried in the background. Stores never
//! wait, so all waiting is here: `wait_loop` has one waiting request, `local_waiters` all of them, and `schedule` decides
//! when each asks the store next.

mod acquire;
mod background;
mod events;
mod held;
mod hold;
mod hold_observer;
mod lease_counts;
mod listed_holders;
mod local_waiters;
pub mod metrics;
mod release;
mod revocation;
mod schedule;
mod wait_loop;
mod waiter;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::WaitingConfig;
use crate::domain::{
    Claim, Listing, LockName, LockNames, LockView, RenewOptions, Renewed, RollbackRight, Token,
};
use crate::limits::{Gate, LeaseBudget, Slot};
use crate::store::{Deadlines, ListQuery, LockStore, StoreError, StoreHealth};
use acquire::Request;
pub use acquire::{AcquireAnswer, AcquireFailure, AcquireOutcome, NotGranted, QueueFull};
use background::Detached;
pub use background::UnclaimedLease;
pub use events::EncodedEvent;
use events::{EventLog, StoreListener};
use held::HeldByStreams;
pub use hold::{Hold, HoldEvent};
pub use hold_observer::HoldObserver;
use listed_holders::ListedHolders;
use local_waiters::LocalWaiters;
use metrics::LockMetrics;
use revocation::Revocation;
use wait_loop::WaitLoop;
use waiter::DisconnectGuard;
pub use watch::{Scope, Watch, WatchEvent};

/// A listing or an eviction may take very many steps, so it has the time of this many operations.
const LONG_TIMEOUTS: u32 = 25;

/// How many rollbacks may be in flight at once.
const ROLLBACKS_AT_ONCE: usize = 256;

/// Operations on locks, streams of events, and functions for operators. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LockService {
    inner: Arc<ServiceShared>,
    /// The capacity that the next operation occupies, in a clone made for it.
    slot: Slot,
}

#[derive(Debug)]
struct ServiceShared {
    store: Arc<dyn LockStore>,
    operation_timeout: Duration,
    waiting: WaitingConfig,
    metrics: LockMetrics,
    background: TaskTracker,
    draining: CancellationToken,
    queues: Arc<LocalWaiters>,
    listed_holders: ListedHolders,
    /// Limits rollbacks: thousands of streams may close at once.
    rollbacks: Gate,
    events: Arc<EventLog>,
    held: Arc<HeldByStreams>,
    /// Whether the store delivers events. The mutex is held during a change, so that changes do not overlap.
    delivers_events: tokio::sync::Mutex<bool>,
}

impl LockService {
    /// Creates a service and registers it as the store's listener. `operation_timeout` limits each store operation.
    /// When `draining` is cancelled, every wait and every stream ends at once, so that their clients move to another
    /// process early. Places in queues and leases are kept.
    #[must_use]
    pub fn new(
        store: Arc<dyn LockStore>,
        operation_timeout: Duration,
        waiting: WaitingConfig,
        metrics: LockMetrics,
        draining: CancellationToken,
    ) -> Self {
        let queues = Arc::new(LocalWaiters::new(
            waiting.poll_interval,
            waiting.waiters_max,
        ));
        let events = Arc::new(EventLog::new(waiting.events_kept));
        let held = Arc::new(HeldByStreams::default());
        let traced_as = store.traced_as();
        store.set_listener(Arc::new(StoreListener {
            queues: Arc::clone(&queues),
            events: Arc::clone(&events),
            held: Arc::clone(&held),
        }));
        Self {
            inner: Arc::new(ServiceShared {
                store,
                operation_timeout,
                waiting,
                metrics: metrics.traced_as(traced_as),
                background: TaskTracker::new(),
                draining,
                queues,
                listed_holders: ListedHolders::default(),
                rollbacks: Gate::new(ROLLBACKS_AT_ONCE),
                events,
                held,
                delivers_events: tokio::sync::Mutex::new(false),
            }),
            slot: Slot::default(),
        }
    }

    /// The same service for one operation. The operation keeps the slot until it has completed, even if its caller
    /// disconnects, and until an undelivered grant is rolled back. A waiting claim has it only while it polls, and while
    /// it enters or leaves the queue.
    #[must_use]
    pub fn within(&self, slot: Slot) -> Self {
        let inner = Arc::clone(&self.inner);
        Self { inner, slot }
    }

    /// How many holders an answer about these locks is expected to list. The store is busy with such answers for longer.
    #[must_use]
    pub fn expected_holders(&self, names: &[LockName]) -> usize {
        self.inner.listed_holders.expected(names)
    }

    /// Grants the claim its locks, queues it for up to `wait`, or returns what blocks it.
    ///
    /// # Errors
    /// The store failed. If the outcome is unknown, the service rolls back a possible grant in the background, unless
    /// the claim is posted again before that.
    ///
    /// # Cancel safety
    /// If the future is dropped, a store request in flight still completes, a grant is rolled back, and a waiting claim
    /// leaves the queue and keeps its place for a while.
    pub async fn acquire(
        &self,
        claim: Arc<Claim>,
        wait: Duration,
    ) -> Result<AcquireAnswer, AcquireFailure> {
        let (inner, wait) = (&self.inner, wait.min(self.inner.waiting.wait_max));
        let request = Request::new(inner, claim, self.slot.clone());
        if wait.is_zero() {
            let acquiring = request.acquire_now(None);
            return Ok(Detached::new(self, acquiring).completion().await?);
        }
        match request.enter() {
            Ok(waiter) => {
                // Cancellation safety: dropping the guard ends the wait, which cleans up without this future.
                let _guard = DisconnectGuard(Arc::clone(&waiter));
                let open = inner.metrics.acquires.long_poll();
                let waiting = WaitLoop::new(request, waiter, Some(wait)).run();
                // Not an async block: a future that is moved into one and awaited there takes its space twice.
                let closed = |answer| {
                    drop(open);
                    answer
                };
                Detached::new(self, waiting.map(closed)).completion().await
            }
            Err(queue_full) => {
                let acquiring = request.acquire_now(Some(queue_full));
                Ok(Detached::new(self, acquiring).completion().await?)
            }
        }
    }

    /// Renews leases, all or none; never creates one.
    ///
    /// # Errors
    /// The store failed. If the outcome is unknown, the leases may have been renewed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the operation still completes.
    pub async fn renew(
        &self,
        names: LockNames,
        token: Token,
        change: RenewOptions,
    ) -> Result<Renewed, StoreError> {
        let (inner, leases) = (Arc::clone(&self.inner), self.slot.leases().cloned());
        Detached::new(self, async move {
            let (_, deadline) = inner.start();
            let leases = leases.as_ref();
            inner.renew(&names, token, change, leases, deadline).await
        })
        .completion()
        .await
    }

    /// The state and queue of a lock.
    ///
    /// # Errors
    /// The store failed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the operation still completes: until then the store is busy with it.
    pub async fn inspect(&self, name: &LockName) -> Result<LockView, StoreError> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        Detached::new(self, async move { inner.inspect(&name).await.1 })
            .completion()
            .await
    }

    /// One page of the locks that have holders or waiters.
    ///
    /// # Errors
    /// The store failed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the step in progress still completes, and no other one begins.
    pub async fn list(&self, query: &ListQuery) -> Result<Listing, StoreError> {
        self.inner.list(query).await.1
    }

    /// Holds a lock for as long as the stream lives: waits for up to `wait`, or without limit, and keeps renewing the
    /// lease. With several locks, events report the first one only. Each renewal passes the gate `renewals`.
    ///
    /// When `revoked` completes, a waiting claim is no longer granted, and a lease is no longer renewed. The lease is not
    /// released either: its holder may be in the middle of its work, and has the time until the lease expires to stop.
    ///
    /// `observer` is told of the grant and of the release, whatever the client reads of the stream.
    ///
    /// # Cancel safety
    /// Dropping the stream, at any point, releases the lock or removes the claim from the queue.
    pub fn hold(
        &self,
        claim: Arc<Claim>,
        wait: Option<Duration>,
        revoked: impl Future<Output = ()> + Send + 'static,
        observer: impl HoldObserver,
        renewals: Gate,
    ) -> Hold {
        let request = Request::new(&self.inner, claim, self.slot.clone());
        let revocation = Revocation::new(revoked);
        self.inner
            .hold(request, wait, revocation, observer, renewals)
    }

    /// Events of locks from now on, or since the event `after`. The stream has every event that begins after this
    /// future has completed.
    ///
    /// # Cancel safety
    /// Dropping the future unsubscribes.
    pub async fn watch(&self, scope: Scope, after: Option<String>) -> Watch {
        self.inner.watch(scope, after).await
    }

    /// Begins draining, as a stop signal does.
    pub fn drain(&self) {
        self.inner.draining.cancel();
    }

    /// The time that a listing or an eviction has.
    #[must_use]
    pub fn longest_operation(&self) -> Duration {
        self.inner.operation_timeout * LONG_TIMEOUTS
    }

    /// Whether the process is about to stop.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.inner.draining.is_cancelled()
    }

    /// The last known health of the store. Does no I/O.
    #[must_use]
    pub fn store_health(&self) -> StoreHealth {
        self.inner.store.health()
    }

    /// Lets the store open its connections on this runtime, so that no request has to wait for them.
    pub async fn warm_up(self) {
        self.inner.store.refresh_health().await;
    }
}

impl ServiceShared {
    /// The start and the deadline of an operation.
    fn start(&self) -> (Instant, Instant) {
        let now = Instant::now();
        (now, now + self.operation_timeout)
    }

    /// The start and the deadlines of an operation of many steps.
    fn start_long(&self) -> (Instant, Deadlines) {
        let (now, step) = (Instant::now(), self.operation_timeout);
        let end = now + step * LONG_TIMEOUTS;
        (now, Deadlines { step, end })
    }

    /// Renews leases, and counts them where there is a quota. Their remaining times are as of now.
    async fn renew(
        self: &Arc<Self>,
        names: &LockNames,
        token: Token,
        mut options: RenewOptions,
        leases: Option<&LeaseBudget>,
        deadline: Instant,
    ) -> Result<Renewed, StoreError> {
        let (claim, ttl) = ((&**names, token), options.ttl);
        let mut counted_before = None;
        // A stream leaves its lease to be rolled back by its end, and it was counted before the stream began.
        if let Some(leases) = leases
            && options.rollback_right == RollbackRight::Never
        {
            let before = Box::pin(self.count_before(leases, claim)).await;
            options.rollback_right = before.rollback_right();
            counted_before = Some(before);
        }
        let sent = Instant::now();
        let answer = self.store.renew(names, token, options, deadline).await;
        self.metrics.renew(sent.elapsed(), &answer);
        match (leases, &answer) {
            (Some(leases), Err(StoreError::Unavailable { .. })) => {
                Box::pin(self.uncount_before(leases, claim, counted_before)).await;
            }
            (Some(leases), Err(StoreError::Unknown { .. })) => {
                Box::pin(self.count_unknown(leases, claim, ttl)).await;
            }
            (Some(_), Ok(_)) | (None, _) => {}
        }
        let mut renewed = answer?;
        if let Some(leases) = leases {
            Box::pin(self.recount_renewed(leases, claim, counted_before, &renewed)).await;
        }
        if let Renewed::Extended(renewals) = &mut renewed {
            acquire::subtract_elapsed(renewals.iter_mut().map(|renewal| &mut renewal.lease), sent)?;
        }
        Ok(renewed)
    }

    /// The state of a lock, and when the request was sent.
    async fn inspect(&self, name: &LockName) -> (Instant, Result<LockView, StoreError>) {
        let (sent, deadline) = self.start();
        let answer = self.store.inspect(name, deadline).await;
        self.metrics
            .store
            .operation("inspect", sent.elapsed(), &answer);
        answer
            .iter()
            .for_each(|view| self.listed_holders.view(view));
        (sent, answer)
    }

    async fn list(&self, query: &ListQuery) -> (Instant, Result<Listing, StoreError>) {
        let (sent, deadlines) = self.start_long();
        let answer = self.store.list(query, deadlines).await;
        self.metrics
            .store
            .operation("list", sent.elapsed(), &answer);
        (sent, answer)
    }
}
