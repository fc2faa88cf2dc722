//! What happens to a request in time: deadlines, waiting, clients that hang up, outcomes that stay unknown.
//!
//! Nothing here knows HTTP or any particular store. Every operation runs to its end even when its caller is gone, a
//! grant that nobody received is given back, and a store that did not answer is asked again in the background.
//! Stores never wait, so all waiting is here: in `waiting` one request, in `queues` all of them.

mod acquire;
mod answer;
mod detached;
mod events;
mod expiry_schedule;
mod held;
mod hold;
mod jitter;
mod local_waiters;
pub mod metrics;
mod remaining;
mod rollback;
mod store_listener;
mod unclaimed_lease;
mod wait_loop;
mod waiter;
mod watch;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::WaitingConfig;
use crate::domain::{
    Claim, Evicted, HoldCount, Listing, LockName, LockNames, LockView, Released, RenewOptions,
    Renewed, Token,
};
use crate::limits::{Gate, Passed, Slot};
use crate::store::{Deadlines, Fault, ListQuery, LockStore, StoreError, StoreHealth};
use acquire::Request;
pub use answer::{AcquireAnswer, AcquireOutcome, NotGranted, QueueFull};
use detached::Detached;
use events::EventLog;
pub use events::Happened;
use held::HeldByStreams;
pub use hold::{Hold, HoldEvent};
use local_waiters::LocalWaiters;
use metrics::LockMetrics;
use store_listener::StoreListener;
pub use unclaimed_lease::UnclaimedLease;
use wait_loop::WaitLoop;
use waiter::DisconnectGuard;
pub use watch::{Scope, Watch, WatchEvent};

/// A listing looks at every lock in many steps, and an eviction may be one of very many holders: they get the time of so
/// many operations.
const LONG_TIMEOUTS: u32 = 25;

/// On how many locks together those claims may be that wait for several and ask at the same time.
const SEVERAL_AT_ONCE: usize = 256;
/// How many rollbacks ask the store at the same time.
const ROLLBACKS_AT_ONCE: usize = 256;

/// The operations on locks, what tells of them, and what operators ask for. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct LockService {
    inner: Arc<ServiceShared>,
    /// The room that the next operation takes up, in a clone that is made for it.
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
    /// Through it goes what claims ask that wait for several locks. Nothing else bounds that, and each of them keeps the
    /// store busy for as many times as long as a claim on one lock.
    several: Gate,
    /// Through it goes what is rolled back: thousands of streams may close at once.
    rollbacks: Gate,
    events: Arc<EventLog>,
    held: Arc<HeldByStreams>,
    /// Whether the store was asked to tell events. Whoever changes that is waited for by the next.
    wants_events: tokio::sync::Mutex<bool>,
}

