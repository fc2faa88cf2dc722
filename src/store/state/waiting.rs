//! Waiting in the queues of locks: enqueuing, leaving, and the conflicts meanwhile.

use std::time::Duration;

use super::KeyedClaim;
use super::StoreTime;
use super::claim::TicketNames;
use super::lock::LockConflict;
use super::table::Table;
use super::wait_queue::QueueEntry;
use crate::domain::{
    Acquired, AnswerRoom, Conflict, ConflictKind, LockName, LockState, Position, QueueRequest,
    Refused, SuspendOptions, Suspended, Ticket, Waiting,
};
use crate::store::StoreError;

impl Table {
    /// The answer if the ticket's deadline has passed.
    pub(super) fn wait_expired(request: &QueueRequest, now: StoreTime) -> Option<Acquired> {
        let is_over = now.timestamp() > request.ticket?.until?;
        is_over.then_some(Acquired::WaitExpired)
    }

    /// Removes the claim from the waiters. Its ticket expires as planned before.
    pub(super) fn leave(&mut self, claim: &KeyedClaim<'_>) {
        for key in claim.keys.iter() {
            if let Some(queue) = self.queue_mut(&key.name) {
                queue.leave(key.claim);
                self.effects.ticket_changed(&key.name, key.claim);
            }
        }
    }

    /// Notes that the polling process is alive.
    pub(super) fn note_alive(&mut self, claim: &KeyedClaim<'_>) {
        for name in claim.names.iter() {
            if let Some(queue) = self.queue_mut(name) {
                queue.note_alive();
            }
        }
    }

    /// The sequence number of the claim's ticket, if it has one.
    pub(super) fn sequence(
        &self,
        claim: &KeyedClaim<'_>,
        request: Option<&QueueRequest>,
    ) -> Option<u64> {
        let ticket = request.and_then(|request| request.ticket);
        ticket.map(|ticket| ticket.sequence).or_else(|| {
            let mut keys = claim.keys.iter();
            keys.find_map(|key| Some(self.queue(&key.name)?.ticket(key.claim)?.sequence))
        })
    }

    /// Enqueues a claim that cannot be granted, or keeps it queued.
    pub(super) fn enqueue(
        &mut self,
        claim: &KeyedClaim<'_>,
        request: &QueueRequest,
        sequence: Option<u64>,
        now: StoreTime,
    ) -> Result<Acquired, StoreError> {
        if sequence.is_none()
            && let Some(answer) = self.too_many_waiters(claim, request)
        {
            return Ok(answer);
        }
        let text = self.make_room(claim, now)?;
        // One counter for all queues: a claim has the same sequence number in all of its queues, so no two claims wait
        // for each other.
        let place = sequence.unwrap_or_else(|| now.unix_us().max(self.last_sequence + 1));
        self.last_sequence = self.last_sequence.max(place);
        let names = self.ticket_names(claim);
        let restored = request.ticket.is_some() && !self.queued(claim);
        for key in claim.keys.iter() {
            let until = now + request.remembered();
            let ticket = QueueEntry::new(claim, names.clone(), text.clone(), place, until);
            let slot = self.locks.find_or_insert(&key.name);
            let queue = self.locks[slot].queue_or_new();
            queue.enqueue(key.claim, ticket);
            self.effects.ticket_changed(&key.name, key.claim);
            if sequence.is_none() {
                self.effects.queued(&key.name, &claim.owner, now);
            }
            self.touch(slot);
        }
        let until = (now + request.wait).timestamp();
        Ok(Acquired::Waiting(Waiting {
            ticket: Ticket {
                sequence: place,
                until: request.ticket.and_then(|place| place.until).or(Some(until)),
            },
            recheck_in: self.recheck_in(claim, place, now),
            position: request
                .wants_position
                .then(|| self.position(claim))
                .flatten(),
            restored,
            has_ambiguous_attempt: false,
        }))
    }

