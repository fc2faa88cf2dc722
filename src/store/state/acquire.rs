//! Acquiring locks: the state of the claim, its conflicts, the grant, or a ticket in the queues.

use std::time::Duration;

use super::StoreTime;
use super::effects::Row;
use super::lease::LeaseRecord;
use super::lock::LockConflict;
use super::table::Table;
use super::{ClaimKey, KeyedClaim};
use crate::domain::{
    Acquired, Attempt, EventKind, Fence, GrantKind, Granted, LockName, Mismatch, Mode, NotHeld,
    PreviousLease, QueueRequest, Refused,
};
use crate::store::{Fault, StoreError};

impl Table {
    pub(super) fn acquire(
        &mut self,
        claim: &KeyedClaim<'_>,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        now: StoreTime,
    ) -> Result<Acquired, StoreError> {
        let mut is_known = false;
        for key in claim.keys.iter() {
            is_known |= self.find(&key.name, now).is_some();
        }
        if let Some(ended) = self.ended(claim, now) {
            if request.is_some() && self.other_ticket(claim).is_none() {
                self.leave(claim);
            }
            return Ok(ended);
        }
        if request.is_none() && !is_known {
            // Fast path, taken by most claims: no lock has an entry, so none is held, waited for or closed.
            return self.grant(claim, attempt, now);
        }
        if let Some(answer) = self.known(claim, attempt, request, now) {
            return Ok(answer);
        }
        if let Some(answer) = request.and_then(|request| Self::wait_expired(request, now)) {
            return Ok(answer);
        }
        if request.is_some() {
            self.note_alive(claim);
        }
        let sequence = self.sequence(claim, request);
        if let Some(mismatch) = self.other_limit(claim) {
            // Waiting cannot help this claim, so it must not block the waiters behind it.
            self.leave(claim);
            return Ok(Acquired::Refused(Refused::Mismatched(mismatch)));
        }
        let is_blocked = claim
            .names
            .iter()
            .any(|name| self.conflict_with(claim, sequence, name).is_some());
        match request {
            _ if !is_blocked => self.grant(claim, attempt, now),
            Some(request) => self.enqueue(claim, request, sequence, now),
            None => Ok(Acquired::Refused(Refused::Blocked(
                self.conflicts(claim, sequence, now),
            ))),
        }
    }

    /// The answer if the claim has ended before on one of its locks.
    fn ended(&self, claim: &KeyedClaim<'_>, now: StoreTime) -> Option<Acquired> {
        claim.keys.iter().find_map(|key| {
            let reason = self.tombstones.get(key.claim, now)?;
            let name = key.name.clone();
            Some(Acquired::Refused(Refused::Ended(NotHeld { name, reason })))
        })
    }

    /// The answers that depend only on the current state of the claim.
    fn known(
        &mut self,
        claim: &KeyedClaim<'_>,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        now: StoreTime,
    ) -> Option<Acquired> {
        let takes_over = request.is_none_or(|request| request.takes_over);
        let mut not_held = claim.keys.iter().filter(|key| self.lease(key).is_none());
        match not_held.next() {
            None => Some(match self.other_mode(claim) {
                Some(mismatch) => Acquired::Refused(Refused::Mismatched(mismatch)),
                None if !takes_over && self.is_superseded(claim, attempt) => Acquired::Superseded,
                None => match self.closed_to(claim, attempt, now) {
                    Some(retry_in) => Acquired::Refused(Refused::TooManyLeases {
                        of_all: false,
                        retry_in,
                    }),
                    None => self.replay(claim, attempt, now),
                },
            }),
            Some(first) if not_held.count() + 1 < claim.names.len() => {
                let name = first.name.clone();
                Some(Acquired::Refused(Refused::Mismatched(Mismatch::Claim {
                    name,
                })))
            }
            Some(_) => self
                .other_ticket(claim)
                .map(|name| Acquired::Refused(Refused::Mismatched(Mismatch::Claim { name }))),
        }
    }

    /// The lease of a claim, if it holds the lock.
    pub(super) fn lease(&self, key: &ClaimKey) -> Option<&LeaseRecord> {
        self.locks.get(&key.name)?.leases.get(key.claim)
    }

    /// A lock that the claim holds in another mode.
    fn other_mode(&self, claim: &KeyedClaim<'_>) -> Option<Mismatch> {
        claim.keys.iter().find_map(|key| {
            let mode = self.lease(key)?.mode();
            (mode != claim.mode).then(|| mismatch(mode, claim.mode, &key.name))
        })
    }

    /// Whether a stream or another request has one of the leases, so that this attempt must not receive them: the lease
    /// would end with the stream of another attempt, or would not end with the stream of this one.
    fn is_superseded(&self, claim: &KeyedClaim<'_>, attempt: Attempt) -> bool {
        let mut leases = claim.keys.iter().filter_map(|key| self.lease(key));
        leases.any(|record| {
            let is_of_streams = claim.takes_over || record.is_of_stream();
            is_of_streams && !record.receivers.may_be_withdrawn_by(attempt)
        })
    }

    /// How long one of the leases passes to no further attempt, because it was not counted.
    fn closed_to(
        &self,
        claim: &KeyedClaim<'_>,
        attempt: Attempt,
        now: StoreTime,
    ) -> Option<Duration> {
        let leases = claim.keys.iter().filter_map(|key| self.lease(key));
        let closed_for = leases.map(|record| record.closed_to(attempt, now)).max();
        closed_for.filter(|closed_for| !closed_for.is_zero())
    }

