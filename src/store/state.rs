//! The embedded store's state machine: a pure function of the state, an operation and the time.
//!
//! Nothing here does I/O, reads a clock, draws random numbers or knows a runtime. Each method of [`State`] is one atomic
//! step. It returns the answer, the notifications to deliver and the rows that changed; the store that runs it
//! decides when an answer goes out, and what is written before. Of a token, only the [digest](ClaimDigest) is kept, as in
//! Redis.

mod acquire;
mod assign;
mod bytes;
mod claim;
mod cooldowns;
mod effects;
mod lease;
mod leases;
mod listing;
mod loading;
mod lock;
mod locks;
mod name_index;
mod receivers;
mod register;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod tombstones;
mod transitions;
mod wait_queue;
mod waiting;

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Add;
use std::time::Duration;

use super::assignment::{Assigned, FenceChange};
use super::{Finding, ListQuery, StoreError};
use crate::domain::{
    Acquired, Attempt, ClaimDigest, Holder, LockName, LockView, QueueRequest, Released,
    RenewOptions, Renewed, Rollback, StepBack, SuspendOptions, Suspended, Timestamp,
};
pub use bytes::{Downtime, InvalidRow};
pub use claim::{ClaimKey, ClaimKeys, KeyedClaim};
pub use effects::{Notification, Row};
pub use listing::ListingProgress;
pub use loading::{LoadTimes, Loading};
pub use rows::is_referred_to;
use table::{Table, WORK_PER_STEP};

/// How many due entries one operation clears away beside its own work. An operation on one lock creates fewer, so they
/// do not pile up; what operations on many locks leave behind is cleared by [`State::sweep`].
const SWEPT_PER_OPERATION: usize = 8;

/// A time on the store's clock, in microseconds since 1970. The clock must never go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(NonZeroU64);

impl StoreTime {
    /// Takes microseconds since 1970. The first of them counts as the second, so that an optional time takes no more
    /// memory than a time.
    #[must_use]
    pub fn from_unix_us(unix_us: u64) -> Self {
        Self(NonZeroU64::new(unix_us).unwrap_or(NonZeroU64::MIN))
    }

    /// Takes the time since 1970.
    #[must_use]
    pub fn at(since_1970: Duration) -> Self {
        Self::from_unix_us(micros(since_1970))
    }

    /// Microseconds since 1970.
    #[must_use]
    pub fn unix_us(self) -> u64 {
        self.0.get()
    }

    /// How long after `earlier` this is; zero if it is not after it.
    fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.unix_us().saturating_sub(earlier.unix_us()))
    }

    fn timestamp(self) -> Timestamp {
        Timestamp::from_unix_ms(self.unix_us() / 1_000)
    }

    fn plus_us(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }
}

impl Add<Duration> for StoreTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.plus_us(micros(duration))
    }
}

/// What a step did.
#[derive(Debug)]
pub struct StepResult<'a, T> {
    /// The answer.
    pub answer: T,
    /// What to deliver, in this order and after the notifications of all earlier steps.
    pub notifications: Vec<Notification>,
    /// The rows that changed or went, if [`State::list_changed_rows`] is on; a row may be there twice.
    pub changed: &'a [Row],
}

/// Leases, queues and tombstones of all locks.
pub struct State(Table);

impl State {
    /// An empty state that keeps at most `locks_max` leases and tickets at a time, counted as the configuration says.
    #[must_use]
    pub fn new(locks_max: usize) -> Self {
        Self(Table::new(locks_max))
    }

    /// How much of `locks_max` is used. Expired entries count until an operation or a sweep finds them.
    #[must_use]
    pub fn count_kept(&self) -> usize {
        self.0.count()
    }

    /// Whether there is room for another claim.
    pub(in crate::store) fn room(&self) -> Finding {
        let (kept, locks_max) = (self.0.count(), self.0.locks_max);
        let is_fine = kept < locks_max;
        let what_then = match is_fine {
            true => "",
            false => ", so new claims are refused; raise it, or release leases",
        };
        Finding {
            topic: "room",
            is_fine,
            detail: format!("{kept} of memory.locks_max = {locks_max} are used{what_then}"),
        }
    }

    /// Sets whether steps return the rows that they changed. While they do not, this costs nothing.
    pub fn list_changed_rows(&mut self, wanted: bool) {
        self.0.effects.lists_rows = wanted;
    }

    /// Sets whether claims are admitted that need more room. Without it, a claim that waits already can still be granted
    /// its locks.
    pub fn admit_claims(&mut self, admitted: bool) {
        self.0.admits_claims = admitted;
    }

    /// Sets whether notifications are delivered late. While they are, a waiter that has not answered may not have been told
    /// that a lock is reserved for it, so that none is passed over.
    pub fn deliver_late(&mut self, is_late: bool) {
        self.0.effects.is_late = is_late;
    }

