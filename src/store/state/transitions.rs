//! Operations on granted claims: renew, release, evict and withdraw.

use std::time::Duration;

use super::StoreTime;
use super::acquire::mismatch;
use super::effects::Effects;
use super::lease::LeaseRecord;
use super::lock::Lock;
use super::locks::SlabKey;
use super::table::{ExpiryBacklog, Table};
use super::tombstones::End;
use super::{ClaimKey, KeyedClaim};
use crate::domain::{
    Attempt, ClaimDigest, EventKind, Holder, LockName, Mismatch, Mode, NotHeld, NotHolder,
    Released, RenewOptions, Renewal, Renewed, Rollback, StepBack,
};

impl Table {
    pub(super) fn renew(
        &mut self,
        keys: &[ClaimKey],
        change: RenewOptions,
        now: StoreTime,
    ) -> Renewed {
        let not_held: Vec<NotHeld> = keys
            .iter()
            .filter_map(|key| self.not_held(key, now))
            .collect();
        if !not_held.is_empty() {
            return Renewed::NotHolder(not_held);
        }
        let mismatch = keys
            .iter()
            .find_map(|key| self.forbidden(key, change.mode?));
        if let Some(mismatch) = mismatch {
            return Renewed::Mismatched(mismatch);
        }
        Renewed::Extended(
            keys.iter()
                .filter_map(|key| self.renew_one(key, change, now))
                .collect(),
        )
    }

    /// The mismatch if the claim's lease may not change to this mode.
    fn forbidden(&self, key: &ClaimKey, requested: Mode) -> Option<Mismatch> {
        let held = self.lease(key)?.mode();
        let is_allowed = held == requested || held == Mode::Exclusive;
        (!is_allowed).then(|| mismatch(held, requested, &key.name))
    }

    fn renew_one(
        &mut self,
        key: &ClaimKey,
        change: RenewOptions,
        now: StoreTime,
    ) -> Option<Renewal> {
        let (slot, lock) = self.locks.get_mut(&key.name)?;
        let remaining_before = lock.leases.get(key.claim)?.until.since(now);
        lock.leases
            .change(key.claim, |record| record.renew(change, now));
        let record = lock.leases.get(key.claim)?;
        let lease = record.lease(now);
        let options = record.options(now);
        let withdrawable_by = record.receivers.withdrawable_by();
        self.effects.lease_changed(&key.name, key.claim);
        self.effects
            .event(EventKind::Renewed, &key.name, record, now);
        self.touch(slot);
        Some(Renewal {
            lease,
            remaining_before,
            options,
            withdrawable_by,
        })
    }

    /// Releases the claims of a token. A claim that waits may wait for more locks than are named here.
    pub(super) fn release(
        &mut self,
        keys: &[ClaimKey],
        step_back: Option<StepBack>,
        now: StoreTime,
    ) -> Vec<Released> {
        keys.iter()
            .map(|key| {
                let slot = self.find_for(key, now);
                slot.and_then(|slot| match step_back {
                    None => self.free(slot, key, now),
                    Some(change) => self.step_back(slot, key, change, now),
                })
                .or_else(|| self.leave_queue(key, now))
                .unwrap_or_else(|| Released::by_other(self.why_not(key, now)))
            })
            .collect()
    }

    fn free(&mut self, slot: SlabKey, key: &ClaimKey, now: StoreTime) -> Option<Released> {
        let effects = &mut self.effects;
        let lock = &mut self.locks[slot];
        let kept = lock.leases.get(key.claim)?.kept_after_release();
        let record = lock.end(key.claim, kept, now, effects)?;
        effects.event(EventKind::Released, &key.name, &record, now);
        if record.is_of_stream() {
            effects.released(key);
        }
        self.tombstones
            .remember(key.claim, End::Released, now, effects);
        self.touch(slot);
        Some(Released::Freed {
            held_for: now.since(record.acquired),
            fence: Some(record.fence),
        })
    }

    fn step_back(
        &mut self,
        slot: SlabKey,
        key: &ClaimKey,
        change: StepBack,
        now: StoreTime,
    ) -> Option<Released> {
        let record = self.locks[slot].leases.get_mut(key.claim)?;
        record.step_back(change, now);
        self.effects.lease_changed(&key.name, key.claim);
        Some(Released::SteppedBack(record.lease(now)))
    }

    /// Ends a claim that waits. It cannot be granted any more, so its request leaves the other queues at its next poll.
    fn leave_queue(&mut self, key: &ClaimKey, now: StoreTime) -> Option<Released> {
        self.queue_mut(&key.name)?.remove(key.claim)?;
        self.effects.ticket_changed(&key.name, key.claim);
        self.effects.dequeued(key);
        self.tombstones
            .remember(key.claim, End::Released, now, &mut self.effects);
        Some(Released::LeftQueue)
    }

    /// The holders of the lock, to be evicted in steps, and for how long the lock stays closed afterwards if one has it
    /// alone. Claims granted between two steps are not among them.
    pub(super) fn begin_eviction(
        &mut self,
        name: &LockName,
        now: StoreTime,
    ) -> (Vec<ClaimDigest>, Duration) {
        let Some(slot) = self.find(name, now) else {
            return (Vec::new(), Duration::ZERO);
        };
        let leases = &self.locks[slot].leases;
        let alone = leases.first().filter(|it| it.mode() == Mode::Exclusive);
        let closed_for = alone.map(LeaseRecord::lock_delay).unwrap_or_default();
        (leases.claims(), closed_for)
    }

