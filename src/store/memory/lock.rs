//! One lock's entry in memory: its leases, its cool-downs and its queue. Other locks are not known here.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use super::leases::Leases;
use super::wait_queue::WaitQueue;
use crate::domain::{AnswerRoom, Fence, LockName, LockState, LockView, Mode, Queue, Token};
use crate::store::TOMBSTONE_TTL;

/// The state of a lock that is not simply free.
#[derive(Default)]
pub(super) struct Lock {
    pub(super) leases: Leases,
    /// What ended leases keep taken, and until when.
    cooldowns: BTreeMap<(Instant, Fence), Mode>,
    /// How many permits the leases and cool-downs take together.
    taken: u64,
    /// The last exclusive lease, if it expired and the lock has not been granted since.
    pub(super) last_expired: Option<LastExpired>,
    /// Boxed, because most locks have no queue.
    pub(super) queue: Option<Box<WaitQueue>>,
    /// The lock's entry in the table's timetable.
    pub(super) scheduled: Option<Instant>,
    /// Whether the table counts the lock as held.
    pub(super) is_counted: bool,
    /// How much of `locks_max` the table counts for the lock.
    pub(super) counted: usize,
}

/// An expired lease.
pub(super) struct LastExpired {
    pub(super) token: Token,
    pub(super) until: Instant,
    pub(super) held_for: Duration,
}

/// What keeps a lock from a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstruction {
    /// Leases or cool-downs.
    Taken,
    /// The holders use this limit, which is not the claim's.
    OtherLimit(Option<u32>),
    /// The queue.
    Waiters,
}

impl Lock {
    /// What keeps the lock from a claim in this mode, apart from the queue.
    pub(super) fn obstruction(&self, mode: Mode) -> Option<Obstruction> {
        match (self.mode()?, mode) {
            (Mode::Shared(held), Mode::Shared(requested)) if held.limit() == requested.limit() => {
                let taken = self.taken + u64::from(requested.permits());
                let is_too_much = requested
                    .limit()
                    .is_some_and(|limit| taken > u64::from(limit));
                is_too_much.then_some(Obstruction::Taken)
            }
            // Only current holders enforce their limit; a cool-down will pass.
            (Mode::Shared(held), Mode::Shared(_)) if !self.leases.is_empty() => {
                Some(Obstruction::OtherLimit(held.limit()))
            }
            (Mode::Shared(_) | Mode::Exclusive, Mode::Shared(_) | Mode::Exclusive) => {
                Some(Obstruction::Taken)
            }
        }
    }

    /// The mode of all leases and cool-downs; they never differ.
    fn mode(&self) -> Option<Mode> {
        let held = self.leases.first().map(|record| record.mode);
        held.or_else(|| self.cooldowns.values().next().copied())
    }

    /// Whether no waiter precedes a claim with this sequence number, or one without.
    pub(super) fn is_turn_of(&self, sequence: Option<u64>) -> bool {
        self.queue
            .as_ref()
            .is_none_or(|queue| queue.is_turn_of(sequence))
    }

    /// When the next lease or cool-down ends.
    pub(super) fn next_change_at(&self) -> Option<Instant> {
        let held = self.leases.first().map(|record| record.until);
        held.into_iter().chain(self.kept_until()).min()
    }

    fn kept_until(&self) -> Option<Instant> {
        self.cooldowns.keys().next().map(|(until, _)| *until)
    }

    pub(super) fn admit(&mut self, record: LeaseRecord) {
        debug_assert!(self.obstruction(record.mode).is_none(), "the lock is taken");
        self.taken += permits(record.mode);
        self.leases.insert(record);
    }

    /// Ends a lease; what it took stays taken until `kept`, which may be past.
    pub(super) fn end(
        &mut self,
        token: Token,
        kept: Instant,
        now: StoreTime,
    ) -> Option<LeaseRecord> {
        let record = self.leases.remove(token)?;
        self.return_permits(&record, kept, now);
        Some(record)
    }