    /// The names that the claim waits with, or a list of its own if it does not wait yet.
    fn ticket_names(&self, claim: &KeyedClaim<'_>) -> TicketNames {
        let mut keys = claim.keys.iter();
        let waits_with = keys.find_map(|key| {
            let names = &self.queue(&key.name)?.ticket(key.claim)?.names;
            (**names == claim.names).then(|| names.clone())
        });
        waits_with.unwrap_or_else(|| TicketNames::new(&claim.names, &self.name_lists))
    }

    fn too_many_waiters(&self, claim: &KeyedClaim<'_>, request: &QueueRequest) -> Option<Acquired> {
        claim.names.iter().find_map(|name| {
            let queue_length = self.queue(name)?.length();
            (queue_length >= u64::from(request.waiters_max)).then(|| {
                Acquired::Refused(Refused::TooManyWaiters {
                    name: name.clone(),
                    queue_length,
                })
            })
        })
    }

    /// Whether the claim is waiting in all of its queues.
    fn queued(&self, claim: &KeyedClaim<'_>) -> bool {
        claim.keys.iter().all(|key| {
            let queue = self.queue(&key.name);
            queue.is_some_and(|queue| queue.position(key.claim).is_some())
        })
    }

    /// When the next conflict of the claim expires.
    fn recheck_in(
        &self,
        claim: &KeyedClaim<'_>,
        sequence: u64,
        now: StoreTime,
    ) -> Option<Duration> {
        let next_expiry = |name: &LockName| match self.conflict_with(claim, Some(sequence), name)? {
            LockConflict::Taken | LockConflict::OtherLimit(_) => {
                self.locks.get(name)?.next_change_at()
            }
            LockConflict::Waiters => self.queue(name)?.reserved_until(),
        };
        let next = claim.names.iter().filter_map(next_expiry).min()?;
        Some(next.since(now))
    }

    /// The claim's position in the queue in which it is furthest from the head.
    fn position(&self, claim: &KeyedClaim<'_>) -> Option<Position> {
        let keys = claim.keys.iter();
        let positions = keys.filter_map(|key| self.queue(&key.name)?.position(key.claim));
        // The first of equal ones, as in Redis.
        positions.rev().max_by_key(|position| position.position)
    }

    pub(super) fn suspend(
        &mut self,
        claim: &KeyedClaim<'_>,
        options: SuspendOptions,
        now: StoreTime,
    ) -> Suspended {
        for name in claim.names.iter() {
            self.find(name, now);
        }
        let position = self.position(claim);
        let blocked_by = match options.lists_conflicts {
            true => self.conflicts(claim, self.sequence(claim, None), now),
            false => Vec::new(),
        };
        for key in claim.keys.iter() {
            if let Some(queue) = self.queue_mut(&key.name)
                && queue.position(key.claim).is_some()
            {
                queue.suspend(key.claim, now + options.keep);
                self.effects.ticket_changed(&key.name, key.claim);
            }
        }
        Suspended {
            position,
            blocked_by,
        }
    }

    /// All conflicts of the claim.
    pub(super) fn conflicts(
        &self,
        claim: &KeyedClaim<'_>,
        sequence: Option<u64>,
        now: StoreTime,
    ) -> Vec<Conflict> {
        let mut room = AnswerRoom::for_locks(claim.names.len());
        let conflict = |name: &LockName| {
            let kind = self.conflict_with(claim, sequence, name)?;
            let lock = self.locks.get(name)?;
            let by = match (kind, lock.state(&mut room, now)) {
                (LockConflict::Waiters, _) | (_, LockState::Free) => ConflictKind::Waiters,
                (_, LockState::Held(holders)) => ConflictKind::Holders(holders),
                (_, LockState::Cooling { free_in }) => ConflictKind::Cooling { free_in },
            };
            Some(Conflict {
                name: name.clone(),
                by,
                queue_length: lock.queue_length(),
            })
        };
        claim.names.iter().filter_map(conflict).collect()
    }
}
