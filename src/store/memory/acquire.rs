//! Asking for locks: what a claim is already, what is in its way, the grant, and the place in the queues.

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
        stand: Option<&QueueRequest>,
        now: StoreTime,
    ) -> Result<Acquired, StoreError> {
        for name in claim.names.iter() {
            self.expire_due(name, now);
        }
        if let Some(ended) = self.ended(claim, now) {
            return Ok(ended);
        }
        let is_known = |name: &LockName| self.locks.contains_key(name);
        if stand.is_none() && !claim.names.iter().any(is_known) {
            // The fast path, which most claims go: nobody holds the locks, waits for them, or keeps them closed.
            return self.grant(claim, attempt, now);
        }
        if let Some(answer) = self.known(claim, attempt, stand, now) {
            return Ok(answer);
        }
        if let Some(answer) = stand.and_then(|stand| Self::overdue(stand, now)) {
            return Ok(answer);
        }
        if stand.is_some() {
            self.note_alive(claim);
        }
        let sequence = self.sequence(claim, stand);
        if let Some(contradiction) = self.other_limit(claim) {
            // Whoever asks in vain must not keep those behind it waiting.
            self.step_out(claim);
            return Ok(Acquired::Mismatched(contradiction));
        }
        let is_blocked = claim
            .names
            .iter()
            .any(|name| self.obstacle(claim, sequence, name).is_some());
        match stand {
            _ if !is_blocked => self.grant(claim, attempt, now),
            Some(stand) => self.stand(claim, stand, sequence, now),
            None => Ok(Acquired::Blocked(self.conflicts(claim, sequence, now))),
        }
    }

    /// Whether the claim has ended before on one of its locks.
    fn ended(&self, claim: &Claim, now: StoreTime) -> Option<Acquired> {
        claim.names.iter().find_map(|name| {
            let how = self.endings.get(name, claim.token, now)?;
            let name = name.clone();
            Some(Acquired::Ended(NotHeld { name, reason: how }))
        })
    }

    /// The answers that depend on nothing but what the claim is already.
    fn known(
        &mut self,
        claim: &Claim,
        attempt: Attempt,
        stand: Option<&QueueRequest>,
        now: StoreTime,
    ) -> Option<Acquired> {
        let may_not = stand.is_some_and(|stand| !stand.takes_over);
        let leaves_alone = may_not && (claim.takes_over || self.is_of_stream(claim));
        let mut not_held = claim
            .names
            .iter()
            .filter(|name| !self.is_held_by(claim, name));
        match not_held.next() {
            None if leaves_alone && !self.is_by(claim, attempt) => Some(Acquired::Superseded),
            None => Some(self.again(claim, attempt, now)),
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
            .is_some_and(|lock| lock.holds.get(claim.token).is_some())
    }

    /// Whether the claim holds its locks by this attempt.
    fn is_by(&self, claim: &Claim, attempt: Attempt) -> bool {
        claim.names.iter().any(|name| {
            let holds = self.locks.get(name).map(|lock| &lock.holds);
            let hold = holds.and_then(|holds| holds.get(claim.token));
            hold.is_some_and(|hold| hold.may_be_withdrawn_by(attempt))
        })
    }

    /// Whether a stream has made or taken over what the claim holds.
    fn is_of_stream(&self, claim: &Claim) -> bool {
        let first = self.locks.get(&claim.names[0]);
        let hold = first.and_then(|lock| lock.holds.get(claim.token));
        hold.is_some_and(|hold| hold.is_of_stream)
    }

    /// A lock that the claim waits for otherwise than it says now.
    fn other_ticket(&self, claim: &Claim) -> Option<LockName> {
        let waits_otherwise = |name: &&LockName| {
            let ticket = self.line(name).and_then(|line| line.ticket(claim.token));
            ticket.is_some_and(|ticket| !ticket.is_of(claim))
        };
        claim.names.iter().find(waits_otherwise).cloned()
    }

    /// A claim that holds all of its locks asks again.
    fn again(&mut self, claim: &Claim, attempt: Attempt, now: StoreTime) -> Acquired {
        for name in claim.names.iter() {
            let held = self
                .locks
                .get(name)
                .and_then(|lock| lock.holds.get(claim.token));
            let contradiction = match held.map(|hold| hold.mode) {
                Some(mode) if mode != claim.mode => mismatch(mode, claim.mode, name),
                Some(_) | None => continue,
            };
            return Acquired::Mismatched(contradiction);
        }
        let mut is_deeper = false;
        let mut leases: Vec<Lease> = Vec::with_capacity(claim.names.len());
        for name in claim.names.iter() {
            let lock = self.locks.get_mut(name);
            if let Some(hold) = lock.and_then(|lock| lock.holds.get_mut(claim.token)) {
                is_deeper |= hold.again(claim, attempt);
                leases.push(hold.lease(now));
            }
        }
        match is_deeper {
            true => Acquired::Reentered(leases),
            false => Acquired::Replayed(leases),
        }
    }

    fn other_limit(&self, claim: &Claim) -> Option<Mismatch> {
        claim
            .names
            .iter()
            .find_map(|name| match self.locks.get(name)?.obstacle(claim.mode)? {
                Obstruction::OtherLimit(in_force) => Some(Mismatch::Limit {
                    name: name.clone(),
                    in_force,
                }),
                Obstruction::Taken | Obstruction::Waiters => None,
            })
    }

    /// What keeps one of its locks from a claim.
    pub(super) fn obstacle(
        &self,
        claim: &Claim,
        sequence: Option<u64>,
        name: &LockName,
    ) -> Option<Obstruction> {
        let lock = self.locks.get(name)?;
        let overtakes = claim.fair && !lock.is_turn_of(sequence);
        lock.obstacle(claim.mode)
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
            if let Some(line) = &mut lock.line {
                line.remove(claim.token);
            }
            let before = lock.last_expired.take();
            let hold = LeaseRecord::new(claim, text.clone(), attempt, fence, now);
            grants.push(Grant {
                lease: hold.lease(now),
                after_expiry: before.as_ref().map(|ran_out| ran_out.held_for),
            });
            self.signals.event(EventKind::Acquired, name, &hold, now);
            lock.admit(hold);
            if let Some(before) = before {
                self.endings.lose(name, before.token);
            }
            self.touch(name);
        }
        Ok(Acquired::Granted(grants))
    }

    /// A fencing token for each lock of the claim. Locks of one bucket share a counter.
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

/// How a claim that holds so contradicts itself by asking to hold otherwise.
pub(super) fn mismatch(held: Mode, asked: Mode, name: &LockName) -> Mismatch {
    let name = name.clone();
    match (held, asked) {
        (Mode::Shared(_), Mode::Exclusive) => Mismatch::Upgrade { name },
        (Mode::Shared(_) | Mode::Exclusive, Mode::Shared(_) | Mode::Exclusive) => {
            Mismatch::Claim { name }
        }
    }
}