    fn return_permits(&mut self, record: &LeaseRecord, kept: Instant, now: StoreTime) {
        if kept > now.instant {
            self.cooldowns.insert((kept, record.fence), record.mode);
        } else {
            self.taken -= permits(record.mode);
        }
    }

    /// Frees at once what an ended lease keeps taken.
    pub(super) fn end_cooldown(&mut self, fence: Fence) {
        let Self {
            cooldowns: kept,
            taken,
            ..
        } = self;
        kept.retain(|(_, of), mode| {
            let stays = *of != fence;
            *taken -= if stays { 0 } else { permits(*mode) };
            stays
        });
    }

    /// Ends one lease that has expired.
    pub(super) fn expire_one(&mut self, now: StoreTime) -> Option<LeaseRecord> {
        let record = self.leases.remove_ended(now)?;
        self.return_permits(&record, record.kept_after_expiry(), now);
        if record.mode == Mode::Exclusive {
            self.last_expired = Some(LastExpired {
                token: record.token,
                until: record.until,
                held_for: record.until - record.acquired,
            });
        }
        Some(record)
    }

    /// Changes a lease in any way, including its end and its mode.
    pub(super) fn change(&mut self, token: Token, change: impl FnOnce(&mut LeaseRecord)) {
        if let Some(mut record) = self.leases.remove(token) {
            self.taken -= permits(record.mode);
            change(&mut record);
            self.admit(record);
        }
    }

    /// Processes everything else that is due.
    pub(super) fn advance(&mut self, now: StoreTime) {
        while let Some(entry) = self.cooldowns.first_entry()
            && entry.key().0 <= now.instant
        {
            self.taken -= permits(entry.remove());
        }
        let is_remembered = |expired: &LastExpired| expired.until + TOMBSTONE_TTL > now.instant;
        self.last_expired = self.last_expired.take().filter(is_remembered);
        if let Some(queue) = &mut self.queue {
            queue.advance(now);
        }
    }

    /// When something is due; none for a lock that needs no entry.
    pub(super) fn due(&self) -> Option<Instant> {
        let expired = self
            .last_expired
            .as_ref()
            .map(|expired| expired.until + TOMBSTONE_TTL);
        let queue = self.queue.as_ref().and_then(|queue| queue.due());
        [self.next_change_at(), expired, queue]
            .into_iter()
            .flatten()
            .min()
    }

    /// How much of `locks_max` the lock uses: leases, cool-downs and tickets. The rest of the entry takes little memory
    /// beside these, and counts as one without them.
    pub(super) fn count(&self) -> usize {
        self.count_with(0)
    }

    /// The same with this many more leases or tickets.
    pub(super) fn count_with(&self, more: usize) -> usize {
        let ticket_count = self.queue.as_ref().map_or(0, |queue| queue.ticket_count());
        (self.leases.len() + self.cooldowns.len() + ticket_count + more).max(1)
    }

    pub(super) fn queue_length(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.length())
    }

    /// Whether a listing includes the lock.
    pub(super) fn is_contended(&self) -> bool {
        !self.leases.is_empty() || self.queue_length() > 0
    }

    pub(super) fn state(&self, room: &mut AnswerRoom, now: StoreTime) -> LockState {
        if !self.leases.is_empty() {
            return LockState::Held(self.leases.listed(room, now));
        }
        match self.cooldowns.keys().next_back() {
            Some((until, _)) => LockState::Cooling {
                free_in: until.saturating_duration_since(now.instant),
            },
            None => LockState::Free,
        }
    }

    pub(super) fn view(&self, name: &LockName, now: StoreTime) -> LockView {
        LockView {
            name: name.clone(),
            state: self.state(&mut AnswerRoom::for_locks(1), now),
            queue: self
                .queue
                .as_ref()
                .map_or_else(Queue::default, |queue| queue.view()),
        }
    }
}

/// How many permits a lease takes; an exclusive one needs no counting.
fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared(share) => u64::from(share.permits()),
    }
}
