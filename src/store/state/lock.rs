//! One lock's entry: its leases, its cool-downs and its queue. Other locks are not known here.

use std::time::Duration;

use super::StoreTime;
use super::cooldowns::Cooldowns;
use super::effects::Effects;
use super::lease::LeaseRecord;
use super::leases::Leases;
use super::wait_queue::WaitQueue;
#[cfg(test)]
use super::{claim::ClaimKey, effects::Row};
use crate::domain::{
    AnswerRoom, ClaimDigest, EventKind, Fence, LockName, LockState, LockView, Mode, Queue,
};
use crate::store::TOMBSTONE_TTL;

/// The state of a lock that is not simply free.
pub(super) struct Lock {
    pub(super) name: LockName,
    pub(super) leases: Leases,
    /// Boxed, because most locks have nothing of it.
    details: Option<Box<Details>>,
    /// The lock's entry among the due times.
    pub(super) scheduled: Option<StoreTime>,
    /// How much of `locks_max` the table counts for the lock.
    pub(super) counted: u32,
    /// Whether the table counts the lock as held.
    pub(super) is_counted: bool,
}

/// What is left of ended leases, and the queue.
#[derive(Default)]
struct Details {
    cooldowns: Cooldowns,
    last_expired: Option<LastExpired>,
    queue: Option<Box<WaitQueue>>,
}

/// The last exclusive lease, if it expired and the lock has not been granted since.
#[derive(Debug)]
pub(super) struct LastExpired {
    pub(super) claim: ClaimDigest,
    pub(super) until: StoreTime,
    pub(super) held_for: Duration,
}

/// What keeps a lock from a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LockConflict {
    /// Leases or cool-downs.
    Taken,
    /// The holders use this limit, which is not the claim's.
    OtherLimit(Option<u32>),
    /// The queue.
    Waiters,
}

impl Lock {
    /// An entry that nothing is known of yet.
    pub(super) fn new(name: &LockName) -> Self {
        Self {
            name: name.clone(),
            leases: Leases::None,
            details: None,
            scheduled: None,
            counted: 0,
            is_counted: false,
        }
    }

    pub(super) fn queue(&self) -> Option<&WaitQueue> {
        self.details.as_ref()?.queue.as_deref()
    }

    pub(super) fn queue_mut(&mut self) -> Option<&mut WaitQueue> {
        self.details.as_mut()?.queue.as_deref_mut()
    }

    /// The queue, made if there is none.
    pub(super) fn queue_or_new(&mut self) -> &mut WaitQueue {
        let queue = &mut self.details.get_or_insert_default().queue;
        queue.get_or_insert_with(|| Box::new(WaitQueue::new()))
    }

    /// What keeps the lock from a claim in this mode, apart from the queue.
    pub(super) fn conflict_with(&self, mode: Mode) -> Option<LockConflict> {
        match (self.mode()?, mode) {
            (Mode::Shared(held), Mode::Shared(requested)) if held.limit() == requested.limit() => {
                let taken = self.taken() + u64::from(requested.permits());
                let is_too_much = requested
                    .limit()
                    .is_some_and(|limit| taken > u64::from(limit));
                is_too_much.then_some(LockConflict::Taken)
            }
            // Only current holders enforce their limit; a cool-down will pass.
            (Mode::Shared(held), Mode::Shared(_)) if !self.leases.is_empty() => {
                Some(LockConflict::OtherLimit(held.limit()))
            }
            (Mode::Shared(_) | Mode::Exclusive, Mode::Shared(_) | Mode::Exclusive) => {
                Some(LockConflict::Taken)
            }
        }
    }

    /// The mode of all leases and cool-downs; they never differ.
    fn mode(&self) -> Option<Mode> {
        let cooling = || self.details.as_ref()?.cooldowns.mode();
        self.leases.mode().or_else(cooling)
    }

    /// How many permits the leases and cool-downs take together.
    fn taken(&self) -> u64 {
        let details = self.details.as_ref();
        self.leases.permits() + details.map_or(0, |details| details.cooldowns.permits())
    }

    /// Whether no waiter precedes a claim with this sequence number, or a claim that has none.
    pub(super) fn is_turn_of(&self, sequence: Option<u64>) -> bool {
        self.queue().is_none_or(|queue| queue.is_turn_of(sequence))
    }

    /// When the next lease or cool-down ends.
    pub(super) fn next_change_at(&self) -> Option<StoreTime> {
        let held = self.leases.first().map(|record| record.until);
        let details = self.details.as_ref();
        let kept = details.and_then(|details| details.cooldowns.first_end());
        held.into_iter().chain(kept).min()
    }

    pub(super) fn admit(&mut self, record: LeaseRecord, effects: &mut Effects) {
        debug_assert!(
            self.conflict_with(record.mode()).is_none(),
            "the lock is taken"
        );
        effects.lease_changed(&self.name, record.claim);
        self.leases.insert(record);
    }

