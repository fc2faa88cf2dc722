//! The whole state, and what all operations have in common: to bring locks up to date, to make room, to finish a step.
//!
//! A step first expires what is due on each of its locks, so that it sees the present state. It records the locks that
//! it touched; [`Table::finish_step`] then brings their reservations and due times up to date. What it expires besides is
//! bounded by [`WORK_PER_STEP`], because all other requests wait meanwhile.

use super::StoreTime;
use super::claim::{NameLists, Text, Texts};
use super::effects::{Effects, Row};
use super::lock::{Lock, LockConflict};
use super::locks::Locks;
use super::locks::SlabKey;
use super::tombstones::Tombstones;
use super::wait_queue::WaitQueue;
use super::{ClaimKey, KeyedClaim};
use crate::domain::{Bucket, LockName, LockState, LockView, Queue};
use crate::store::{Fault, StoreError};

/// How much one step expires beside its own operation, in leases, cool-downs, tickets, tombstones, and locks that it looks
/// at. Each takes one to three microseconds when there are millions of them.
pub(super) const WORK_PER_STEP: usize = 64;

/// The same before a claim is refused for lack of room, which is more than the largest claim counts.
const WORK_WHEN_FULL: usize = 4 * WORK_PER_STEP;

/// More has expired on a lock than one step may end.
pub(super) struct ExpiryBacklog;

/// Locks, tombstones and fencing counters.
pub(super) struct Table {
    pub(super) locks: Locks,
    pub(super) tombstones: Tombstones,
    pub(super) effects: Effects,
    /// The last fencing token of each bucket.
    pub(super) fences: Box<[u64]>,
    /// The last sequence number in any queue.
    pub(super) last_sequence: u64,
    /// Locks that have changed in this step.
    touched: Vec<SlabKey>,
    /// How much this step may still expire beside its own operation.
    work_left: usize,
    held: u64,
    /// How much of `locks_max` all locks use.
    counted: usize,
    /// The texts of claims that have rows of their own.
    pub(super) texts: Texts,
    /// The names of claims that wait for several locks.
    pub(super) name_lists: NameLists,
    pub(super) locks_max: usize,
    /// Whether there is room for more claims where the state is written.
    pub(super) admits_claims: bool,
}

impl Table {
    pub(super) fn new(locks_max: usize) -> Self {
        Self {
            locks: Locks::new(),
            tombstones: Tombstones::at_most(locks_max),
            effects: Effects::default(),
            fences: vec![0; Bucket::COUNT].into_boxed_slice(),
            last_sequence: 0,
            touched: Vec::new(),
            work_left: 0,
            held: 0,
            counted: 0,
            texts: Texts::default(),
            name_lists: NameLists::default(),
            locks_max,
            admits_claims: true,
        }
    }

