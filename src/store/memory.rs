//! The embedded store: the reference implementation of the contract, in one process, on its monotonic clock.
//!
//! Nothing here survives the process and nothing here waits. Each method is one atomic step of the table, at one
//! moment; its notifications are delivered after the step. The clock is tokio's, so tests can stop it.

mod acquire;
mod clock;
mod lease_record;
mod leases;
mod lock;
mod notifications;
mod receivers;
mod table;
mod text;
mod tombstones;
mod transitions;
mod wait_queue;
mod waiting;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::pace::Pace;
use super::{
    Deadlines, Finding, ListQuery, Listener, LockStore, StoreError, StoreFuture, StoreHealth,
};
use crate::domain::{
    Acquired, AnswerRoom, Attempt, Claim, Evicted, HoldCount, Holders, Listing, LockName,
    LockNames, LockView, QueueRequest, Released, RenewOptions, Renewed, Rollback, Suspended, Token,
};
use clock::{Clock, StoreTime};
use table::{ListingProgress, Table};

/// How many due entries one operation clears away beside its own work. An operation on one lock creates fewer, so they
/// do not pile up; what operations on many locks leave behind is cleared by `refresh_health`.
const SWEPT_PER_OPERATION: usize = 4;

/// How many due entries one step of `refresh_health` clears away.
const SWEPT_PER_STEP: usize = 256;

/// How many holders one step of an eviction evicts.
const EVICTED_PER_STEP: usize = 256;

/// Leases and queues in this process's memory.
pub struct MemoryStore {
    table: Mutex<Table>,
    /// Held while notifications are delivered, so that they arrive in the order in which they happened.
    delivering: Mutex<()>,
    listener: OnceLock<Arc<dyn Listener>>,
    clock: Clock,
    /// The pace of listings.
    pace: Pace,
}

impl MemoryStore {
    /// An empty store that keeps at most `locks_max` leases and tickets at a time, counted as the configuration says.
    #[must_use]
    pub fn new(locks_max: usize) -> Self {
        Self {
            table: Mutex::new(Table::new(locks_max)),
            delivering: Mutex::new(()),
            listener: OnceLock::new(),
            clock: Clock::start(),
            pace: Pace::default(),
        }
    }

    /// How much of `locks_max` is used. Expired entries count until an operation or `refresh_health` finds them.
    #[must_use]
    pub fn count_kept(&self) -> usize {
        self.table().count()
    }

    /// Runs one atomic step at one moment, then delivers its notifications.
    fn step<T>(&self, step: impl FnOnce(&mut Table, StoreTime) -> T) -> T {
        let mut table = self.table();
        // The clock is read under the lock, so that the order of steps is the order of their moments.
        let now = self.clock.now();
        table.sweep(now, SWEPT_PER_OPERATION);
        let answer = step(&mut table, now);
        table.finish_step(now);
        let is_empty = table.notifications.is_empty();
        drop(table);
        if !is_empty {
            self.deliver();
        }
        answer
    }

    /// Delivers pending notifications to the listener without holding the table.
    fn deliver(&self) {
        let delivering = self.delivering.lock();
        let notifications = self.table().notifications.take();
        if let Some(listener) = self.listener.get() {
            for notification in notifications {
                notification.deliver(listener.as_ref());
            }
        }
        drop(delivering);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table
            .lock()
            .expect("no step panics while it holds the table")
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> Result<Evicted, StoreError> {
        let mut room = AnswerRoom::for_locks(1);
        let mut holders = Holders::none();
        let tokens = self.step(|table, now| table.begin_eviction(name, now));
        let mut is_complete = true;
        for tokens in tokens.chunks(EVICTED_PER_STEP) {
            if Instant::now() > deadlines.end {
                is_complete = false;
                break;
            }
            let evicted = self.step(|table, now| table.evict_some(name, tokens, reason, now));
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

    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> Result<Listing, StoreError> {
        let mut page = ListingProgress::new(query);
        while !page.is_over {
            let step = async {
                self.step(|table, now| table.list_some(query, &mut page, now));
                Ok(((), None))
            };
            self.pace.step(deadlines.end, step).await?;
        }
        Ok(page.listing)
    }

    fn at_once<'a, T: Send + 'a>(
        &self,
        step: impl FnOnce(&mut Table, StoreTime) -> Result<T, StoreError>,
    ) -> StoreFuture<'a, T> {
        ready(self.step(step)).boxed()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl LockStore for MemoryStore {
    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        request: Option<&'a QueueRequest>,
        _: Instant,
    ) -> StoreFuture<'a, Acquired> {
        self.at_once(|table, now| table.acquire(claim, attempt, request, now))
    }

    fn suspend<'a>(
        &'a self,
        claim: &'a Claim,
        keep: Duration,
        _: Instant,
    ) -> StoreFuture<'a, Suspended> {
        self.at_once(|table, now| Ok(table.suspend(claim, keep, now)))
    }

    fn withdraw<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        rollback: Rollback,
        _: Instant,
    ) -> StoreFuture<'a, ()> {
        self.at_once(|table, now| {
            table.withdraw(claim, attempt, rollback, now);
            Ok(())
        })
    }

    fn renew<'a>(
        &'a self,
        names: &'a LockNames,
        token: Token,
        change: RenewOptions,
        _: Instant,
    ) -> StoreFuture<'a, Renewed> {
        self.at_once(|table, now| Ok(table.renew(names, token, change, now)))
    }

    fn release<'a>(
        &'a self,
        names: &'a LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        _: Instant,
    ) -> StoreFuture<'a, Vec<Released>> {
        self.at_once(|table, now| Ok(table.release(names, token, hold_count, now)))
    }

    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        reason: &'a str,
        deadlines: Deadlines,
    ) -> StoreFuture<'a, Evicted> {
        self.evict(name, reason, deadlines).boxed()
    }

    fn inspect<'a>(&'a self, name: &'a LockName, _: Instant) -> StoreFuture<'a, LockView> {
        self.at_once(|table, now| Ok(table.inspect(name, now)))
    }

    fn list<'a>(&'a self, query: &'a ListQuery, deadlines: Deadlines) -> StoreFuture<'a, Listing> {
        self.list(query, deadlines).boxed()
    }

    fn refresh_health(&self) -> BoxFuture<'_, ()> {
        // Small steps, so that other requests and connections get their turn while millions of entries are due.
        async {
            while self.step(|table, now| table.sweep(now, SWEPT_PER_STEP)) {
                yield_now().await;
            }
        }
        .boxed()
    }

    /// The table keeps a count, so there is nothing to do.
    fn sweep(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            contacted: true,
            up: true,
            held_locks: Some(self.step(|table, _| table.held())),
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

    fn set_event_delivery(&self, wanted: bool) -> BoxFuture<'_, ()> {
        self.step(|table, _| table.notifications.wants_events = wanted);
        ready(()).boxed()
    }
}