    /// Ends a lease; what it took stays taken until `kept`, which may be past.
    pub(super) fn end(
        &mut self,
        claim: ClaimDigest,
        kept: StoreTime,
        now: StoreTime,
        effects: &mut Effects,
    ) -> Option<LeaseRecord> {
        let record = self.leases.remove(claim)?;
        self.keep_taken(&record, kept, now, effects);
        Some(record)
    }

    /// Keeps taken what a lease took that has just ended.
    fn keep_taken(
        &mut self,
        record: &LeaseRecord,
        kept: StoreTime,
        now: StoreTime,
        effects: &mut Effects,
    ) {
        effects.lease_changed(&self.name, record.claim);
        if kept > now {
            self.add_cooldown(kept, record.fence, record.mode());
            effects.cooldown_changed(&self.name, kept, record.fence);
        }
    }

    /// Frees at once what an ended lease keeps taken until `kept`.
    pub(super) fn end_cooldown(&mut self, kept: StoreTime, fence: Fence, effects: &mut Effects) {
        if let Some(details) = self.details.as_deref_mut()
            && details.cooldowns.remove(kept, fence).is_some()
        {
            effects.cooldown_changed(&self.name, kept, fence);
        }
    }

    /// What an ended lease keeps taken until this time.
    pub(super) fn cooldown(&self, until: StoreTime, fence: Fence) -> Option<Mode> {
        self.details.as_ref()?.cooldowns.get(until, fence)
    }

    /// What ended leases keep taken, by their fencing tokens.
    pub(super) fn cooldowns(&self) -> impl Iterator<Item = (Fence, Mode)> {
        let details = self.details.iter();
        let cooldowns = details.flat_map(|details| details.cooldowns.iter());
        cooldowns.map(|(_, fence, mode)| (fence, mode))
    }

    /// Adds a cool-down, which the caller keeps or has loaded.
    pub(super) fn add_cooldown(&mut self, until: StoreTime, fence: Fence, mode: Mode) {
        let details = self.details.get_or_insert_default();
        details.cooldowns.insert(until, fence, mode);
    }

    /// Keeps the lock closed until then at least, if nobody has it and no cool-down of a share keeps a part of it taken.
    pub(super) fn keep_closed(&mut self, until: StoreTime, now: StoreTime, effects: &mut Effects) {
        let is_shared = matches!(self.mode(), Some(Mode::Shared(_)));
        let details = self.details.as_ref();
        let closed_until = details.and_then(|details| details.cooldowns.last_end());
        if self.leases.is_empty() && !is_shared && until > closed_until.unwrap_or(now) {
            let no_lease = Fence::new(0).expect("it is not too large");
            self.add_cooldown(until, no_lease, Mode::Exclusive);
            effects.cooldown_changed(&self.name, until, no_lease);
        }
    }

    pub(super) fn last_expired(&self) -> Option<&LastExpired> {
        self.details.as_ref()?.last_expired.as_ref()
    }

    /// Puts back the last expired lease that was loaded.
    pub(super) fn restore_last_expired(&mut self, last_expired: LastExpired) {
        self.details.get_or_insert_default().last_expired = Some(last_expired);
    }

    /// Ends one lease that has expired.
    pub(super) fn expire_one(
        &mut self,
        now: StoreTime,
        effects: &mut Effects,
    ) -> Option<LeaseRecord> {
        let first = self.leases.first()?.claim;
        self.expire_lease(first, now, effects)
    }

    /// Ends the lease of a claim if it has expired.
    pub(super) fn expire_lease(
        &mut self,
        claim: ClaimDigest,
        now: StoreTime,
        effects: &mut Effects,
    ) -> Option<LeaseRecord> {
        self.leases
            .get(claim)
            .filter(|record| record.until <= now)?;
        let record = self.leases.remove(claim)?;
        self.keep_taken(&record, record.kept_after_expiry(), now, effects);
        if record.mode() == Mode::Exclusive {
            self.details.get_or_insert_default().last_expired = Some(LastExpired {
                claim: record.claim,
                until: record.until,
                held_for: record.until.since(record.acquired),
            });
            effects.last_expired_changed(&self.name);
        }
        effects.event(EventKind::Expired, &self.name, &record, now);
        Some(record)
    }

    /// Removes the last expired lease if it meets the condition.
    pub(super) fn take_last_expired_if(
        &mut self,
        condition: impl FnOnce(&LastExpired) -> bool,
        effects: &mut Effects,
    ) -> Option<LastExpired> {
        let last_expired = &mut self.details.as_mut()?.last_expired;
        let taken = last_expired.take_if(|expired| condition(expired))?;
        effects.last_expired_changed(&self.name);
        Some(taken)
    }

    /// Removes the ticket of a claim if it has expired.
    pub(super) fn expire_ticket(
        &mut self,
        claim: ClaimDigest,
        now: StoreTime,
        effects: &mut Effects,
    ) {
        if self
            .queue_mut()
            .is_some_and(|queue| queue.expire(claim, now))
        {
            effects.ticket_changed(&self.name, claim);
        }
    }