    /// How many locks are held; an expired one counts until an operation or a sweep finds it.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn inspect(&mut self, name: &LockName, now: StoreTime) -> LockView {
        match self.find(name, now) {
            Some(slot) => self.locks[slot].view(now),
            None => LockView::new(name.clone(), LockState::Free, Queue::default()),
        }
    }

    /// The queue of a lock, if a claim waits there or has its place kept.
    pub(super) fn queue(&self, name: &LockName) -> Option<&WaitQueue> {
        self.locks.get(name)?.queue()
    }

    /// The same for changes.
    pub(super) fn queue_mut(&mut self, name: &LockName) -> Option<&mut WaitQueue> {
        let (slot, lock) = self.locks.get_mut(name)?;
        let queue = lock.queue_mut()?;
        self.touched.push(slot);
        Some(queue)
    }

    /// How much of `locks_max` is used.
    pub(super) fn count(&self) -> usize {
        self.counted + self.texts.count()
    }

    /// Returns the claim's text if there is room for the claim to hold its locks, or to wait for them. A waiting claim
    /// already has the room that it needs to hold.
    pub(super) fn make_room(
        &mut self,
        claim: &KeyedClaim<'_>,
        now: StoreTime,
    ) -> Result<Text, StoreError> {
        if !self.admits_claims && !self.waits_for_all(claim) {
            let detail = "the disk is full";
            return Err(StoreError::unavailable(Fault::Full, detail));
        }
        let text = self.text(claim);
        if self.has_room(claim) {
            return Ok(text);
        }
        // Expired entries may still take room when many became due at once.
        self.sweep(now, WORK_WHEN_FULL);
        if self.has_room(claim) {
            return Ok(text);
        }
        let detail = format!("memory.locks_max = {} is reached", self.locks_max);
        Err(StoreError::unavailable(Fault::Limit, detail))
    }

    /// The text that the claim waits with, if it is unchanged, or a new one, which counts at once.
    pub(super) fn text(&self, claim: &KeyedClaim<'_>) -> Text {
        let waits_with = || {
            let mut keys = claim.keys.iter();
            keys.find_map(|key| {
                let ticket = self.queue(&key.name)?.ticket(key.claim)?;
                ticket.text.is_of(claim).then(|| ticket.text.clone())
            })
        };
        let (owner, metadata) = (&claim.owner, claim.metadata.as_ref());
        Text::of_owner_alone(owner, metadata)
            .or_else(waits_with)
            .unwrap_or_else(|| Text::whole(owner, metadata, &self.texts))
    }

    /// Whether the claim has a ticket with its text in the queue of each of its locks, which takes as much room as a lease.
    fn waits_for_all(&self, claim: &KeyedClaim<'_>) -> bool {
        claim.keys.iter().all(|key| {
            let queue = self.queue(&key.name);
            let ticket = queue.and_then(|queue| queue.ticket(key.claim));
            ticket.is_some_and(|ticket| ticket.text.is_of(claim))
        })
    }

    /// Whether there is room for the locks of a claim whose text is already counted.
    fn has_room(&self, claim: &KeyedClaim<'_>) -> bool {
        let count = self.count();
        if count + claim.keys.len() <= self.locks_max {
            return true;
        }
        let more = claim
            .keys
            .iter()
            .map(|key| match self.locks.get(&key.name) {
                Some(lock) => {
                    let ticket = lock.queue().and_then(|queue| queue.ticket(key.claim));
                    lock.count_with(usize::from(ticket.is_none())) - lock.count()
                }
                None => 1,
            });
        count + more.sum::<usize>() <= self.locks_max
    }

    /// Begins a step.
    pub(super) fn begin_step(&mut self) {
        self.effects.clear();
        self.work_left = WORK_PER_STEP;
    }

    /// Clears away due entries, but hardly more than `left`. Returns whether there may be more.
    pub(super) fn sweep(&mut self, now: StoreTime, mut left: usize) -> bool {
        while left > 0 {
            let due = self.locks.first_due(now);
            if let Some(slot) = due {
                let looks = self.locks[slot].looks();
                self.expire_some(slot, now, &mut left);
                left = left.saturating_sub(looks);
            }
            let has_forgotten = self.tombstones.forget(now, &mut self.effects);
            if !has_forgotten && due.is_none() {
                return false;
            }
            left = left.saturating_sub(usize::from(has_forgotten));
        }
        true
    }

    /// Brings these locks up to date as far as one step may. Returns whether they are.
    pub(super) fn expire_due(&mut self, names: &[LockName], now: StoreTime) -> bool {
        let mut names = names.iter();
        names.all(|name| self.find_in_bounds(name, now).is_ok())
    }

    /// Whether something may be due on some lock.
    pub(super) fn is_any_due(&self, now: StoreTime) -> bool {
        self.locks.first_due(now).is_some()
    }

    /// Finds a lock and brings it up to date. Its slot is not used otherwise before the end of the step, unless the lock
    /// turns out to be free.
    pub(super) fn find(&mut self, name: &LockName, now: StoreTime) -> Option<SlabKey> {
        let slot = self.locks.find(name)?;
        self.expire_some(slot, now, &mut { usize::MAX })
            .then_some(slot)
    }

    /// The same within the bounds of the step.
    pub(super) fn find_in_bounds(
        &mut self,
        name: &LockName,
        now: StoreTime,
    ) -> Result<Option<SlabKey>, ExpiryBacklog> {
        let Some(slot) = self.locks.find(name) else {
            return Ok(None);
        };
        if self.locks[slot].scheduled.is_none_or(|at| at > now) {
            return Ok(Some(slot));
        }
        if self.work_left == 0 {
            return Err(ExpiryBacklog);
        }
        let mut left = self.work_left;
        let exists = self.expire_some(slot, now, &mut left);
        self.work_left = left.saturating_sub(1);
        match exists && self.locks[slot].is_due(now) {
            true => Err(ExpiryBacklog),
            false => Ok(exists.then_some(slot)),
        }
    }

    /// Finds a lock for an operation on one claim, and brings it up to date as far as that claim is concerned.
    pub(super) fn find_for(&mut self, key: &ClaimKey, now: StoreTime) -> Option<SlabKey> {
        if let Ok(slot) = self.find_in_bounds(&key.name, now) {
            return slot;
        }
        let slot = self.locks.find(&key.name)?;
        let (lock, effects) = (&mut self.locks[slot], &mut self.effects);
        lock.expire_ticket(key.claim, now, effects);
        if let Some(record) = lock.expire_lease(key.claim, now, effects) {
            self.tombstones.remember_expired(&record, effects);
        }
        self.touch(slot);
        Some(slot)
    }

    /// Ends what has expired on a lock, but at most `left` entries, which it counts down. Returns whether the lock still
    /// has an entry.
    fn expire_some(&mut self, slot: SlabKey, now: StoreTime, left: &mut usize) -> bool {
        let lock = &mut self.locks[slot];
        if lock.scheduled.is_none_or(|at| at > now) {
            return true;
        }
        while *left > 0
            && let Some(record) = lock.expire_one(now, &mut self.effects)
        {
            self.tombstones.remember_expired(&record, &mut self.effects);
            *left -= 1;
        }
        lock.advance(now, left, &mut self.effects);
        debug_assert!(*left == 0 || !lock.is_due(now), "nothing stays due");
        self.locks.unschedule(slot);
        let exists = self.reschedule(slot);
        if exists {
            self.touched.push(slot);
        }
        exists
    }

    /// Records that this step has changed something about the lock.
    pub(super) fn touch(&mut self, slot: SlabKey) {
        self.touched.push(slot);
    }

    /// Ends a step: reserves locks that opened, updates the due times, and drops entries of free locks.
    pub(super) fn finish_step(&mut self, now: StoreTime) {
        while let Some(slot) = self.touched.pop() {
            // A lock may be touched several times, and its entry dropped at the first.
            let is_there = self.locks.at_mut(slot).is_some();
            if is_there && self.reschedule(slot) && self.locks[slot].queue().is_some() {
                self.reserve(slot, now);
                self.reschedule(slot);
            }
        }
        for number in self.texts.take_changed() {
            self.effects.changed(|| Row::Text(number));
        }
        for number in self.name_lists.take_changed() {
            self.effects.changed(|| Row::Names(number));
        }
    }

    /// Reserves the lock for the head waiter if a poll of it would now end its wait. While one of the waiter's locks is not
    /// up to date, nothing is known, and what is due on it will touch it again.
    fn reserve(&mut self, slot: SlabKey, now: StoreTime) {
        if self.locks[slot].is_due(now) {
            return;
        }
        let first = self.locks[slot].queue().and_then(WaitQueue::first);
        let Some(first) = first else {
            return;
        };
        let (sequence, mode, names) = (first.sequence, first.mode, first.names.clone());
        let ends_wait = names.iter().all(|name| {
            let slot = match self.find_in_bounds(name, now) {
                Ok(Some(slot)) => slot,
                Ok(None) => return true,
                Err(ExpiryBacklog) => return false,
            };
            let lock: &Lock = &self.locks[slot];
            // A mismatch ends the wait too, and makes room for the rest of the queue.
            let admits = lock.conflict_with(mode) != Some(LockConflict::Taken);
            admits && lock.is_turn_of(Some(sequence))
        });
        let Some(lock) = self.locks.at_mut(slot) else {
            return;
        };
        let queue = lock.queue_mut();
        if queue.is_some_and(|queue| queue.reserve(ends_wait, now)) {
            self.effects.reserved(&lock.name);
        }
    }

    /// Updates counts and due time of one lock, and drops the entry of a free one. Returns whether it stays.
    fn reschedule(&mut self, slot: SlabKey) -> bool {
        let lock = &mut self.locks[slot];
        lock.shrink();
        let is_held = !lock.leases.is_empty();
        if is_held != lock.is_counted {
            lock.is_counted = is_held;
            self.held = self.held + u64::from(is_held) - u64::from(!is_held);
        }
        let due = lock.due();
        let count = if due.is_some() { lock.count() } else { 0 };
        let before = std::mem::replace(&mut lock.counted, saturated(count));
        self.counted = self.counted + count - before as usize;
        match due {
            Some(due) => self.locks.schedule(slot, due),
            None => self.locks.remove(slot),
        }
        due.is_some()
    }
}

/// No lock counts more than memory has room for.
fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