impl LockService {
    /// A service over a store, in which no single store operation may take longer than `operation_timeout`. From here on
    /// it is what the store tells things to.
    #[must_use]
    pub fn new(
        store: Arc<dyn LockStore>,
        operation_timeout: Duration,
        waiting: WaitingConfig,
        metrics: LockMetrics,
    ) -> Self {
        let queues = Arc::new(LocalWaiters::new(
            waiting.poll_interval,
            waiting.waiters_max,
        ));
        let events = Arc::new(EventLog::new(waiting.events_kept));
        let held = Arc::new(HeldByStreams::default());
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
                metrics,
                background: TaskTracker::new(),
                draining: CancellationToken::new(),
                queues,
                several: Gate::new(SEVERAL_AT_ONCE),
                rollbacks: Gate::new(ROLLBACKS_AT_ONCE),
                events,
                held,
                wants_events: tokio::sync::Mutex::new(false),
            }),
            slot: Slot::default(),
        }
    }

    /// The same service for one operation, which keeps the slot until it has come to its end: also when its caller is
    /// gone, and until a grant that nobody received has been given back. A claim that begins to wait releases it.
    #[must_use]
    pub fn within(&self, slot: Slot) -> Self {
        let inner = Arc::clone(&self.inner);
        Self { inner, slot }
    }

    /// Grants its locks to the claim, or waits for them in line for up to `wait`, or says what is in the way.
    ///
    /// # Errors
    /// The store could not answer. Where the outcome is unknown, what may have been granted is given back in the
    /// background, unless the claim is posted again first.
    ///
    /// # Cancel safety
    /// When the future is dropped, a request that is under way still runs to its end, a grant is given back, and a waiting
    /// claim steps out of the queue and keeps its place for a while.
    pub async fn acquire(
        &self,
        claim: Arc<Claim>,
        wait: Duration,
    ) -> Result<AcquireAnswer, StoreError> {
        let (inner, wait) = (&self.inner, wait.min(self.inner.waiting.wait_max));
        let request = Request::new(inner, claim, self.slot.clone());
        if wait.is_zero() {
            return self.run_to_completion(request.at_once(None)).await;
        }
        match request.enter() {
            Ok(waiter) => {
                // Cancellation safety: dropped, the caller ends the wait, which goes on without this future.
                let _caller = DisconnectGuard(Arc::clone(&waiter));
                let open = inner.metrics.open_long_poll();
                let waiting = WaitLoop::new(request, waiter, Some(wait)).run();
                // Not an async block: what is moved into one and awaited there takes its room twice.
                let closed = |answer| {
                    drop(open);
                    answer
                };
                self.run_to_completion(waiting.map(closed)).await
            }
            Err(crowd) => self.run_to_completion(request.at_once(Some(crowd))).await,
        }
    }

    /// Lets leases last longer, all or none; never creates one.
    ///
    /// # Errors
    /// The store could not answer; the leases last at least until their former ends.
    ///
    /// # Cancel safety
    /// When the future is dropped, the operation still runs to its end.
    pub async fn renew(
        &self,
        names: LockNames,
        token: Token,
        change: RenewOptions,
    ) -> Result<Renewed, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.run_to_completion(async move {
            let (sent, deadline) = inner.start();
            let answer = inner.store.renew(&names, token, change, deadline).await;
            inner.metrics.renew(sent.elapsed(), &answer);
            remaining::renewed(answer?, sent)
        })
        .await
    }

    /// Ends a claim on each of these locks, or steps it back to a smaller depth. A claim that waits leaves the queue.
    ///
    /// # Errors
    /// The store could not answer; until it is asked again, the claim may hold or not.
    ///
    /// # Cancel safety
    /// When the future is dropped, the operation still runs to its end.
    pub async fn release(
        &self,
        names: LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
    ) -> Result<Vec<Released>, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.run_to_completion(async move {
            let (sent, deadline) = inner.start();
            let answer = inner
                .store
                .release(&names, token, hold_count, deadline)
                .await;
            inner.metrics.release(sent.elapsed(), &answer);
            inner.queues.recheck(token);
            let released = answer?.into_iter();
            released.map(|one| remaining::released(one, sent)).collect()
        })
        .await
    }

    /// Takes the lock away from its holders, whoever they are, and says who they were.
    ///
    /// # Errors
    /// The store could not answer, and nobody is known to have been evicted.
    ///
    /// # Cancel safety
    /// When the future is dropped, the operation still runs to its end.
    pub async fn evict(&self, name: LockName, reason: String) -> Result<Evicted, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.run_to_completion(async move {
            let (sent, deadlines) = inner.start_long();
            let answer = inner.store.evict(&name, &reason, deadlines).await;
            inner.metrics.evict(sent.elapsed(), &answer);
            answer
        })
        .await
    }

    /// What a lock is doing.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn inspect(&self, name: &LockName) -> Result<LockView, StoreError> {
        self.inner.inspect(name).await.1
    }

    /// One page of the locks that are held or waited for.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn list(&self, query: &ListQuery) -> Result<Listing, StoreError> {
        self.inner.list(query).await.1
    }

    /// Holds a lock for as long as the stream lives: waits for up to `wait`, or for ever, and renews the lease again and
    /// again. Of several locks it tells of the first only.
    ///
    /// # Cancel safety
    /// When the stream is dropped, at any point, the lock is released or the claim leaves the queue.
    pub fn hold(&self, claim: Arc<Claim>, wait: Option<Duration>) -> Hold {
        self.inner.hold(claim, wait, self.slot.clone())
    }

    /// What happens to locks from now on, or since the event `after`, as it happens. What begins after the future has
    /// completed is told.
    ///
    /// # Cancel safety
    /// Dropped, it is as if nobody had watched.
    pub async fn watch(&self, scope: Scope, after: Option<String>) -> Watch {
        self.inner.watch(scope, after).await
    }

    /// The process is about to stop: from now on every wait and every stream ends at once. Places in queues are kept, and so
    /// are leases.
    pub fn drain(&self) {
        self.inner.draining.cancel();
    }

    /// What is known about the store without asking it.
    #[must_use]
    pub fn store_health(&self) -> StoreHealth {
        self.inner.store.health()
    }

    /// Lets the store open what it needs on this runtime, so that no request has to wait for it.
    pub async fn warm_up(self) {
        self.inner.store.refresh_health().await;
    }

    /// Surveys the store again and again, for ever; to be run as a task that ends with the process.
    pub async fn survey(&self, every: Duration) -> Infallible {
        let ServiceShared {
            store,
            metrics,
            queues,
            ..
        } = &*self.inner;
        let surveys = async {
            let mut ticks = ticks(every);
            loop {
                ticks.tick().await;
                store.refresh_health().await;
                metrics.health(&store.health());
                metrics.crowd(queues.counts());
            }
        };
        // Apart from each other: no sweep may keep a loss of data from being noticed.
        let sweeps = async {
            let mut ticks = ticks(every);
            loop {
                ticks.tick().await;
                store.sweep().await;
            }
        };
        tokio::select! {
            never = surveys => never,
            never = sweeps => never,
        }
    }

    /// Waits until what runs in the background has ended, or `grace` is over.
    pub async fn shut_down(&self, grace: Duration) {
        self.inner.background.close();
        if tokio::time::timeout(grace, self.inner.background.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                unfinished = self.inner.background.len(),
                "the store did not answer in time; leases that may be orphaned end with their TTL"
            );
        }
    }

    fn run_to_completion<T: Send + 'static>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> Detached<T> {
        Detached::new(operation, self.inner.background.clone(), self.slot.clone())
    }
}

