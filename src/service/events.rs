//! The recent events of the store, and who is told of them. While nobody watches, the store is not asked to tell any.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::expiry_schedule::ExpirySchedule;
use super::watch::Scope;
use crate::domain::{LockEvent, LockView};

/// How long events are kept after the last watcher has left, so that one that was cut off misses none.
pub(super) const LINGER: Duration = Duration::from_secs(60);
/// How many events are looked at for a watcher at once.
const BATCH: usize = 500;
/// Of how many scopes it is kept in mind that their leases are known, or are to be learned.
const SCOPES_MAX: usize = 1_000;
/// How often locks are listed at the most to learn of their leases. A store looks at every lock for that.
const LIST_EVERY: Duration = Duration::from_secs(10);

/// What has happened of late.
#[derive(Debug)]
pub(super) struct EventLog {
    kept: usize,
    state: Mutex<LogState>,
    /// The number of the next entry, for those who wait for it.
    end: watch::Sender<u64>,
    /// Something changed about what leases run out when, or about who watches.
    pub(super) timetable_changed: Notify,
}

#[derive(Debug, Default)]
struct LogState {
    entries: VecDeque<LogEntry>,
    /// The number of the first entry; the numbers go on for ever.
    first: u64,
    watchers: usize,
    /// Whether events are kept: somebody watches, or did a moment ago.
    is_kept: bool,
    /// Counts the watches, so that one that ended long ago can be told from the last one.
    watches: u64,
    timetable: ExpirySchedule,
    is_timed: bool,
    /// Whose leases are in the timetable: those that were there, and from then on events tell of others.
    known: Vec<Scope>,
    /// Whose leases are not there yet.
    unknown: Vec<Scope>,
    /// Before that no listing is asked for again.
    list_at: Option<Instant>,
}

/// One thing in the order of happening.
#[derive(Clone, Debug)]
pub(super) enum LogEntry {
    Happened(Arc<Happened>),
    /// Messages may have been lost here.
    Gap,
}

/// An event, and how those who are told of it are told: the same text for all of them, made by the first one.
#[derive(Debug, PartialEq, Eq)]
pub struct Happened {
    event: LockEvent,
    text: OnceLock<Arc<[u8]>>,
}

impl Happened {
    /// An event that nobody has been told of.
    #[must_use]
    pub fn new(event: LockEvent) -> Self {
        Self {
            event,
            text: OnceLock::new(),
        }
    }

    /// The event as text. What `write` does must depend on the event alone: only the first one's is used.
    pub fn text(&self, write: impl FnOnce(&LockEvent) -> String) -> Arc<[u8]> {
        let text = self
            .text
            .get_or_init(|| write(&self.event).into_bytes().into());
        Arc::clone(text)
    }
}

impl Deref for Happened {
    type Target = LockEvent;

    fn deref(&self) -> &LockEvent {
        &self.event
    }
}

impl LogState {
    /// What can be learned now. A single lock is looked at without much ado, a listing has its time.
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

/// What the task is to do that looks after leases that run out.
#[derive(Debug)]
pub(super) enum ExpiryTask {
    /// Learn which leases there are.
    Learn(Scope),
    /// Look at these locks: a lease of each should be over.
    Look(Vec<crate::domain::LockName>),
    /// Nothing until then, or until something changes.
    Rest(Option<Instant>),
    /// Nobody watches any more.
    Done,
}

impl EventLog {
    pub(super) fn new(kept: usize) -> Self {
        Self {
            kept,
            state: Mutex::default(),
            end: watch::Sender::new(0),
            timetable_changed: Notify::new(),
        }
    }

    /// Counts a watcher. Says whether a task must be started that looks after leases that run out.
    pub(super) fn enter(&self, scope: &Scope) -> bool {
        let mut state = self.lock();
        state.watchers += 1;
        state.watches += 1;
        state.is_kept = true;
        let is_asked_for = |known: &Vec<Scope>| known.iter().any(|known| known.covers(scope));
        let is_new = !is_asked_for(&state.known) && !is_asked_for(&state.unknown);
        if is_new && state.unknown.len() < SCOPES_MAX {
            state.unknown.push(scope.clone());
            self.timetable_changed.notify_one();
        }
        !std::mem::replace(&mut state.is_timed, true)
    }

