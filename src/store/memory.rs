//! The embedded store: the reference meaning of the contract, in one process, on its monotonic clock.
//!
//! Nothing here survives the process and nothing here waits. The clock is tokio's, so tests can stop it.

mod grant;
mod table;

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio::time::Instant;

use super::{Finding, ListQuery, LockStore, StoreError, StoreFuture, StoreHealth};
use crate::domain::{
    Acquired, Attempt, Claim, HoldCount, Holder, Listing, LockName, LockView, Released, Renewed,
    Timestamp, Token, Ttl,
};
use table::Table;

/// How many due entries one operation clears away beside its own work. Every operation makes at most two, so the
/// entries that are due never pile up.
const SWEPT_PER_OPERATION: usize = 4;

/// Leases in this process's memory.
pub struct MemoryStore {
    table: Mutex<Table>,
    clock: Clock,
}

impl MemoryStore {
    /// An empty store that holds at most `locks_max` locks at a time.
    #[must_use]
    pub fn new(locks_max: usize) -> Self {
        Self {
            table: Mutex::new(Table::new(locks_max)),
            clock: Clock::start(),
        }
    }

    /// Runs one atomic step at one moment.
    fn step<T>(&self, step: impl FnOnce(&mut Table, Moment) -> T) -> T {
        let mut table = self
            .table
            .lock()
            .expect("no step panics while it holds the table");
        // The clock is read under the lock, so that the order of steps is the order of their moments.
        let now = self.clock.now();
        table.sweep(now, SWEPT_PER_OPERATION);
        step(&mut table, now)
    }

    fn at_once<'a, T: Send + 'a>(
        &self,
        step: impl FnOnce(&mut Table, Moment) -> Result<T, StoreError>,
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
        _: Instant,
    ) -> StoreFuture<'a, Acquired> {
        self.at_once(|table, now| table.acquire(claim, attempt, now))
    }

    fn withdraw<'a>(
        &'a self,
        claim: &'a Claim,
        attempt: Attempt,
        _: Instant,
    ) -> StoreFuture<'a, ()> {
        self.at_once(|table, _| {
            table.withdraw(claim, attempt);
            Ok(())
        })
    }

    fn renew<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        ttl: Option<Ttl>,
        _: Instant,
    ) -> StoreFuture<'a, Renewed> {
        self.at_once(|table, now| Ok(table.renew(name, token, ttl, now)))
    }

    fn release<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        hold_count: Option<HoldCount>,
        _: Instant,
    ) -> StoreFuture<'a, Released> {
        self.at_once(|table, now| Ok(table.release(name, token, hold_count, now)))
    }

    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        reason: &'a str,
        _: Instant,
    ) -> StoreFuture<'a, Vec<Holder>> {
        self.at_once(|table, now| Ok(table.evict(name, reason, now)))
    }

    fn inspect<'a>(&'a self, name: &'a LockName, _: Instant) -> StoreFuture<'a, LockView> {
        self.at_once(|table, now| Ok(table.inspect(name, now)))
    }

    fn list<'a>(&'a self, query: &'a ListQuery, _: Instant) -> StoreFuture<'a, Listing> {
        self.at_once(|table, now| Ok(table.list(query, now)))
    }

    fn survey(&self) -> BoxFuture<'_, ()> {
        // Small steps, so that requests get in between while millions of entries are due.
        while self.step(|table, now| table.sweep(now, 256)) {}
        ready(()).boxed()
    }

    /// The table keeps count.
    fn count(&self) -> BoxFuture<'_, ()> {
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
}

/// A moment on this process's monotonic clock, and what to call it.
#[derive(Clone, Copy)]
struct Moment {
    instant: Instant,
    unix_us: u64,
}

impl Moment {
    /// Another moment, named by its distance from this one.
    fn timestamp_of(self, instant: Instant) -> Timestamp {
        let ahead_us = micros(instant.saturating_duration_since(self.instant));
        let behind_us = micros(self.instant.saturating_duration_since(instant));
        Timestamp::from_unix_ms((self.unix_us + ahead_us - behind_us) / 1_000)
    }
}

/// Wall time that never jumps: read once at the start, then carried on by the monotonic clock.
struct Clock {
    started: Instant,
    unix_us_at_start: u64,
}

impl Clock {
    fn start() -> Self {
        // A clock before 1970 is as good as 1970: the fencing tokens of a process begin anew with it.
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            unix_us_at_start: micros(since_1970),
        }
    }

    fn now(&self) -> Moment {
        let instant = Instant::now();
        Moment {
            instant,
            unix_us: self.unix_us_at_start + micros(instant - self.started),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