    fn step<T>(
        &mut self,
        now: StoreTime,
        operation: impl FnOnce(&mut Table) -> T,
    ) -> StepResult<'_, T> {
        let table = &mut self.0;
        table.begin_step();
        table.sweep(now, SWEPT_PER_OPERATION);
        let answer = operation(table);
        table.finish_step(now);
        StepResult {
            answer,
            notifications: table.effects.take_notifications(),
            changed: table.effects.rows(),
        }
    }

    /// Sets whether steps return events.
    pub fn set_event_delivery(&mut self, now: StoreTime, wanted: bool) -> StepResult<'_, ()> {
        self.step(now, |table| table.effects.wants_events = wanted)
    }

    /// How many locks are held; an expired one counts until an operation or a sweep finds it.
    pub fn held(&mut self, now: StoreTime) -> StepResult<'_, u64> {
        self.step(now, |table| table.held())
    }

    /// Grants its locks to the claim, enqueues it, or returns what is in the way.
    pub fn acquire(
        &mut self,
        now: StoreTime,
        claim: &KeyedClaim<'_>,
        attempt: Attempt,
        request: Option<&QueueRequest>,
    ) -> StepResult<'_, Result<Acquired, StoreError>> {
        self.step(now, |table| table.acquire(claim, attempt, request, now))
    }

    /// Gives the leases of the claim the fencing tokens that were decided for them.
    pub fn assign_fences(
        &mut self,
        now: StoreTime,
        claim: &KeyedClaim<'_>,
        changes: &[FenceChange],
    ) -> StepResult<'_, Assigned> {
        self.step(now, |table| table.assign_fences(claim, changes, now))
    }

    /// Removes a waiting claim from the waiters and keeps its place for a while.
    pub fn suspend(
        &mut self,
        now: StoreTime,
        claim: &KeyedClaim<'_>,
        options: SuspendOptions,
    ) -> StepResult<'_, Suspended> {
        self.step(now, |table| table.suspend(claim, options, now))
    }

    /// Rolls back what the attempt was granted or took over. Returns how many leases that ended.
    pub fn withdraw(
        &mut self,
        now: StoreTime,
        claim: &KeyedClaim<'_>,
        attempt: Attempt,
        rollback: Rollback,
    ) -> StepResult<'_, usize> {
        self.step(now, |table| table.withdraw(claim, attempt, rollback, now))
    }

    /// Extends the leases on all of these locks, or on none.
    pub fn renew(
        &mut self,
        now: StoreTime,
        keys: &ClaimKeys,
        change: RenewOptions,
    ) -> StepResult<'_, Renewed> {
        self.step(now, |table| table.renew(keys, change, now))
    }

    /// Ends the claim on each of these locks, or lowers its hold count. The keys are those of the token.
    pub fn release(
        &mut self,
        now: StoreTime,
        keys: &ClaimKeys,
        step_back: Option<StepBack>,
    ) -> StepResult<'_, Vec<Released>> {
        self.step(now, |table| table.release(keys, step_back, now))
    }

    /// The holders of the lock, to be evicted in steps, and for how long `lock_delay` keeps the lock closed afterwards if
    /// one of them has it alone.
    pub fn begin_eviction(
        &mut self,
        now: StoreTime,
        name: &LockName,
    ) -> StepResult<'_, (Vec<ClaimDigest>, Duration)> {
        self.step(now, |table| table.begin_eviction(name, now))
    }

    /// One step of an eviction: evicts those of these claims that hold the lock.
    pub fn evict(
        &mut self,
        now: StoreTime,
        name: &LockName,
        claims: &[ClaimDigest],
        reason: &str,
    ) -> StepResult<'_, Vec<Holder>> {
        self.step(now, |table| table.evict_some(name, claims, reason, now))
    }

    /// Some claims of an eviction that the store has missed: they are evicted, and refused from now on. What they held stays
    /// closed as if that had been so long ago; if nobody has the lock then, all of it until `closed_for` after that.
    pub fn evict_missed(
        &mut self,
        now: StoreTime,
        name: &LockName,
        claims: &[ClaimDigest],
        reason: &str,
        ago: Duration,
        closed_for: Duration,
    ) -> StepResult<'_, ()> {
        self.step(now, |table| {
            table.evict_missed(name, claims, reason, ago, closed_for, now)
        })
    }

    /// The state of the lock.
    pub fn inspect(&mut self, now: StoreTime, name: &LockName) -> StepResult<'_, LockView> {
        self.step(now, |table| table.inspect(name, now))
    }

    /// One step of a listing.
    pub fn list(
        &mut self,
        now: StoreTime,
        query: &ListQuery,
        page: &mut ListingProgress,
    ) -> StepResult<'_, ()> {
        self.step(now, |table| table.list_some(query, page, now))
    }

    /// Clears away a bounded number of due entries. Returns whether there may be more.
    pub fn sweep(&mut self, now: StoreTime) -> StepResult<'_, bool> {
        self.step(now, |table| table.sweep(now, WORK_PER_STEP))
    }

    /// Ends a bounded part of what has expired on these locks. Returns whether that was all: then an operation on them at
    /// the same time ends nothing more. Otherwise it ends all the rest, however long that takes, except [`renew`](Self::renew),
    /// [`release`](Self::release), [`withdraw`](Self::withdraw) and [`list`](Self::list), which are always bounded.
    pub fn expire_due(&mut self, now: StoreTime, names: &[LockName]) -> StepResult<'_, bool> {
        if !self.0.is_any_due(now) {
            return StepResult {
                answer: true,
                notifications: Vec::new(),
                changed: &[],
            };
        }
        self.step(now, |table| table.expire_due(names, now))
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

/// The duration in microseconds.
fn micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(duration.subsec_micros()))
}