    /// A watcher leaves. If it was the last one, says by which number to ask later whether it still is.
    pub(super) fn leave(&self) -> Option<u64> {
        let mut state = self.lock();
        state.watchers -= 1;
        if state.watchers > 0 {
            return None;
        }
        self.timetable_changed.notify_one();
        Some(state.watches)
    }

    /// Forgets everything unless somebody has begun to watch since. Says whether it did.
    pub(super) fn forget(&self, watches: u64) -> bool {
        let mut state = self.lock();
        if state.watchers > 0 || state.watches != watches {
            return false;
        }
        state.first += state.entries.len() as u64;
        state.entries = VecDeque::new();
        state.is_kept = false;
        true
    }

    pub(super) fn happened(&self, event: LockEvent) {
        let mut state = self.lock();
        if !state.is_kept {
            return;
        }
        if state.watchers > 0 && state.timetable.learn(&event, Instant::now()) {
            self.timetable_changed.notify_one();
        }
        self.push(state, LogEntry::Happened(Arc::new(Happened::new(event))));
    }

    pub(super) fn messages_lost(&self) {
        let mut state = self.lock();
        if !state.is_kept {
            return;
        }
        // What was missed may have been the beginning of leases.
        let mut known = std::mem::take(&mut state.known);
        state.unknown.append(&mut known);
        self.timetable_changed.notify_one();
        self.push(state, LogEntry::Gap);
    }

    fn push(&self, mut state: MutexGuard<'_, LogState>, entry: LogEntry) {
        state.entries.push_back(entry);
        if state.entries.len() > self.kept {
            state.entries.pop_front();
            state.first += 1;
        }
        let end = state.first + state.entries.len() as u64;
        self.end.send_replace(end);
    }

    /// The number from which on to tell, and whether everything since `after` is there.
    pub(super) fn resume(&self, after: Option<&str>) -> (u64, bool) {
        let state = self.lock();
        let end = state.first + state.entries.len() as u64;
        let Some(after) = after else {
            return (end, true);
        };
        let is_it =
            |entry: &LogEntry| matches!(entry, LogEntry::Happened(event) if event.id == after);
        match state.entries.iter().rposition(is_it) {
            Some(index) => (state.first + index as u64 + 1, true),
            None => (end, false),
        }
    }

    /// What is of interest from a number on, up to a next number. None if that is not kept any more.
    pub(super) fn since(&self, next: u64, scope: &Scope) -> (u64, Option<VecDeque<LogEntry>>) {
        let state = self.lock();
        let end = state.first + state.entries.len() as u64;
        let Some(skipped) = next.checked_sub(state.first) else {
            return (end, None);
        };
        let index = usize::try_from(skipped).expect("less than the entries that are kept");
        let looked_at = state.entries.range(index..).take(BATCH);
        let entries = looked_at
            .filter(|entry| match entry {
                LogEntry::Happened(event) => scope.has(&event.name),
                LogEntry::Gap => true,
            })
            .cloned()
            .collect();
        (end.min(next + BATCH as u64), Some(entries))
    }

    /// Hears whenever there is something new.
    pub(super) fn ends(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// What is to be done next about leases that run out.
    pub(super) fn next_task(&self, is_draining: bool) -> ExpiryTask {
        let mut state = self.lock();
        if state.watchers == 0 || is_draining {
            state.is_timed = false;
            state.timetable = ExpirySchedule::default();
            state.known.clear();
            state.unknown.clear();
            state.list_at = None;
            return ExpiryTask::Done;
        }
        let now = Instant::now();
        let due = state.timetable.take_due(now);
        if !due.is_empty() {
            return ExpiryTask::Look(due);
        }
        match state.next_unknown(now) {
            Some(scope) => ExpiryTask::Learn(scope),
            None => {
                let list_at = state.list_at.filter(|_| !state.unknown.is_empty());
                ExpiryTask::Rest(state.timetable.next().into_iter().chain(list_at).min())
            }
        }
    }

    /// Learns what leases a lock has. Says whether there is room for more.
    pub(super) fn learn(&self, view: &LockView, seen: Instant) -> bool {
        self.lock().timetable.learn_view(view, seen)
    }

    /// Looks again soon: the store did not answer.
    pub(super) fn look_again(&self, names: Vec<crate::domain::LockName>, at: Instant) {
        self.lock().timetable.look_again(names, at);
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        // Each step leaves the entries whole, whatever its caller does afterwards.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
