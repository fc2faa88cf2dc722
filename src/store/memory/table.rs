//! The whole state of the embedded store: how it is updated and read.
//!
//! A step first expires what is due on each of its locks, so that it sees the present state. It records the locks that
//! it touched; [`Table::finish_step`] then brings their reservations and timetable entries up to date.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tokio::time::Instant;

use super::clock::StoreTime;
use super::lock::{Lock, Obstruction};
use super::notifications::Notifications;
use super::text::Text;
use super::tombstones::Tombstones;
use super::wait_queue::WaitQueue;
use crate::domain::{
    Bucket, Claim, EventKind, Listing, LockName, LockState, LockView, PageRoom, Queue,
};
use crate::limits::Budget;
use crate::store::{Fault, ListQuery, StoreError};

/// How many due locks are swept before a claim is refused for lack of room.
const SWEPT_WHEN_FULL: usize = 256;

/// How many locks one step of a listing visits.
const LISTED_PER_STEP: usize = 100;

/// Locks, tombstones, and the timetable of what is due when.
pub(super) struct Table {
    pub(super) locks: BTreeMap<LockName, Lock>,
    pub(super) tombstones: Tombstones,
    pub(super) notifications: Notifications,
    /// The last fencing token of each bucket.
    pub(super) fences: Box<[u64]>,
    /// The last sequence number in any queue.
    pub(super) last_sequence: u64,
    /// When each lock is due: one entry per lock.
    timetable: BTreeSet<(Instant, LockName)>,
    /// Locks that have changed in this step.
    touched: Vec<LockName>,
    held: u64,
    /// How much of `locks_max` all locks use.
    counted: usize,
    /// How much the texts of claims use.
    counted_texts: Budget,
    locks_max: usize,
}

/// A page of a listing in progress.
pub(super) struct ListingProgress {
    pub(super) listing: Listing,
    pub(super) is_over: bool,
    room: PageRoom,
    /// The last lock visited.
    after: Option<LockName>,
}

impl ListingProgress {
    pub(super) fn new(query: &ListQuery) -> Self {
        Self {
            listing: Listing {
                locks: Vec::new(),
                next_after: None,
            },
            is_over: false,
            room: PageRoom::for_locks(query.page_size),
            after: None,
        }
    }
}

impl Table {
    pub(super) fn new(locks_max: usize) -> Self {
        Self {
            locks: BTreeMap::new(),
            tombstones: Tombstones::at_most(locks_max),
            notifications: Notifications::default(),
            fences: vec![0; Bucket::COUNT].into_boxed_slice(),
            last_sequence: 0,
            timetable: BTreeSet::new(),
            touched: Vec::new(),
            held: 0,
            counted: 0,
            counted_texts: Budget::new(locks_max),
            locks_max,
        }
    }

