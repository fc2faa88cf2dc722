//! Taking over the fencing tokens that a quorum has decided for the leases of a claim.

use super::StoreTime;
use super::effects::Row;
use super::lease::permits;
use super::lock::Lock;
use super::table::Table;
use super::{ClaimKey, KeyedClaim};
use crate::domain::{EventKind, Fence, Mode};
use crate::store::assignment::{Assigned, FenceChange, PermitUse};

impl Table {
    pub(super) fn assign_fences(
        &mut self,
        claim: &KeyedClaim<'_>,
        changes: &[FenceChange],
        now: StoreTime,
    ) -> Assigned {
        for key in claim.keys.iter() {
            self.find_for(key, now);
        }
        let changed = || claim.keys.iter().zip(changes);
        let is_held = changed().all(|(key, change)| {
            self.lease(key).is_some_and(|record| {
                let has_passed = |attempt| record.receivers.have_passed(attempt);
                let is_reported = record.fence == change.proposed || record.fence == change.decided;
                let is_lowered = change.decided < record.fence;
                let is_last = |attempt| record.receivers.may_be_withdrawn_by(attempt);
                is_reported
                    && !change.attempt.is_some_and(has_passed)
                    && (!is_lowered || change.attempt.is_some_and(is_last))
            })
        });
        if !is_held || changes.len() != claim.keys.len() {
            return Assigned::NotHeld;
        }
        let is_shared = matches!(claim.mode, Mode::Shared(_));
        if is_shared && changed().any(|(key, change)| self.is_taken(key, change)) {
            let counters = claim.keys.iter().map(|key| self.counter(key));
            return Assigned::Taken(counters.collect());
        }
        for (key, change) in changed() {
            self.assign_one(key, change.decided, now);
            if change.gives_options {
                self.give_options(key, claim, now);
            }
        }
        let used = claim.keys.iter().map(|key| {
            let lock = self.locks.get(&key.name);
            lock.map_or_else(Vec::new, permits_used)
        });
        match claim.mode {
            Mode::Shared(share) if share.limit().is_some() => Assigned::Held(used.collect()),
            Mode::Shared(_) | Mode::Exclusive => Assigned::Held(Vec::new()),
        }
    }

    /// Whether another lease may have this token.
    fn is_taken(&self, key: &ClaimKey, change: &FenceChange) -> bool {
        let has_it = self
            .lease(key)
            .is_some_and(|record| record.fence == change.decided);
        !change.is_recorded && !has_it && self.counter(key) >= change.decided.get()
    }

    fn counter(&self, key: &ClaimKey) -> u64 {
        self.fences[key.name.bucket().index()]
    }

    fn assign_one(&mut self, key: &ClaimKey, decided: Fence, now: StoreTime) {
        let effects = &mut self.effects;
        let bucket = key.name.bucket();
        let last = &mut self.fences[bucket.index()];
        if *last < decided.get() {
            *last = decided.get();
            effects.changed(|| Row::Fence(bucket));
        }
        let Some((_, lock)) = self.locks.get_mut(&key.name) else {
            return;
        };
        let record = lock.leases.get_mut(key.claim);
        if let Some(record) = record.filter(|record| record.fence != decided) {
            record.fence = decided;
            effects.lease_changed(&key.name, key.claim);
            // Watchers know the lease by the token that was proposed, which no client ever receives.
            effects.event(EventKind::Acquired, &key.name, record, now);
        }
    }

    /// Its text takes the room of the one before, whatever the limit: the claim has the lock.
    fn give_options(&mut self, key: &ClaimKey, claim: &KeyedClaim<'_>, now: StoreTime) {
        let text = self.text(claim);
        let Some((slot, lock)) = self.locks.get_mut(&key.name) else {
            return;
        };
        lock.leases
            .change(key.claim, |record| record.give_options(claim, text, now));
        self.effects.lease_changed(&key.name, key.claim);
        self.touch(slot);
    }
}

/// Who takes permits of the lock.
fn permits_used(lock: &Lock) -> Vec<PermitUse> {
    let used = |user, mode| PermitUse {
        user,
        // A share has as many permits as fit.
        permits: u32::try_from(permits(mode)).unwrap_or(u32::MAX),
    };
    let claims = lock.leases.claims();
    let held = claims.iter().filter_map(|claim| {
        let record = lock.leases.get(*claim)?;
        Some(used(claim.0, record.mode()))
    });
    let cooling = lock.cooldowns().map(|(fence, mode)| {
        let user = u128::from(fence.get()).to_be_bytes();
        used(user, mode)
    });
    held.chain(cooling).collect()
}
