//! The store's notifications: passed to waiters and streams, and events kept in a log for all watchers. While there are no
//! watchers, the store does not deliver events.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::held::HeldByStreams;
use super::local_waiters::LocalWaiters;
use super::watch::{ExpirySchedule, Scope};
use crate::backoff;
use crate::domain::{ClaimDigest, LockEvent, LockName, LockView};
use crate::store::Listener;

/// How long events are kept after the last watcher has left, so that a watcher that reconnects misses none.
pub(super) const LINGER: Duration = Duration::from_secs(60);
/// How many events a watcher reads at once.
const BATCH: usize = 500;
/// The average time between two reads of a process's watchers is at least this, however fast events come.
const READ_SPACING: Duration = Duration::from_micros(500);
/// How many scopes may be recorded as listed, and as many as still to be listed.
const SCOPES_MAX: usize = 1_000;
/// The minimum interval between listings that learn of leases. For a listing, the store reads every lock.
const LIST_EVERY: Duration = Duration::from_secs(10);

/// The listener of one service. It has no reference to the store, so that the two do not keep each other alive.
#[derive(Debug)]
pub(super) struct StoreListener {
    pub(super) queues: Arc<LocalWaiters>,
    pub(super) events: Arc<EventLog>,
    pub(super) held: Arc<HeldByStreams>,
}

impl Listener for StoreListener {
    fn reserved(&self, name: &LockName) {
        self.queues.reserved(name).defer();
    }

    fn dequeued(&self, name: &LockName, claim: ClaimDigest) {
        self.queues.recheck_claim(name, claim);
    }

    fn evicted(&self, name: &LockName) {
        self.held.evicted(name);
    }

    fn released(&self, name: &LockName, claim: ClaimDigest) {
        self.held.released(name, claim);
    }

    fn event(&self, event: LockEvent) {
        self.events.record(event);
    }

    fn messages_lost(&self) {
        self.queues.recheck_all();
    }

    fn events_lost(&self) {
        self.events.record_gap();
    }
}

/// The recent events, and the expiry schedule of the watched locks.
#[derive(Debug)]
pub(super) struct EventLog {
    capacity: usize,
    state: Mutex<LogState>,
    /// The number of the next entry; watchers wait for its change.
    end: watch::Sender<u64>,
    /// Notifies the expiry task: the schedule or the watchers changed.
    pub(super) schedule_changed: Notify,
}

#[derive(Debug, Default)]
struct LogState {
    entries: VecDeque<LogEntry>,
    /// The number of the first entry; numbers are never reused.
    first: u64,
    watchers: usize,
    /// Whether events are recorded: there is a watcher, or was one less than [`LINGER`] ago.
    is_kept: bool,
    /// Counts the watches ever begun; shows after [`LINGER`] whether another one has begun.
    watches: u64,
    schedule: ExpirySchedule,
    has_expiry_task: bool,
    /// Scopes whose leases are in the schedule. Events report later leases.
    known: Vec<Scope>,
    /// Scopes whose existing leases are still to be listed.
    unknown: Vec<Scope>,
    /// No listing is sent before this.
    list_at: Option<Instant>,
}

/// One entry of the log.
#[derive(Clone, Debug)]
pub(super) enum LogEntry {
    Event(Arc<EncodedEvent>),
    /// Messages may have been lost here.
    Gap,
}

/// An event, with its encoded text: the first watcher makes it, and all others share it.
#[derive(Debug, PartialEq, Eq)]
pub struct EncodedEvent {
    event: LockEvent,
    text: OnceLock<Arc<[u8]>>,
}

impl EncodedEvent {
    /// An event that is not encoded yet.
    #[must_use]
    pub fn new(event: LockEvent) -> Self {
        Self {
            event,
            text: OnceLock::new(),
        }
    }

    /// The event as text. `write` must depend on the event alone, because only the first call runs it.
    pub fn text(&self, write: impl FnOnce(&LockEvent) -> String) -> Arc<[u8]> {
        let text = self
            .text
            .get_or_init(|| write(&self.event).into_bytes().into());
        Arc::clone(text)
    }
}

impl Deref for EncodedEvent {
    type Target = LockEvent;

    fn deref(&self) -> &LockEvent {
        &self.event
    }
}

impl LogState {
    /// The next scope to learn. A single lock is cheap to inspect; listings keep their interval.
    fn next_unknown(&mut self, now: Instant) -> Option<Scope> {
        let may_list = self.list_at.is_none_or(|at| at <= now);
        let is_due = |scope: &Scope| may_list || matches!(scope, Scope::Lock(_));
        let index = self.unknown.iter().position(is_due)?;
        let scope = self.unknown.swap_remove(index);
        if matches!(scope, Scope::Prefix(_)) {
            self.list_at = Some(now + LIST_EVERY);
        }
        if self.known.len() < SCOPES_MAX {
            self.known.push(scope.clone());
        }
        Some(scope)
    }
}

/// The next step of the task that inspects locks when leases expire.
#[derive(Debug)]
pub(super) enum ExpiryTask {
    /// Learn the leases of this scope.
    Learn(Scope),
    /// Inspect these locks: a lease of each should have expired.
    Inspect(Vec<crate::domain::LockName>),
    /// Sleep until then, or until the schedule changes.
    Sleep(Option<Instant>),
    /// No watchers are left, or the process is draining.
    Done,
}

