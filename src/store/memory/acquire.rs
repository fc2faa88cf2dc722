//! Acquiring locks: the state of the claim, its conflicts, the grant, or a ticket in the queues.

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use super::lock::Obstruction;
use super::table::Table;
use crate::domain::{
    Acquired, Attempt, Claim, EventKind, Fence, Grant, Lease, LockName, Mismatch, Mode, NotHeld,
    QueueRequest,
};
use crate::store::{Fault, StoreError};

impl Table {
    pub(super) fn acquire(
        &mut self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        now: StoreTime,
    ) -> Result<Acquired, StoreError> {
        for name in claim.names.iter() {
            self.expire_due(name, now);
        }
        if let Some(ended) = self.ended(claim, now) {
            return Ok(ended);
        }
        let is_known = |name: &LockName| self.locks.contains_key(name);
        if request.is_none() && !claim.names.iter().any(is_known) {
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
            return Ok(Acquired::Mismatched(mismatch));
        }
        let is_blocked = claim
            .names
            .iter()
            .any(|name| self.obstruction(claim, sequence, name).is_some());
        match request {
            _ if !is_blocked => self.grant(claim, attempt, now),
            Some(request) => self.enqueue(claim, request, sequence, now),
            None => Ok(Acquired::Blocked(self.conflicts(claim, sequence, now))),
        }
    }

    /// The answer if the claim has ended before on one of its locks.
    fn ended(&self, claim: &Claim, now: StoreTime) -> Option<Acquired> {
        claim.names.iter().find_map(|name| {
            let reason = self.tombstones.get(name, claim.token, now)?;
            let name = name.clone();
            Some(Acquired::Ended(NotHeld { name, reason }))
        })
    }

    /// The answers that depend only on the current state of the claim.
    fn known(
        &mut self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        now: StoreTime,
    ) -> Option<Acquired> {
        let may_not = request.is_some_and(|request| !request.takes_over);
        let leaves_alone = may_not && (claim.takes_over || self.is_of_stream(claim));
        let mut not_held = claim
            .names
            .iter()
            .filter(|name| !self.is_held_by(claim, name));
        match not_held.next() {
            None if leaves_alone && !self.is_by(claim, attempt) => Some(Acquired::Superseded),
            None => Some(self.replay(claim, attempt, now)),
            Some(first) if not_held.count() + 1 < claim.names.len() => {
                let name = first.clone();
                Some(Acquired::Mismatched(Mismatch::Claim { name }))
            }
            Some(_) => self
                .other_ticket(claim)
                .map(|name| Acquired::Mismatched(Mismatch::Claim { name })),
        }
    }

    fn is_held_by(&self, claim: &Claim, name: &LockName) -> bool {
        self.locks
            .get(name)
            .is_some_and(|lock| lock.leases.get(claim.token).is_some())
    }

    /// Whether this attempt is the one that may roll the claim's lease back.
    fn is_by(&self, claim: &Claim, attempt: Attempt) -> bool {
        claim.names.iter().any(|name| {
            let leases = self.locks.get(name).map(|lock| &lock.leases);
            let record = leases.and_then(|leases| leases.get(claim.token));
            record.is_some_and(|record| record.receivers.may_be_withdrawn_by(attempt))
        })
    }

    /// Whether a stream made or took over the claim's lease.
    fn is_of_stream(&self, claim: &Claim) -> bool {
        let first = self.locks.get(&claim.names[0]);
        let record = first.and_then(|lock| lock.leases.get(claim.token));
        record.is_some_and(|record| record.is_of_stream)
    }

    /// A lock for which the claim already waits, but with other parameters.
    fn other_ticket(&self, claim: &Claim) -> Option<LockName> {
        let waits_otherwise = |name: &&LockName| {
            let ticket = self.queue(name).and_then(|queue| queue.ticket(claim.token));
            ticket.is_some_and(|ticket| !ticket.is_of(claim))
        };
        claim.names.iter().find(waits_otherwise).cloned()
    }

    /// Answers a claim that already holds all of its locks.
    fn replay(&mut self, claim: &Claim, attempt: Attempt, now: StoreTime) -> Acquired {
        for name in claim.names.iter() {
            let held = self
                .locks
                .get(name)
                .and_then(|lock| lock.leases.get(claim.token));
            let mismatch = match held.map(|record| record.mode) {
                Some(mode) if mode != claim.mode => mismatch(mode, claim.mode, name),
                Some(_) | None => continue,
            };
            return Acquired::Mismatched(mismatch);
        }
        let mut is_deeper = false;
        let mut leases: Vec<Lease> = Vec::with_capacity(claim.names.len());
        for name in claim.names.iter() {
            let lock = self.locks.get_mut(name);
            if let Some(record) = lock.and_then(|lock| lock.leases.get_mut(claim.token)) {
                is_deeper |= record.replay(claim, attempt);
                leases.push(record.lease(now));
            }
        }
        match is_deeper {
            true => Acquired::Reentered(leases),
            false => Acquired::Replayed(leases),
        }
    }

    fn other_limit(&self, claim: &Claim) -> Option<Mismatch> {
        claim.names.iter().find_map(
            |name| match self.locks.get(name)?.obstruction(claim.mode)? {
                Obstruction::OtherLimit(in_force) => Some(Mismatch::Limit {
                    name: name.clone(),
                    in_force,
                }),
                Obstruction::Taken | Obstruction::Waiters => None,
            },
        )
    }

    /// What keeps one of its locks from a claim.
    pub(super) fn obstruction(
        &self,
        claim: &Claim,
        sequence: Option<u64>,
        name: &LockName,
    ) -> Option<Obstruction> {
        let lock = self.locks.get(name)?;
        let overtakes = claim.fair && !lock.is_turn_of(sequence);
        lock.obstruction(claim.mode)
            .or(overtakes.then_some(Obstruction::Waiters))
    }

    fn grant(
        &mut self,
        claim: &Claim,
        attempt: Attempt,
        now: StoreTime,
    ) -> Result<Acquired, StoreError> {
        let text = self.make_room(claim, now)?;
        let fences = self.next_fences(claim, now)?;
        let mut grants = Vec::with_capacity(fences.len());
        for (name, fence) in claim.names.iter().zip(fences) {
            self.fences[name.bucket().index()] = fence.get();
            let lock = self.locks.entry(name.clone()).or_default();
            if let Some(queue) = &mut lock.queue {
                queue.remove(claim.token);
            }
            let before = lock.last_expired.take();
            let record = LeaseRecord::new(claim, text.clone(), attempt, fence, now);
            grants.push(Grant {
                lease: record.lease(now),
                after_expiry: before.as_ref().map(|expired| expired.held_for),
            });
            self.notifications
                .event(EventKind::Acquired, name, &record, now);
            lock.admit(record);
            if let Some(before) = before {
                self.tombstones.lose(name, before.token);
            }
            self.touch(name);
        }
        Ok(Acquired::Granted(grants))
    }

    /// The next fencing token for each lock of the claim. Locks of one bucket share a counter.
    fn next_fences(&self, claim: &Claim, now: StoreTime) -> Result<Vec<Fence>, StoreError> {
        let mut fences: Vec<Fence> = Vec::with_capacity(claim.names.len());
        for (number, name) in claim.names.iter().enumerate() {
            let bucket = name.bucket();
            let before = claim.names[..number]
                .iter()
                .rposition(|other| other.bucket() == bucket)
                .map(|index| fences[index].get());
            let last = before.unwrap_or(self.fences[bucket.index()]);
            let fence = Fence::after(last, now.unix_us).ok_or_else(|| {
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
