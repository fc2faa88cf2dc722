//! The embedded store in memory: runs the [state machine](super::state) on this process's monotonic clock.
//!
//! Nothing here survives the process and nothing here waits; the [file store](super::file) adds both, with a [`Journal`].
//! Each method is one step, at one moment; its notifications are delivered after the step. The clock is tokio's, so tests can stop it. What an operation means is not known here.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::pace::Pace;
use super::state::{
    Applied, ClaimKeys, KeyedClaim, ListingProgress, Notification, State, StoreTime,
};
use super::{Deadlines, Finding, ListQuery, Listener, LockStore, StoreHealth, StoreResult};
use crate::domain::{
    Acquired, AnswerRoom, Attempt, Claim, Evicted, HoldCount, Holders, Listing, LockName,
    LockNames, LockView, QueueRequest, Released, RenewOptions, Renewed, Rollback, Suspended, Token,
};

/// How many holders one step of an eviction evicts.
const EVICTED_PER_STEP: usize = 256;

/// Leases and queues in this process's memory.
pub struct MemoryStore {
    state: Mutex<Guarded>,
    /// Held while notifications are delivered, so that they arrive in the order in which they happened.
    delivering: Mutex<()>,
    listener: OnceLock<Arc<dyn Listener>>,
    clock: Clock,
    /// The pace of listings.
    pace: Pace,
    journal: Option<Arc<dyn Journal>>,
}

/// Takes what each step changes, for a store that writes it before answers go out.
#[async_trait]
pub(super) trait Journal: Send + Sync {
    /// Takes the rows that the last step of the state changed, and its notifications, which the journal delivers. Called
    /// while the state is locked.
    fn record(&self, state: &State, now: StoreTime, notifications: Vec<Notification>);

    /// Waits until there is room for what a sweep changes, so that sweeps are no faster than the journal.
    async fn room(&self);
}

/// The state, and the notifications of its steps that are not delivered yet.
struct Guarded {
    state: State,
    pending: Vec<Notification>,
}

impl MemoryStore {
    /// An empty store that keeps at most `locks_max` leases and tickets at a time, counted as the configuration says.
    #[must_use]
    pub fn new(locks_max: usize) -> Self {
        Self::on(State::new(locks_max), Clock::start(), None)
    }

    /// A store that continues from a state, at this time, with a journal.
    pub(super) fn journaled(mut state: State, now: StoreTime, journal: Arc<dyn Journal>) -> Self {
        state.list_changed_rows(true);
        Self::on(state, Clock::start_at(now), Some(journal))
    }

    fn on(state: State, clock: Clock, journal: Option<Arc<dyn Journal>>) -> Self {
        Self {
            state: Mutex::new(Guarded {
                state,
                pending: Vec::new(),
            }),
            delivering: Mutex::new(()),
            listener: OnceLock::new(),
            clock,
            pace: Pace::default(),
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

    /// Runs one step, then delivers its notifications.
    fn step<T>(&self, step: impl FnOnce(&mut State, StoreTime) -> Applied<'_, T>) -> T {
        let mut guarded = self.guarded();
        // The clock is read under the lock, so that the order of steps is the order of their moments.
        let now = self.clock.now();
        let Applied {
            answer,
            notifications,
            ..
        } = step(&mut guarded.state, now);
        if let Some(journal) = &self.journal {
            journal.record(&guarded.state, now, notifications);
            return answer;
        }
        let is_silent = notifications.is_empty();
        guarded.pending.extend(notifications);
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

    fn guarded(&self) -> MutexGuard<'_, Guarded> {
        self.state
            .lock()
            .expect("no step panics while it holds the state")
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
        _: Instant,
    ) -> StoreResult<Acquired> {
        let claim = KeyedClaim::new(claim);
        self.step(|state, now| state.acquire(now, &claim, attempt, request))
    }

    async fn suspend(&self, claim: &Claim, keep: Duration, _: Instant) -> StoreResult<Suspended> {
        let claim = KeyedClaim::new(claim);
        Ok(self.step(|state, now| state.suspend(now, &claim, keep)))
    }

    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        _: Instant,
    ) -> StoreResult<()> {
        let claim = KeyedClaim::new(claim);
        self.step(|state, now| state.withdraw(now, &claim, attempt, rollback));
        Ok(())
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
        hold_count: Option<HoldCount>,
        _: Instant,
    ) -> StoreResult<Vec<Released>> {
        let keys = ClaimKeys::of(names, token);
        let released = self.step(|state, now| state.release(now, &keys, hold_count));
        Ok(released)
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let mut room = AnswerRoom::for_locks(1);
        let mut holders = Holders::none();
        let claims = self.step(|state, now| state.begin_eviction(now, name));
        let mut is_complete = true;
        for claims in claims.chunks(EVICTED_PER_STEP) {
            if Instant::now() > deadlines.end {
                is_complete = false;
                break;
            }
            let evicted = self.step(|state, now| state.evict(now, name, claims, reason));
            holders.total += evicted.len() as u64;
            let left = AnswerRoom::HOLDERS_MAX - holders.listed.len();
            holders
                .listed
                .extend(room.take(evicted.into_iter().take(left)));
            yield_now().await;
        }
        Ok(Evicted {
            holders,
            is_complete,
        })
    }

    async fn inspect(&self, name: &LockName, _: Instant) -> StoreResult<LockView> {
        Ok(self.step(|state, now| state.inspect(now, name)))
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
        // Small steps, so that other requests and connections get their turn while millions of entries are due.
        while self.step(State::sweep) {
            yield_now().await;
            if let Some(journal) = &self.journal {
                journal.room().await;
            }
        }
    }

    /// The state keeps a count, so there is nothing to do.
    async fn sweep(&self) {}

    fn health(&self) -> StoreHealth {
        StoreHealth {
            contacted: true,
            up: true,
            held_locks: Some(self.step(State::held)),
            clock_offset_ms: Some(0),
            findings: vec![Finding {
                topic: "durability",
                is_fine: true,
                detail: "leases live in this process and end with it; use redis:// to share them"
                    .to_owned(),
            }],
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

/// Calls the listener with each notification.
pub(super) fn deliver(notifications: Vec<Notification>, listener: &dyn Listener) {
    for notification in notifications {
        match notification {
            Notification::Reserved(name) => listener.reserved(&name),
            Notification::Dequeued(key) => listener.dequeued(&key.name, key.claim),
            Notification::Evicted(name) => listener.evicted(&name),
            Notification::Released(key) => listener.released(&key.name, key.claim),
            Notification::Event(event) => listener.event(event),
        }
    }
}

/// A time that never jumps: set once at the start, then advanced by tokio's monotonic clock.
struct Clock {
    started: Instant,
    at: StoreTime,
}

impl Clock {
    fn start() -> Self {
        Self::start_at(wall_time())
    }

    fn start_at(at: StoreTime) -> Self {
        let started = Instant::now();
        Self { started, at }
    }

    fn now(&self) -> StoreTime {
        self.at + self.started.elapsed()
    }
}

/// The time on the system's clock. A clock before 1970 counts as 1970, which is harmless: fencing tokens start anew with
/// each process, or continue from those that were written.
pub(super) fn wall_time() -> StoreTime {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    StoreTime::at(since_1970.unwrap_or_default())
}