impl EventLog {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            state: Mutex::default(),
            end: watch::Sender::new(0),
            schedule_changed: Notify::new(),
        }
    }

    /// Adds a watcher. Returns whether the caller must start the expiry task.
    pub(super) fn enter(&self, scope: &Scope) -> bool {
        let mut state = self.lock();
        state.watchers += 1;
        state.watches += 1;
        state.is_kept = true;
        let is_covered = |known: &Vec<Scope>| known.iter().any(|known| known.covers(scope));
        let is_new = !is_covered(&state.known) && !is_covered(&state.unknown);
        if is_new && state.unknown.len() < SCOPES_MAX {
            state.unknown.push(scope.clone());
            self.schedule_changed.notify_one();
        }
        !std::mem::replace(&mut state.has_expiry_task, true)
    }

    /// Removes a watcher. If it was the last one, returns the count of watches for [`forget`](Self::forget).
    pub(super) fn leave(&self) -> Option<u64> {
        let mut state = self.lock();
        state.watchers -= 1;
        if state.watchers > 0 {
            return None;
        }
        self.schedule_changed.notify_one();
        Some(state.watches)
    }

    /// Clears the log unless another watch has begun since. Returns whether it did.
    pub(super) fn forget(&self, watches: u64) -> bool {
        let mut state = self.lock();
        if state.watches != watches {
            return false;
        }
        state.first += state.entries.len() as u64;
        state.entries = VecDeque::new();
        state.is_kept = false;
        true
    }

    pub(super) fn record(&self, event: LockEvent) {
        let mut state = self.lock();
        if !state.is_kept {
            return;
        }
        if state.watchers > 0 && state.schedule.learn(&event, Instant::now()) {
            self.schedule_changed.notify_one();
        }
        self.push(state, LogEntry::Event(Arc::new(EncodedEvent::new(event))));
    }

    pub(super) fn record_gap(&self) {
        let mut state = self.lock();
        if !state.is_kept {
            return;
        }
        // The lost events may have reported new leases.
        let mut known = std::mem::take(&mut state.known);
        state.unknown.append(&mut known);
        self.schedule_changed.notify_one();
        self.push(state, LogEntry::Gap);
    }

    fn push(&self, mut state: MutexGuard<'_, LogState>, entry: LogEntry) {
        state.entries.push_back(entry);
        if state.entries.len() > self.capacity {
            state.entries.pop_front();
            state.first += 1;
        }
        let end = state.first + state.entries.len() as u64;
        self.end.send_replace(end);
    }

    /// The number of the first entry to send, and whether the log has everything since `after`.
    pub(super) fn resume(&self, after: Option<&str>) -> (u64, bool) {
        let state = self.lock();
        let end = state.first + state.entries.len() as u64;
        let Some(after) = after else {
            return (end, true);
        };
        let is_last_seen =
            |entry: &LogEntry| matches!(entry, LogEntry::Event(event) if event.id == after);
        match state.entries.iter().rposition(is_last_seen) {
            Some(index) => (state.first + index as u64 + 1, true),
            None => (end, false),
        }
    }

    /// The number to continue from, and the entries in scope before it; `None` if some are no longer in the log.
    pub(super) fn since(&self, next: u64, scope: &Scope) -> (u64, Option<VecDeque<LogEntry>>) {
        let state = self.lock();
        let end = state.first + state.entries.len() as u64;
        let Some(skipped) = next.checked_sub(state.first) else {
            return (end, None);
        };
        let index = usize::try_from(skipped).expect("less than the entries that are kept");
        let batch = state.entries.range(index..).take(BATCH);
        let entries = batch
            .filter(|entry| match entry {
                LogEntry::Event(event) => scope.has(&event.name),
                LogEntry::Gap => true,
            })
            .cloned()
            .collect();
        (end.min(next + BATCH as u64), Some(entries))
    }

    /// How long a watcher that has read pauses before it reads again, so that it reads what comes meanwhile at once.
    pub(super) fn read_interval(&self) -> Duration {
        let watchers = u32::try_from(self.lock().watchers).unwrap_or(u32::MAX);
        backoff::jittered(READ_SPACING.saturating_mul(watchers))
    }

    /// Subscribes to new entries.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// The next step of the expiry task.
    pub(super) fn next_task(&self, is_draining: bool) -> ExpiryTask {
        let mut state = self.lock();
        if state.watchers == 0 || is_draining {
            state.has_expiry_task = false;
            state.schedule = ExpirySchedule::default();
            state.known.clear();
            state.unknown.clear();
            state.list_at = None;
            return ExpiryTask::Done;
        }
        let now = Instant::now();
        let due = state.schedule.take_due(now);
        if !due.is_empty() {
            return ExpiryTask::Inspect(due);
        }
        match state.next_unknown(now) {
            Some(scope) => ExpiryTask::Learn(scope),
            None => {
                let list_at = state.list_at.filter(|_| !state.unknown.is_empty());
                ExpiryTask::Sleep(state.schedule.next().into_iter().chain(list_at).min())
            }
        }
    }

    /// Adds the leases of a lock to the schedule. Returns whether there is room for more.
    pub(super) fn learn(&self, view: &LockView, seen: Instant) -> bool {
        self.lock().schedule.learn_view(view, seen)
    }

    /// Schedules another inspection, because the store failed.
    pub(super) fn inspect_again(&self, names: Vec<crate::domain::LockName>, at: Instant) {
        self.lock().schedule.inspect_again(names, at);
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        // Poisoning is harmless: no step panics halfway through a change of the entries.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