    /// One step of an eviction: evicts some of the holders.
    pub(super) fn evict_some(
        &mut self,
        name: &LockName,
        claims: &[ClaimDigest],
        reason: &str,
        now: StoreTime,
    ) -> Vec<Holder> {
        let found = self.find_in_bounds(name, now);
        let Some(slot) = found.unwrap_or_else(|ExpiryBacklog| self.locks.find(name)) else {
            return Vec::new();
        };
        let lock = &mut self.locks[slot];
        let mut evicted = Vec::new();
        for claim in claims {
            // What has expired by itself is not evicted.
            let held = lock.leases.get(*claim);
            let held = held.filter(|record| record.until > now);
            let Some(kept) = held.map(|record| record.kept_after_eviction(now)) else {
                continue;
            };
            if let Some(record) = lock.end(*claim, kept, now, &mut self.effects) {
                self.tombstones
                    .remember(*claim, evicted_for(reason), now, &mut self.effects);
                self.effects.event(EventKind::Evicted, name, &record, now);
                evicted.push(record.holder(now));
            }
        }
        if !evicted.is_empty() {
            self.effects.evicted(name);
        }
        self.touch(slot);
        evicted
    }

    /// Evicts some claims that were evicted elsewhere so long ago, and refuses them from now on. If nobody has the lock then,
    /// it stays closed until `closed_for` after that eviction.
    pub(super) fn evict_missed(
        &mut self,
        name: &LockName,
        claims: &[ClaimDigest],
        reason: &str,
        ago: Duration,
        closed_for: Duration,
        now: StoreTime,
    ) {
        self.find(name, now);
        let slot = self.locks.find_or_insert(name);
        let (lock, mut is_evicted) = (&mut self.locks[slot], false);
        for claim in claims {
            let delay = lock.leases.get(*claim).map(LeaseRecord::lock_delay);
            let kept = now + delay.unwrap_or_default().saturating_sub(ago);
            if let Some(record) = lock.end(*claim, kept, now, &mut self.effects) {
                self.effects.event(EventKind::Evicted, name, &record, now);
                is_evicted = true;
            }
            self.tombstones
                .remember(*claim, evicted_for(reason), now, &mut self.effects);
        }
        let closed_until = now + closed_for.saturating_sub(ago);
        lock.keep_closed(closed_until, now, &mut self.effects);
        if is_evicted {
            self.effects.evicted(name);
        }
        self.touch(slot);
    }

    /// A request cannot arrive after its withdrawal here: both are steps of one process, in sequence.
    pub(super) fn withdraw(
        &mut self,
        claim: &KeyedClaim<'_>,
        attempt: Attempt,
        rollback: Rollback,
        now: StoreTime,
    ) -> usize {
        let mut ended = 0;
        for key in claim.keys.iter() {
            let slot = self.find_for(key, now);
            let effects = &mut self.effects;
            let expired = match rollback {
                Rollback::Undo | Rollback::Refuse => {
                    self.tombstones.withdraw(key.claim, attempt, effects)
                }
                Rollback::Close => None,
            };
            let Some(slot) = slot else {
                continue;
            };
            let lock = &mut self.locks[slot];
            if let Some(grant) = expired {
                lock.end_cooldown(grant.kept, grant.fence, effects);
                lock.take_last_expired_if(|expired| expired.claim == key.claim, effects);
            }
            if let Some(record) = roll_back(lock, key.claim, attempt, rollback, now, effects) {
                ended += 1;
                effects.event(EventKind::Released, &key.name, &record, now);
            }
            self.touch(slot);
        }
        ended
    }

    fn not_held(&mut self, key: &ClaimKey, now: StoreTime) -> Option<NotHeld> {
        let lock = self.find_for(key, now).map(|slot| &self.locks[slot]);
        let is_held = lock.is_some_and(|lock| lock.leases.get(key.claim).is_some());
        (!is_held).then(|| NotHeld {
            name: key.name.clone(),
            reason: self.why_not(key, now),
        })
    }

    /// Why a token does not hold the lock.
    fn why_not(&self, key: &ClaimKey, now: StoreTime) -> NotHolder {
        let ended = self.tombstones.get(key.claim, now);
        ended.unwrap_or(NotHolder::Unknown)
    }
}

/// Ends a lease if this attempt may roll it back and no attempt before it holds.
fn roll_back(
    lock: &mut Lock,
    claim: ClaimDigest,
    attempt: Attempt,
    rollback: Rollback,
    now: StoreTime,
    effects: &mut Effects,
) -> Option<LeaseRecord> {
    let record = lock.leases.get_mut(claim)?;
    let kept = record.kept_after_rollback(rollback, now);
    let ends = record.receivers.end_turn(attempt, rollback);
    effects.lease_changed(&lock.name, claim);
    ends.then(|| lock.end(claim, kept, now, effects))?
}

fn evicted_for(reason: &str) -> End {
    End::Evicted {
        reason: reason.into(),
    }
}
