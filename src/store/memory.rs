//! The embedded store in memory: runs the [state machine](super::state) on this process's monotonic clock.
//!
//! Nothing here survives the process; the [file store](super::file) adds that, with a [`Journal`]. Each method is one
//! step, at one moment; its notifications are delivered after the step. All requests wait for a step that is in progress,
//! so steps are short: what takes longer is done in several, and requests come between them. The clock is tokio's, so
//! tests can stop it. What an operation means is not known here.

mod assign;
mod clock;
mod counting;
mod eviction;
mod journal;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout_at};

use super::pace::Pace;
use super::state::{ClaimKeys, KeyedClaim, ListingProgress, State, StepResult, StoreTime};
use super::{
    Deadlines, Fault, Finding, ListQuery, Listener, LockStore, ScanSteps, StoreError, StoreHealth,
    StoreResult,
};
use crate::domain::{
    Acquired, Attempt, Claim, Evicted, Listing, LockName, LockNames, LockView, QueueRequest,
    Released, RenewOptions, Renewed, Rollback, StepBack, SuspendOptions, Suspended, Token,
};
use clock::Clock;
pub(super) use clock::wall_time;
use counting::LeaseCounts;
pub(super) use journal::{Journal, deliver};
use journal::{LockedState, has_room};

/// After so many steps of such work there is a pause, so that it leaves most of a core to requests.
const STEPS_PER_PAUSE: usize = 8;
const PAUSE: Duration = Duration::from_millis(1);
/// How long an operation waits while the expired leases on its locks are ended: long enough for tens of thousands of
/// them. Meanwhile it counts as an operation in the store.
const CLEARING_MAX: Duration = Duration::from_millis(50);
/// How often such work lets others go first before a step.
const YIELDS_MAX: usize = 100;

/// Leases and queues in this process's memory.
pub struct MemoryStore {
    state: Mutex<LockedState>,
    /// How many threads wait for the state. The mutex has no queue: a thread that takes it again and again would keep it.
    waiting: AtomicUsize,
    /// Held while notifications are delivered, so that they arrive in the order in which they happened.
    delivering: Mutex<()>,
    /// How many steps of work that takes several were run. The mutex queues them: all such work shares the pauses.
    steps: tokio::sync::Mutex<usize>,
    /// Held by an eviction for one step.
    evicting: tokio::sync::Mutex<()>,
    listener: OnceLock<Arc<dyn Listener>>,
    counts: Mutex<LeaseCounts>,
    clock: Clock,
    /// The pace of listings.
    pace: Pace,
    journal: Option<Arc<dyn Journal>>,
}

impl MemoryStore {
    /// An empty store that keeps at most `locks_max` leases and tickets at a time, counted as the configuration says.
    #[must_use]
    pub fn new(locks_max: usize) -> Self {
        Self::on(State::new(locks_max), Clock::start_at(wall_time()), None)
    }

    /// An empty store whose clock shows this time now, for a node whose clock is wrong.
    #[must_use]
    pub fn starting_at(locks_max: usize, now: StoreTime) -> Self {
        Self::on(State::new(locks_max), Clock::start_at(now), None)
    }

    /// A store that continues from a state, at this time, with a journal.
    pub(super) fn journaled(mut state: State, now: StoreTime, journal: Arc<dyn Journal>) -> Self {
        state.list_changed_rows(true);
        Self::on(state, Clock::start_at(now), Some(journal))
    }

    fn on(state: State, clock: Clock, journal: Option<Arc<dyn Journal>>) -> Self {
        Self {
            state: Mutex::new(LockedState {
                state,
                pending: Vec::new(),
                journal: journal.clone(),
            }),
            delivering: Mutex::new(()),
            waiting: AtomicUsize::new(0),
            steps: tokio::sync::Mutex::default(),
            evicting: tokio::sync::Mutex::new(()),
            listener: OnceLock::new(),
            counts: Mutex::default(),
            clock,
            pace: Pace::of_listings(),
            journal,
        }
    }

    /// The time on the store's clock.
    pub(super) fn now(&self) -> StoreTime {
        self.clock.now()
    }

    /// How much of `locks_max` is used. Expired entries count until an operation or `refresh_health` finds them.
    #[must_use]
    pub fn count_kept(&self) -> usize {
        self.guarded().state.count_kept()
    }

    /// Whether there is room for another claim.
    pub(super) fn room(&self) -> Finding {
        self.guarded().state.room()
    }

    /// Runs one step, then delivers its notifications.
    fn step<T>(&self, step: impl FnOnce(&mut State, StoreTime) -> StepResult<'_, T>) -> T {
        self.guard(|guarded, now| guarded.step(now, step))
    }

