//! Standing in the queues of locks: coming to stand, stepping out, and what is in the way meanwhile.

use std::time::Duration;

use super::clock::StoreTime;
use super::lock::Obstruction;
use super::table::Table;
use super::wait_queue::{QueueEntry, WaitQueue};
use crate::domain::{
    Acquired, AnswerRoom, Claim, Conflict, ConflictKind, LockName, LockState, Position,
    QueueRequest, Suspended, Ticket, Waiting,
};
use crate::store::StoreError;

impl Table {
    /// The claim may not be granted any more if its time is over.
    pub(super) fn overdue(stand: &QueueRequest, now: StoreTime) -> Option<Acquired> {
        let is_over = now.timestamp() > stand.place?.until?;
        is_over.then_some(Acquired::WaitExpired)
    }

    /// Takes the claim out of the waiters. Its place is kept as long as it was to be kept anyhow.
    pub(super) fn step_out(&mut self, claim: &Claim) {
        for name in claim.names.iter() {
            if let Some(line) = self.line_mut(name) {
                line.step_out(claim.token);
                self.touch(name);
            }
        }
    }

    /// The process that asks is alive.
    pub(super) fn note_alive(&mut self, claim: &Claim) {
        for name in claim.names.iter() {
            if let Some(line) = self.line_mut(name) {
                line.heard();
                self.touch(name);
            }
        }
    }

    /// Where the claim stands or may stand again.
    pub(super) fn sequence(&self, claim: &Claim, stand: Option<&QueueRequest>) -> Option<u64> {
        let told = stand.and_then(|stand| stand.place);
        told.map(|place| place.sequence).or_else(|| {
            claim
                .names
                .iter()
                .find_map(|name| Some(self.line(name)?.ticket(claim.token)?.sequence))
        })
    }

    /// A claim that cannot be granted comes to stand in the queues, or goes on standing there.
    pub(super) fn stand(
        &mut self,
        claim: &Claim,
        stand: &QueueRequest,
        sequence: Option<u64>,
        now: StoreTime,
    ) -> Result<Acquired, StoreError> {
        if sequence.is_none()
            && let Some(answer) = self.too_many_waiters(claim, stand)
        {
            return Ok(answer);
        }
        let text = self.make_room(claim, now)?;
        // One count for all queues: whoever stands in several has one place in all of them, so none waits for another
        // that waits for it.
        let place = sequence.unwrap_or_else(|| now.unix_us.max(self.last_sequence + 1));
        self.last_sequence = self.last_sequence.max(place);
        let restored = stand.place.is_some() && !self.queued(claim);
        for name in claim.names.iter() {
            let until = now.instant + stand.remembered();
            let ticket = QueueEntry::new(claim, text.clone(), place, until);
            let lock = self.locks.entry(name.clone()).or_default();
            lock.line
                .get_or_insert_with(|| Box::new(WaitQueue::new()))
                .stand(claim.token, ticket);
            if sequence.is_none() {
                self.signals.queued(name, &claim.owner, now);
            }
            self.touch(name);
        }
        let until = now.timestamp_of(now.instant + stand.wait);
        Ok(Acquired::Waiting(Waiting {
            place: Ticket {
                sequence: place,
                until: stand.place.and_then(|place| place.until).or(Some(until)),
            },
            recheck_in: self.look_in(claim, place, now),
            position: stand.tells_position.then(|| self.position(claim)).flatten(),
            restored,
            is_unsure: false,
        }))
    }

    fn too_many_waiters(&self, claim: &Claim, stand: &QueueRequest) -> Option<Acquired> {
        claim.names.iter().find_map(|name| {
            let queue_length = self.line(name)?.length();
            (queue_length >= u64::from(stand.waiters_max)).then(|| Acquired::TooManyWaiters {
                name: name.clone(),
                queue_length,
            })
        })
    }

    /// Whether the claim stands in all of its queues.
    fn queued(&self, claim: &Claim) -> bool {
        let stands = |line: &WaitQueue| line.position(claim.token).is_some();
        let mut names = claim.names.iter();
        names.all(|name| self.line(name).is_some_and(stands))
    }

    /// When something runs out that is in the claim's way.
    fn look_in(&self, claim: &Claim, sequence: u64, now: StoreTime) -> Option<Duration> {
        let runs_out = |name: &LockName| match self.obstacle(claim, Some(sequence), name)? {
            Obstruction::Taken | Obstruction::OtherLimit(_) => {
                self.locks.get(name)?.next_change_at()
            }
            Obstruction::Waiters => self.line(name)?.reserved_until(),
        };
        let next = claim.names.iter().filter_map(runs_out).min()?;
        Some(next.saturating_duration_since(now.instant))
    }

    /// Where the claim stands in the queue in which it is furthest from its turn.
    fn position(&self, claim: &Claim) -> Option<Position> {
        claim
            .names
            .iter()
            .filter_map(|name| self.line(name)?.position(claim.token))
            .max_by_key(|position| position.position)
    }

    pub(super) fn park(&mut self, claim: &Claim, keep: Duration, now: StoreTime) -> Suspended {
        for name in claim.names.iter() {
            self.expire_due(name, now);
        }
        let position = self.position(claim);
        let blocked_by = self.conflicts(claim, self.sequence(claim, None), now);
        for name in claim.names.iter() {
            if let Some(line) = self.line_mut(name)
                && line.position(claim.token).is_some()
            {
                line.park(claim.token, now.instant + keep);
                self.touch(name);
            }
        }
        Suspended {
            position,
            blocked_by,
        }
    }

    /// Everything that is in the claim's way.
    pub(super) fn conflicts(
        &self,
        claim: &Claim,
        sequence: Option<u64>,
        now: StoreTime,
    ) -> Vec<Conflict> {
        let mut room = AnswerRoom::for_locks(claim.names.len());
        let blockade = |name: &LockName| {
            let obstacle = self.obstacle(claim, sequence, name)?;
            let lock = self.locks.get(name)?;
            let by = match (obstacle, lock.state(&mut room, now)) {
                (Obstruction::Waiters, _) | (_, LockState::Free) => ConflictKind::Waiters,
                (_, LockState::Held(holders)) => ConflictKind::Holders(holders),
                (_, LockState::Cooling { free_in }) => ConflictKind::Cooling { free_in },
            };
            Some(Conflict {
                name: name.clone(),
                by,
                queue_length: lock.queue_length(),
            })
        };
        claim.names.iter().filter_map(blockade).collect()
    }
}