    /// Processes what else is due, but at most `left` cool-downs and tickets, which it counts down.
    pub(super) fn advance(&mut self, now: StoreTime, left: &mut usize, effects: &mut Effects) {
        let is_late = effects.is_late;
        let is_forgotten = |expired: &LastExpired| expired.until + TOMBSTONE_TTL <= now;
        self.take_last_expired_if(is_forgotten, effects);
        let Some(details) = self.details.as_deref_mut() else {
            return;
        };
        while *left > 0
            && let Some((until, fence)) = details.cooldowns.remove_ended(now)
        {
            effects.cooldown_changed(&self.name, until, fence);
            *left -= 1;
        }
        if let Some(queue) = &mut details.queue {
            queue.advance(now, left, is_late, |claim| {
                effects.ticket_changed(&self.name, claim);
            });
        }
    }

    /// Frees what is not used any more.
    pub(super) fn shrink(&mut self) {
        if let Some(details) = &mut self.details {
            details.queue.take_if(|queue| queue.is_empty());
            if details.is_empty() {
                self.details = None;
            }
        }
    }

    /// When something is due; none for a lock that needs no entry.
    pub(super) fn due(&self) -> Option<StoreTime> {
        let next_change = self.next_change_at();
        let Some(details) = &self.details else {
            return next_change;
        };
        let last_expired = details.last_expired.as_ref();
        let expired = last_expired.map(|expired| expired.until + TOMBSTONE_TTL);
        let queue = details.queue.as_ref().and_then(|queue| queue.due());
        [next_change, expired, queue].into_iter().flatten().min()
    }

    /// Whether something is due.
    pub(super) fn is_due(&self, now: StoreTime) -> bool {
        self.due().is_some_and(|at| at <= now)
    }

    /// How many locks a step looks at when something is due on this one: itself, and those of its head waiter.
    pub(super) fn looks(&self) -> usize {
        let first = self.queue().and_then(WaitQueue::first);
        1 + first.map_or(0, |first| first.names.len())
    }

    /// How much of `locks_max` the lock uses: leases, cool-downs and tickets. The rest of the entry takes little memory
    /// beside these, and counts as one without them.
    pub(super) fn count(&self) -> usize {
        self.count_with(0)
    }

    /// The same with this many more leases or tickets.
    pub(super) fn count_with(&self, more: usize) -> usize {
        let cooldowns = |details: &Details| details.cooldowns.len();
        let cooldown_count = self.details.as_deref().map_or(0, cooldowns);
        let ticket_count = self.queue().map_or(0, WaitQueue::ticket_count);
        (self.leases.len() + cooldown_count + ticket_count + more).max(1)
    }

    pub(super) fn queue_length(&self) -> u64 {
        self.queue().map_or(0, WaitQueue::length)
    }

    /// The rows of the lock with their present values.
    #[cfg(test)]
    pub(super) fn rows(&self) -> Vec<(Row, String)> {
        let key = |claim| ClaimKey::new(&self.name, claim);
        let leases = self.leases.claims().into_iter().map(|claim| {
            let record = self.leases.get(claim);
            (Row::Lease(key(claim)), format!("{record:?}"))
        });
        let mut rows: Vec<_> = leases.collect();
        if let Some(details) = self.details.as_deref() {
            rows.extend(details.cooldowns.iter().map(|(until, fence, mode)| {
                let row = Row::Cooldown(self.name.clone(), until, fence);
                (row, format!("{until:?} {mode:?}"))
            }));
            let expired = details.last_expired.iter();
            rows.extend(expired.map(|it| (Row::LastExpired(self.name.clone()), format!("{it:?}"))));
            let tickets = details.queue.iter().flat_map(|queue| queue.tickets());
            rows.extend(tickets.map(|(claim, it)| (Row::Ticket(key(claim)), it)));
        }
        rows
    }

    /// Whether a listing includes the lock.
    pub(super) fn is_contended(&self) -> bool {
        !self.leases.is_empty() || self.queue_length() > 0
    }

    pub(super) fn state(&self, room: &mut AnswerRoom, now: StoreTime) -> LockState {
        if !self.leases.is_empty() {
            return LockState::Held(self.leases.listed(room, now));
        }
        let details = self.details.as_ref();
        match details.and_then(|details| details.cooldowns.last_end()) {
            Some(until) => LockState::Cooling {
                free_in: until.since(now),
            },
            None => LockState::Free,
        }
    }

    pub(super) fn view(&self, now: StoreTime) -> LockView {
        let state = self.state(&mut AnswerRoom::for_locks(1), now);
        let queue = self.queue().map_or_else(Queue::default, WaitQueue::view);
        LockView::new(self.name.clone(), state, queue)
    }
}

impl Details {
    fn is_empty(&self) -> bool {
        self.cooldowns.is_empty() && self.last_expired.is_none() && self.queue.is_none()
    }
}