    /// A lock for which the claim already waits, but with other parameters.
    fn other_ticket(&self, claim: &KeyedClaim<'_>) -> Option<LockName> {
        let waits_otherwise = |key: &&ClaimKey| {
            let queue = self.queue(&key.name);
            let ticket = queue.and_then(|queue| queue.ticket(key.claim));
            ticket.is_some_and(|ticket| !ticket.is_of(claim))
        };
        let key = claim.keys.iter().find(waits_otherwise)?;
        Some(key.name.clone())
    }

    /// Answers a claim that already holds all of its locks, in its mode.
    fn replay(&mut self, claim: &KeyedClaim<'_>, attempt: Attempt, now: StoreTime) -> Acquired {
        let (mut is_deeper, mut is_repeated) = (false, false);
        let mut held = Vec::with_capacity(claim.names.len());
        for key in claim.keys.iter() {
            let lock = self.locks.get_mut(&key.name);
            if let Some(record) = lock.and_then(|(_, lock)| lock.leases.get_mut(key.claim)) {
                is_repeated |= record.receivers.unacknowledged() == Some(attempt);
                is_deeper |= record.replay(claim, attempt);
                self.effects.lease_changed(&key.name, key.claim);
                held.push((record.lease(now), record.options(now)));
            }
        }
        let kind = match is_deeper {
            // The first answer to this same attempt was lost.
            _ if is_repeated => GrantKind::New,
            true => GrantKind::Reentered,
            false => GrantKind::Replayed,
        };
        Acquired::Granted(Granted::before(kind, held))
    }

    fn other_limit(&self, claim: &KeyedClaim<'_>) -> Option<Mismatch> {
        claim.names.iter().find_map(|name| {
            match self.locks.get(name)?.conflict_with(claim.mode)? {
                LockConflict::OtherLimit(in_force) => Some(Mismatch::Limit {
                    name: name.clone(),
                    in_force,
                }),
                LockConflict::Taken | LockConflict::Waiters => None,
            }
        })
    }

    /// What keeps one of its locks from a claim.
    pub(super) fn conflict_with(
        &self,
        claim: &KeyedClaim<'_>,
        sequence: Option<u64>,
        name: &LockName,
    ) -> Option<LockConflict> {
        let lock = self.locks.get(name)?;
        let overtakes = claim.fair && !lock.is_turn_of(sequence);
        lock.conflict_with(claim.mode)
            .or(overtakes.then_some(LockConflict::Waiters))
    }

    fn grant(
        &mut self,
        claim: &KeyedClaim<'_>,
        attempt: Attempt,
        now: StoreTime,
    ) -> Result<Acquired, StoreError> {
        let text = self.make_room(claim, now)?;
        let fences = self.next_fences(claim, now)?;
        let mut granted = Granted {
            kind: GrantKind::New,
            leases: Vec::with_capacity(claim.keys.len()),
            options: Vec::new(),
            expired: Vec::new(),
        };
        for (key, fence) in claim.keys.iter().zip(fences) {
            let record = LeaseRecord::new(claim, key.claim, text.clone(), attempt, fence, now);
            granted.leases.push(record.lease(now));
            granted.expired.extend(self.grant_one(key, record, now));
        }
        Ok(Acquired::Granted(granted))
    }

    /// Grants one lock. Returns its previous lease if that has expired.
    fn grant_one(
        &mut self,
        key: &ClaimKey,
        record: LeaseRecord,
        now: StoreTime,
    ) -> Option<PreviousLease> {
        let (name, effects) = (&key.name, &mut self.effects);
        let bucket = name.bucket();
        self.fences[bucket.index()] = record.fence.get();
        // A restart takes every counter for at least the time of the last step, so one that follows the clock needs no row.
        if record.fence.get() > now.unix_us() {
            effects.changed(|| Row::Fence(bucket));
        }
        let slot = self.locks.find_or_insert(name);
        let lock = &mut self.locks[slot];
        let ticket = lock.queue_mut().and_then(|queue| queue.remove(key.claim));
        if ticket.is_some() {
            effects.ticket_changed(name, key.claim);
        }
        let before = lock.take_last_expired_if(|_| true, effects);
        effects.event(EventKind::Acquired, name, &record, now);
        lock.admit(record, effects);
        let previous = before.map(|before| {
            self.tombstones.lose(before.claim, effects);
            PreviousLease {
                name: name.clone(),
                held_for: before.held_for,
            }
        });
        self.touch(slot);
        previous
    }

    /// The next fencing token for each lock of the claim. Locks of one bucket share a counter.
    fn next_fences(
        &self,
        claim: &KeyedClaim<'_>,
        now: StoreTime,
    ) -> Result<Vec<Fence>, StoreError> {
        let mut fences: Vec<Fence> = Vec::with_capacity(claim.names.len());
        for (number, name) in claim.names.iter().enumerate() {
            let bucket = name.bucket();
            let before = claim.names[..number]
                .iter()
                .rposition(|other| other.bucket() == bucket)
                .map(|index| fences[index].get());
            let last = before.unwrap_or(self.fences[bucket.index()]);
            let fence = Fence::after(last, now.unix_us()).ok_or_else(|| {
                StoreError::unavailable(Fault::Corrupt, "the fencing counter is used up")
            })?;
            fences.push(fence);
        }
        Ok(fences)
    }
}

/// The mismatch of a claim that holds in one mode and requests another.
pub(super) fn mismatch(held: Mode, requested: Mode, name: &LockName) -> Mismatch {
    let name = name.clone();
    match (held, requested) {
        (Mode::Shared(_), Mode::Exclusive) => Mismatch::Upgrade { name },
        (Mode::Shared(_) | Mode::Exclusive, Mode::Shared(_) | Mode::Exclusive) => {
            Mismatch::Claim { name }
        }
    }
}