impl ServiceShared {
    /// When an operation starts and by when it must be over.
    fn start(&self) -> (Instant, Instant) {
        let now = Instant::now();
        (now, now + self.operation_timeout)
    }

    /// When an operation of many steps starts, and how much time there is for it.
    fn start_long(&self) -> (Instant, Deadlines) {
        let (now, step) = (Instant::now(), self.operation_timeout);
        let end = now + step * LONG_TIMEOUTS;
        (now, Deadlines { step, end })
    }

    /// Waits for its turn with what a claim asks that waits. None for a claim on one lock, of which nobody has to wait.
    async fn turn_of_several(
        &self,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<Option<Passed>, StoreError> {
        let locks = claim.names.len();
        if locks == 1 {
            return Ok(None);
        }
        let passed = self.several.pass(locks, deadline).await;
        let detail = "other claims that wait for several locks had to be asked for first";
        let error = || StoreError::unavailable(Fault::Timeout, detail);
        passed.map(Some).ok_or_else(error)
    }

    /// What a lock is doing, and when it was asked.
    async fn inspect(&self, name: &LockName) -> (Instant, Result<LockView, StoreError>) {
        let (sent, deadline) = self.start();
        let answer = self.store.inspect(name, deadline).await;
        self.metrics.inspect(sent.elapsed(), &answer);
        (sent, answer)
    }

    async fn list(&self, query: &ListQuery) -> (Instant, Result<Listing, StoreError>) {
        let (sent, deadlines) = self.start_long();
        let answer = self.store.list(query, deadlines).await;
        self.metrics.list(sent.elapsed(), &answer);
        (sent, answer)
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
