//! One lock's entry in memory: who holds it, what stays taken for a while, who waits. Other locks are not known here.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use super::leases::Leases;
use super::wait_queue::WaitQueue;
use crate::domain::{AnswerRoom, Fence, LockName, LockState, LockView, Mode, Queue, Token};
use crate::store::TOMBSTONE_TTL;

/// What the table knows of a lock that is not simply free.
#[derive(Default)]
pub(super) struct Lock {
    pub(super) holds: Leases,
    /// What leases that are over keep taken, and until when.
    cooldowns: BTreeMap<(Instant, Fence), Mode>,
    /// How many permits the holds and what is kept take together.
    taken: u64,
    /// The last that held alone, if its lease ran out and nobody has been granted the lock since.
    pub(super) last_expired: Option<LastExpired>,
    /// Boxed, because most locks are waited for by nobody.
    pub(super) line: Option<Box<WaitQueue>>,
    /// The entry in the table's timetable.
    pub(super) scheduled: Option<Instant>,
    /// Whether the table counts it among the held ones.
    pub(super) is_counted: bool,
    /// What the table counts it for.
    pub(super) counted: usize,
}

/// A lease that ran out.
pub(super) struct LastExpired {
    pub(super) token: Token,
    pub(super) until: Instant,
    pub(super) held_for: Duration,
}

/// What keeps a lock from a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstruction {
    /// Others hold it or have held it.
    Taken,
    /// Those who hold it agreed on this limit, which is not the claim's.
    OtherLimit(Option<u32>),
    /// The queue.
    Waiters,
}

impl Lock {
    /// What keeps the lock from being held so, were it not for the queue.
    pub(super) fn obstacle(&self, mode: Mode) -> Option<Obstruction> {
        match (self.mode()?, mode) {
            (Mode::Shared(held), Mode::Shared(asked)) if held.limit() == asked.limit() => {
                let taken = self.taken + u64::from(asked.permits());
                let is_too_much = asked.limit().is_some_and(|limit| taken > u64::from(limit));
                is_too_much.then_some(Obstruction::Taken)
            }
            // Only those who still hold can insist on their limit; what is merely kept will be over.
            (Mode::Shared(held), Mode::Shared(_)) if !self.holds.is_empty() => {
                Some(Obstruction::OtherLimit(held.limit()))
            }
            (Mode::Shared(_) | Mode::Exclusive, Mode::Shared(_) | Mode::Exclusive) => {
                Some(Obstruction::Taken)
            }
        }
    }

    /// How the lock is taken: all that takes it takes it together.
    fn mode(&self) -> Option<Mode> {
        let held = self.holds.first().map(|hold| hold.mode);
        held.or_else(|| self.cooldowns.values().next().copied())
    }

    /// Whether nobody has to be granted before a claim with this place, or before one without.
    pub(super) fn is_turn_of(&self, sequence: Option<u64>) -> bool {
        self.line
            .as_ref()
            .is_none_or(|line| line.is_turn_of(sequence))
    }

    /// When something runs out that is taken.
    pub(super) fn next_change_at(&self) -> Option<Instant> {
        let held = self.holds.first().map(|hold| hold.until);
        held.into_iter().chain(self.kept_until()).min()
    }

    fn kept_until(&self) -> Option<Instant> {
        self.cooldowns.keys().next().map(|(until, _)| *until)
    }

    pub(super) fn admit(&mut self, hold: LeaseRecord) {
        debug_assert!(self.obstacle(hold.mode).is_none(), "the lock is taken");
        self.taken += permits(hold.mode);
        self.holds.insert(hold);
    }

    /// A lease is over; what it took stays taken until a moment, which may be past.
    pub(super) fn end(
        &mut self,
        token: Token,
        kept: Instant,
        now: StoreTime,
    ) -> Option<LeaseRecord> {
        let hold = self.holds.remove(token)?;
        self.give_back(&hold, kept, now);
        Some(hold)
    }

    fn give_back(&mut self, hold: &LeaseRecord, kept: Instant, now: StoreTime) {
        if kept > now.instant {
            self.cooldowns.insert((kept, hold.fence), hold.mode);
        } else {
            self.taken -= permits(hold.mode);
        }
    }

    /// Gives back at once what an ended lease keeps taken.
    pub(super) fn give_back_kept(&mut self, fence: Fence) {
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

    /// Ends one lease that has run out.
    pub(super) fn run_out(&mut self, now: StoreTime) -> Option<LeaseRecord> {
        let hold = self.holds.remove_ended(now)?;
        self.give_back(&hold, hold.kept_after_expiry(), now);
        if hold.mode == Mode::Exclusive {
            self.last_expired = Some(LastExpired {
                token: hold.token,
                until: hold.until,
                held_for: hold.until - hold.acquired,
            });
        }
        Some(hold)
    }

    /// Changes a hold in any way, its end and its mode too.
    pub(super) fn change(&mut self, token: Token, change: impl FnOnce(&mut LeaseRecord)) {
        if let Some(mut hold) = self.holds.remove(token) {
            self.taken -= permits(hold.mode);
            change(&mut hold);
            self.admit(hold);
        }
    }

    /// Lets everything else happen that is due.
    pub(super) fn advance(&mut self, now: StoreTime) {
        while let Some(entry) = self.cooldowns.first_entry()
            && entry.key().0 <= now.instant
        {
            self.taken -= permits(entry.remove());
        }
        let is_remembered = |ran_out: &LastExpired| ran_out.until + TOMBSTONE_TTL > now.instant;
        self.last_expired = self.last_expired.take().filter(is_remembered);
        if let Some(line) = &mut self.line {
            line.advance(now);
        }
    }

    /// When something is due. Never for a lock of which nothing needs to be known.
    pub(super) fn due(&self) -> Option<Instant> {
        let ran_out = self
            .last_expired
            .as_ref()
            .map(|ran_out| ran_out.until + TOMBSTONE_TTL);
        let line = self.line.as_ref().and_then(|line| line.due());
        [self.next_change_at(), ran_out, line]
            .into_iter()
            .flatten()
            .min()
    }

    /// How much the table keeps of it: leases, those that are over and keep it taken, and places. Whatever else is known of
    /// a lock takes no room of its own beside these, and counts one without them.
    pub(super) fn count(&self) -> usize {
        self.count_with(0)
    }

    /// The same if there were so many more leases or places.
    pub(super) fn count_with(&self, more: usize) -> usize {
        let places = self.line.as_ref().map_or(0, |line| line.places());
        (self.holds.len() + self.cooldowns.len() + places + more).max(1)
    }

    pub(super) fn queue_length(&self) -> u64 {
        self.line.as_ref().map_or(0, |line| line.length())
    }

    /// Whether a listing has it.
    pub(super) fn is_contended(&self) -> bool {
        !self.holds.is_empty() || self.queue_length() > 0
    }

    pub(super) fn state(&self, room: &mut AnswerRoom, now: StoreTime) -> LockState {
        if !self.holds.is_empty() {
            return LockState::Held(self.holds.listed(room, now));
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
                .line
                .as_ref()
                .map_or_else(Queue::default, |line| line.view()),
        }
    }
}

/// How many permits a hold takes; one that is alone needs no counting.
fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared(share) => u64::from(share.permits()),
    }
}