    /// How many locks are held; an expired one counts until an operation or a sweep finds it.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn inspect(&mut self, name: &LockName, now: StoreTime) -> LockView {
        self.expire_due(name, now);
        match self.locks.get(name) {
            Some(lock) => lock.view(name, now),
            None => LockView {
                name: name.clone(),
                state: LockState::Free,
                queue: Queue::default(),
            },
        }
    }

    /// One step of a listing: visits some locks after those of the earlier steps.
    pub(super) fn list_some(
        &mut self,
        query: &ListQuery,
        page: &mut ListingProgress,
        now: StoreTime,
    ) {
        for _ in 0..LISTED_PER_STEP {
            let after = page.after.as_ref().or(query.after.as_ref());
            let Some(name) = self.next_name(&query.prefix, after) else {
                page.is_over = true;
                return;
            };
            self.expire_due(&name, now);
            let contended = self.locks.get(&name).filter(|lock| lock.is_contended());
            if let Some(lock) = contended {
                let view = lock.view(&name, now);
                if !page.room.take(&view) {
                    page.listing.next_after =
                        page.listing.locks.last().map(|last| last.name.clone());
                    page.is_over = true;
                    return;
                }
                page.listing.locks.push(view);
            }
            page.after = Some(name);
        }
    }

    /// The next lock with this prefix, held or not.
    fn next_name(&self, prefix: &str, after: Option<&LockName>) -> Option<LockName> {
        let start = match after.map(LockName::as_str) {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let (name, _) = self
            .locks
            .range::<str, _>((start, Bound::Unbounded))
            .next()?;
        name.as_str().starts_with(prefix).then(|| name.clone())
    }

    /// The queue of a lock, if a claim waits there or has its place kept.
    pub(super) fn queue(&self, name: &LockName) -> Option<&WaitQueue> {
        self.locks.get(name)?.queue.as_deref()
    }

    pub(super) fn queue_mut(&mut self, name: &LockName) -> Option<&mut WaitQueue> {
        self.locks.get_mut(name)?.queue.as_deref_mut()
    }

    /// How much of `locks_max` is used.
    pub(super) fn count(&self) -> usize {
        self.counted + self.counted_texts.used()
    }

    /// Returns the claim's text if there is room for the claim to hold its locks, or to wait for them. A waiting claim
    /// already has the room that it needs to hold.
    pub(super) fn make_room(&mut self, claim: &Claim, now: StoreTime) -> Result<Text, StoreError> {
        let text = self.text(claim);
        if self.has_room(claim) {
            return Ok(text);
        }
        // Expired entries may still take room when many became due at once.
        self.sweep(now, SWEPT_WHEN_FULL);
        if self.has_room(claim) {
            return Ok(text);
        }
        let detail = format!("memory.locks_max = {} is reached", self.locks_max);
        Err(StoreError::unavailable(Fault::Limit, detail))
    }

    /// The text that the claim waits with, if it is unchanged, or a new one, which counts at once.
    fn text(&self, claim: &Claim) -> Text {
        let waits_with = || {
            let of_ticket = |name| Some(&self.queue(name)?.ticket(claim.token)?.text);
            let mut texts = claim.names.iter().filter_map(of_ticket);
            texts.find(|text| text.is_of(claim)).cloned()
        };
        Text::of_owner_alone(claim)
            .or_else(waits_with)
            .unwrap_or_else(|| Text::whole(claim, &self.counted_texts))
    }

    /// Whether there is room for the locks of a claim whose text is already counted.
    fn has_room(&self, claim: &Claim) -> bool {
        let more = |name: &LockName| match self.locks.get(name) {
            Some(lock) => {
                let waits = lock.queue.as_ref().map(|queue| queue.ticket(claim.token));
                let is_new = waits.flatten().is_none();
                lock.count_with(usize::from(is_new)) - lock.count()
            }
            None => 1,
        };
        let count = self.count();
        count + claim.names.len() <= self.locks_max
            || count + claim.names.iter().map(more).sum::<usize>() <= self.locks_max
    }

    /// Clears away at most `most` due entries. Returns whether there may be more.
    pub(super) fn sweep(&mut self, now: StoreTime, most: usize) -> bool {
        for _ in 0..most {
            let lock = self.timetable.first().filter(|(at, _)| *at <= now.instant);
            let is_any = match lock.map(|(_, name)| name.clone()) {
                Some(name) => {
                    self.expire_due(&name, now);
                    true
                }
                None => false,
            };
            if !self.tombstones.forget(now) && !is_any {
                return false;
            }
        }
        true
    }

    /// Brings a lock up to date: ends everything that has expired.
    pub(super) fn expire_due(&mut self, name: &LockName, now: StoreTime) {
        let Some(lock) = self.locks.get_mut(name) else {
            return;
        };
        if lock.scheduled.is_none_or(|at| at > now.instant) {
            return;
        }
        while let Some(record) = lock.expire_one(now) {
            self.tombstones.remember_expired(name, &record);
            self.notifications
                .event(EventKind::Expired, name, &record, now);
        }
        lock.advance(now);
        debug_assert!(
            lock.due().is_none_or(|at| at > now.instant),
            "nothing stays due"
        );
        self.reschedule(name);
        self.touched.push(name.clone());
    }

    /// Records that this step has changed something about the lock.
    pub(super) fn touch(&mut self, name: &LockName) {
        self.touched.push(name.clone());
    }

    /// Ends a step: reserves locks that opened, updates the timetable, and drops entries of free locks.
    pub(super) fn finish_step(&mut self, now: StoreTime) {
        while let Some(name) = self.touched.pop() {
            let is_waited_for = self.reschedule(&name);
            if is_waited_for {
                self.reserve(&name, now);
                self.reschedule(&name);
            }
        }
    }

    /// Reserves the lock for the head waiter if a poll of it would now end its wait.
    fn reserve(&mut self, name: &LockName, now: StoreTime) {
        let Some(first) = self.queue(name).and_then(WaitQueue::first) else {
            return;
        };
        let (sequence, mode, names) = (first.sequence, first.mode, first.names.clone());
        let is_answered = names.iter().all(|name| {
            self.expire_due(name, now);
            let Some(lock) = self.locks.get(name) else {
                return true;
            };
            // A mismatch ends the wait too, and makes room for the rest of the queue.
            let admits = lock.obstruction(mode) != Some(Obstruction::Taken);
            admits && lock.is_turn_of(Some(sequence))
        });
        let is_new = self
            .queue_mut(name)
            .is_some_and(|queue| queue.reserve(is_answered, now));
        if is_new {
            self.notifications.reserved(name);
        }
    }

    /// Updates the timetable for one lock, and drops the entry of a free one. Returns whether the lock is waited for.
    fn reschedule(&mut self, name: &LockName) -> bool {
        let Entry::Occupied(mut entry) = self.locks.entry(name.clone()) else {
            return false;
        };
        let lock = entry.get_mut();
        lock.queue.take_if(|queue| queue.is_empty());
        let is_waited_for = lock.queue.is_some();
        let is_held = !lock.leases.is_empty();
        if is_held != lock.is_counted {
            lock.is_counted = is_held;
            self.held = self.held + u64::from(is_held) - u64::from(!is_held);
        }
        let (before, due) = (lock.scheduled, lock.due());
        lock.scheduled = due;
        if before != due {
            if let Some(before) = before {
                self.timetable.remove(&(before, name.clone()));
            }
            if let Some(due) = due {
                self.timetable.insert((due, name.clone()));
            }
        }
        let count = if due.is_some() { lock.count() } else { 0 };
        self.counted = self.counted + count - lock.counted;
        lock.counted = count;
        if due.is_none() {
            entry.remove();
        }
        is_waited_for
    }
}