    /// Runs one step on these locks. If many leases have expired on them, those are ended first, in steps of their own.
    ///
    /// # Errors
    /// That took too long; nothing was done then.
    ///
    /// # Cancel safety
    /// If the future is dropped before its end, the step was not run.
    async fn step_on<T>(
        &self,
        names: &[LockName],
        deadline: Instant,
        step: impl Fn(&mut State, StoreTime) -> StepResult<'_, T>,
    ) -> Result<T, StoreError> {
        let at_once = || {
            self.guard(|guarded, now| {
                let is_up_to_date = guarded.step(now, |state, now| state.expire_due(now, names));
                is_up_to_date.then(|| guarded.step(now, &step))
            })
        };
        if let Some(answer) = at_once() {
            return Ok(answer);
        }
        let in_steps = async {
            loop {
                if let Some(answer) = self.in_turn(at_once).await {
                    return answer;
                }
            }
        };
        let give_up_at = deadline.min(Instant::now() + CLEARING_MAX);
        timeout_at(give_up_at, in_steps).await.map_err(|_| {
            let detail = "more leases have expired on the lock than could be ended in time";
            StoreError::unavailable(Fault::Timeout, detail)
        })
    }

    /// Runs one step of work that takes several, after the requests that wait for the state.
    async fn in_turn<T>(&self, step: impl FnOnce() -> T) -> T {
        let mut steps = self.steps.lock().await;
        *steps += 1;
        if steps.is_multiple_of(STEPS_PER_PAUSE) {
            sleep(PAUSE).await;
        }
        for _ in 0..YIELDS_MAX {
            yield_now().await;
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
        }
        step()
    }

    /// Runs steps of one moment, then delivers their notifications.
    fn guard<T>(&self, steps: impl FnOnce(&mut LockedState, StoreTime) -> T) -> T {
        let mut guarded = self.guarded();
        // The clock is read under the lock, so that the order of steps is the order of their moments.
        let now = self.clock.now();
        let answer = steps(&mut guarded, now);
        let is_silent = guarded.pending.is_empty();
        drop(guarded);
        if !is_silent {
            self.deliver();
        }
        answer
    }

    /// Delivers pending notifications to the listener without holding the state.
    fn deliver(&self) {
        let delivering = self.delivering.lock();
        let notifications = std::mem::take(&mut self.guarded().pending);
        if let Some(listener) = self.listener.get() {
            deliver(notifications, listener.as_ref());
        }
        drop(delivering);
    }

    fn guarded(&self) -> MutexGuard<'_, LockedState> {
        let state = match self.state.try_lock() {
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let state = self.state.lock();
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                state
            }
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
        };
        state.expect("no step panics while it holds the state")
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}

#[async_trait]
impl LockStore for MemoryStore {
    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let keyed = KeyedClaim::new(claim);
        self.step_on(&claim.names, deadline, |state, now| {
            state.acquire(now, &keyed, attempt, request)
        })
        .await?
    }

    async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let keyed = KeyedClaim::new(claim);
        self.step_on(&claim.names, deadline, |state, now| {
            state.suspend(now, &keyed, options)
        })
        .await
    }

    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        _: Instant,
    ) -> StoreResult<usize> {
        let claim = KeyedClaim::new(claim);
        Ok(self.step(|state, now| state.withdraw(now, &claim, attempt, rollback)))
    }

    async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        _: Instant,
    ) -> StoreResult<Renewed> {
        let keys = ClaimKeys::of(names, token);
        Ok(self.step(|state, now| state.renew(now, &keys, change)))
    }

    async fn release(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        _: Instant,
    ) -> StoreResult<Vec<Released>> {
        let keys = ClaimKeys::of(names, token);
        let released = self.step(|state, now| state.release(now, &keys, step_back));
        Ok(released)
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        self.evict_holders(name, reason, deadlines).await
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        let names = std::slice::from_ref(name);
        self.step_on(names, deadline, |state, now| state.inspect(now, name))
            .await
    }

    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> StoreResult<Listing> {
        let mut page = ListingProgress::new(query);
        while !page.is_over() {
            let step = async {
                self.step(|state, now| state.list(now, query, &mut page));
                Ok(((), None))
            };
            self.pace.step(deadlines.end, step).await?;
        }
        Ok(page.into_listing())
    }

    async fn refresh_health(&self) {
        let mut has_more = self.step(State::sweep);
        while has_more && has_room(self.journal.as_deref()).await {
            has_more = self.in_turn(|| self.step(State::sweep)).await;
        }
    }

    /// The state keeps its own count, so only the counts of leases are swept.
    async fn sweep(&self) {
        self.sweep_counted().await;
    }

    fn traced_as(&self) -> Option<&'static str> {
        Some("memory")
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            contacted: true,
            up: true,
            held_locks: Some(self.step(State::held)),
            scan_steps: ScanSteps {
                listings: self.pace.steps(),
                counts: 0,
            },
            clock_offset_ms: Some(self.clock.ahead_ms()),
            findings: vec![
                Finding {
                    topic: "durability",
                    is_fine: true,
                    detail:
                        "leases live in this process and end with it; use redis:// to share them"
                            .to_owned(),
                },
                self.room(),
            ],
            ..StoreHealth::default()
        }
    }

    fn set_listener(&self, listener: Arc<dyn Listener>) {
        self.listener.get_or_init(|| listener);
    }

    async fn set_event_delivery(&self, wanted: bool) {
        self.step(|state, now| state.set_event_delivery(now, wanted));
    }
}
