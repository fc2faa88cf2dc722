//! Watching the events of locks, and when leases expire. Stores emit nothing on expiry, so while events are watched the
//! service inspects each lock just after its known expiry, which makes the store publish it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ServiceShared;
use super::events::{EncodedEvent, ExpiryTask, LINGER, LogEntry};
use super::metrics::Open;
use crate::backoff;
use crate::domain::{EventKind, Fence, LockEvent, LockName, LockState, LockView};
use crate::store::{ListQuery, StoreError};

/// How many locks one page of a listing has at most.
const PAGE_SIZE: usize = 1_000;
/// The maximum of leases in the schedule. The expiry of others is reported when a request finds it.
const LEASES_MAX: usize = 10_000;
/// How long until a failed inspection is repeated.
const RETRY: Duration = Duration::from_secs(1);

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every lock whose name has this prefix.
    Prefix(String),
    /// One lock.
    Lock(LockName),
}

impl Scope {
    pub(super) fn has(&self, name: &LockName) -> bool {
        match self {
            Self::Prefix(prefix) => name.as_str().starts_with(prefix),
            Self::Lock(lock) => lock == name,
        }
    }

    /// Whether this scope includes all of the other one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Prefix(prefix), Self::Prefix(other)) => other.starts_with(prefix),
            (Self::Prefix(_) | Self::Lock(_), Self::Lock(name)) => self.has(name),
            (Self::Lock(_), Self::Prefix(_)) => false,
        }
    }
}

/// An item of a [`Watch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Something happened to a lock.
    Event(Arc<EncodedEvent>),
    /// Events may be missing: the watcher should read the state again.
    Reset,
}

/// A stream of events. It ends when the process begins to shut down.
pub struct Watch(BoxStream<'static, WatchEvent>);

impl Stream for Watch {
    type Item = WatchEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        self.0.poll_next_unpin(context)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

/// One watcher.
struct Watcher {
    guard: WatchGuard,
    scope: Scope,
    ends: watch::Receiver<u64>,
    next: u64,
    is_reset: bool,
    ready: VecDeque<LogEntry>,
    /// When it may read again. The first event after a rest is read at once.
    read_at: Instant,
    _open: Open,
}

/// Registers a watcher while it lives. The store delivers events while there is one, and for [`LINGER`] after.
struct WatchGuard(Arc<ServiceShared>);

impl ServiceShared {
    pub(super) async fn watch(self: &Arc<Self>, scope: Scope, after: Option<String>) -> Watch {
        let ends = self.events.subscribe();
        let must_start_task = self.events.enter(&scope);
        let guard = WatchGuard(Arc::clone(self));
        if must_start_task {
            tokio::spawn(poll_expiries(Arc::clone(self)));
        }
        self.request_events().await;
        let (next, is_whole) = self.events.resume(after.as_deref());
        let watcher = Watcher {
            _open: self.metrics.acquires.stream("events"),
            guard,
            scope,
            ends,
            next,
            is_reset: !is_whole,
            ready: VecDeque::new(),
            read_at: Instant::now(),
        };
        Watch(stream::unfold(watcher, Watcher::next).boxed())
    }

    /// Makes the store deliver events from now on. Gives up waiting for its confirmation after the operation timeout.
    async fn request_events(&self) {
        let request = async {
            let mut is_delivering = self.delivers_events.lock().await;
            if !*is_delivering {
                self.store.set_event_delivery(true).await;
                *is_delivering = true;
            }
        };
        if tokio::time::timeout(self.operation_timeout, request)
            .await
            .is_err()
        {
            tracing::debug!("the store has not confirmed in time that it delivers events");
        }
    }

    async fn stop_events(&self, watches: u64) {
        let mut is_delivering = self.delivers_events.lock().await;
        if self.events.forget(watches) {
            *is_delivering = false;
            self.store.set_event_delivery(false).await;
        }
    }
}

impl Watcher {
    async fn next(mut self) -> Option<(WatchEvent, Self)> {
        let draining = self.guard.0.draining.clone();
        loop {
            if draining.is_cancelled() {
                return None;
            }
            if std::mem::take(&mut self.is_reset) {
                return Some((WatchEvent::Reset, self));
            }
            match self.ready.pop_front() {
                Some(LogEntry::Event(event)) => {
                    return Some((WatchEvent::Event(event), self));
                }
                Some(LogEntry::Gap) => return Some((WatchEvent::Reset, self)),
                None => {}
            }
            let has_more = self.next < *self.ends.borrow_and_update();
            if has_more && self.read_at <= Instant::now() {
                self.read_log();
                continue;
            }
            tokio::select! {
                () = draining.cancelled() => return None,
                () = tokio::time::sleep_until(self.read_at), if has_more => {}
                // The sender lives as long as the guard.
                _ = self.ends.changed(), if !has_more => {}
            }
        }
    }

    fn read_log(&mut self) {
        let (next, entries) = self.guard.0.events.since(self.next, &self.scope);
        self.next = next;
        self.read_at = Instant::now() + self.guard.0.events.read_interval();
        match entries {
            Some(entries) => self.ready = entries,
            None => {
                self.guard.0.metrics.fell_behind();
                self.is_reset = true;
            }
        }
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let Some(watches) = self.0.events.leave() else {
            return;
        };
        // Outside of a runtime the process is exiting.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let inner = Arc::downgrade(&self.0);
            runtime.spawn(async move {
                tokio::time::sleep(LINGER).await;
                if let Some(inner) = inner.upgrade() {
                    inner.stop_events(watches).await;
                }
            });
        }
    }
}

/// Inspects each lock just after a lease should have expired, which makes the store publish the expiry. Ends with the
/// last watcher.
async fn poll_expiries(inner: Arc<ServiceShared>) {
    loop {
        match inner.events.next_task(inner.draining.is_cancelled()) {
            ExpiryTask::Learn(scope) => learn(&inner, scope).await,
            ExpiryTask::Inspect(names) => inspect_all(&inner, names).await,
            ExpiryTask::Sleep(until) => sleep(&inner, until).await,
            ExpiryTask::Done => return,
        }
    }
}

async fn sleep(inner: &ServiceShared, until: Option<Instant>) {
    let time = async {
        match until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = inner.events.schedule_changed.notified() => {}
        () = inner.draining.cancelled() => {}
        () = time => {}
    }
}

async fn inspect_all(inner: &ServiceShared, names: Vec<LockName>) {
    let mut failed = Vec::new();
    for name in names {
        let (seen, answer) = inner.inspect(&name).await;
        match answer {
            Ok(view) => drop(inner.events.learn(&view, seen)),
            Err(_) => failed.push(name),
        }
    }
    if !failed.is_empty() {
        inner.events.inspect_again(failed, Instant::now() + RETRY);
    }
}

/// Learns the ends of existing leases. A failed listing is not repeated.
async fn learn(inner: &ServiceShared, scope: Scope) {
    let prefix = match scope {
        Scope::Lock(name) => return inspect_all(inner, vec![name]).await,
        Scope::Prefix(prefix) => prefix,
    };
    let mut query = ListQuery {
        prefix,
        within: None,
        after: None,
        snapshot: None,
        page_size: PAGE_SIZE,
    };
    loop {
        let (seen, answer): (_, Result<_, StoreError>) = inner.list(&query).await;
        let Ok(page) = answer else { return };
        let has_room = page
            .locks
            .iter()
            .fold(true, |_, view| inner.events.learn(view, seen));
        (query.after, query.snapshot) = (page.next_after, page.snapshot);
        if query.after.is_none() || !has_room {
            return;
        }
    }
}

/// The ends of leases, in order.
#[derive(Debug, Default)]
pub(super) struct ExpirySchedule {
    ends: HashMap<(LockName, Option<Fence>), Instant>,
    in_order: BTreeSet<(Instant, LockName, Option<Fence>)>,
}

impl ExpirySchedule {
    /// Applies an event. Returns whether the next inspection is now earlier.
    pub(super) fn learn(&mut self, event: &LockEvent, now: Instant) -> bool {
        let lease = (event.name.clone(), event.fence);
        match event.kind {
            EventKind::Acquired | EventKind::Renewed => {
                let Some(expires_at) = event.expires_at else {
                    return false;
                };
                // Both times are of the store's clock, but their difference is valid on this machine.
                let lasts_ms = expires_at.unix_ms().saturating_sub(event.at.unix_ms());
                let before = self.next();
                self.set(lease, now + Duration::from_millis(lasts_ms));
                self.next() < before || before.is_none()
            }
            EventKind::Released | EventKind::Expired | EventKind::Evicted => {
                self.unset(&lease);
                false
            }
            EventKind::Queued => false,
        }
    }

    /// Adds the leases of a lock. Returns whether there is room for more.
    pub(super) fn learn_view(&mut self, view: &LockView, seen: Instant) -> bool {
        if let LockState::Held(holders) = &view.state {
            for holder in &holders.listed {
                self.set(
                    (view.name.clone(), Some(holder.fence)),
                    seen + holder.expires_in,
                );
            }
        }
        self.ends.len() < LEASES_MAX
    }

    /// Takes the locks of which a lease should have expired, each once.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<LockName> {
        let mut due = Vec::new();
        while self.in_order.first().is_some_and(|(end, ..)| *end <= now) {
            let Some((_, name, fence)) = self.in_order.pop_first() else {
                break;
            };
            self.ends.remove(&(name.clone(), fence));
            due.push(name);
        }
        due.sort_unstable();
        due.dedup();
        due
    }

    /// When the next lease should have expired.
    pub(super) fn next(&self) -> Option<Instant> {
        self.in_order.first().map(|(end, ..)| *end)
    }

    /// Schedules an inspection of these locks at `at`, whatever leases they have.
    pub(super) fn inspect_again(&mut self, names: Vec<LockName>, at: Instant) {
        for name in names {
            self.set((name, None), at);
        }
    }

    fn set(&mut self, lease: (LockName, Option<Fence>), end: Instant) {
        self.unset(&lease);
        if self.ends.len() < LEASES_MAX {
            let end = end + backoff::past_expiry();
            self.in_order.insert((end, lease.0.clone(), lease.1));
            self.ends.insert(lease, end);
        }
    }

    fn unset(&mut self, lease: &(LockName, Option<Fence>)) {
        if let Some(end) = self.ends.remove(lease) {
            let (name, fence) = lease.clone();
            self.in_order.remove(&(end, name, fence));
        }
    }
}
