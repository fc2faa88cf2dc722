//! Tombstones of claims that ended a short while ago.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use crate::domain::{Attempt, Fence, LockName, NotHolder, Token};
use crate::store::TOMBSTONE_TTL;

/// The tombstones of the last minute, limited to the latest `max`.
pub(super) struct Tombstones {
    max: usize,
    tombstones: HashMap<(LockName, Token), Tombstone>,
    /// Exactly one entry for each tombstone.
    expiries: BTreeSet<(Instant, LockName, Token)>,
}

struct Tombstone {
    reason: NotHolder,
    until: Instant,
    /// The expired grant, if no request but the attempt that made it has received it.
    unacknowledged: Option<(Attempt, Fence)>,
}

impl Tombstones {
    /// Keeps at most `max` tombstones.
    pub(super) fn at_most(max: usize) -> Self {
        Self {
            max,
            tombstones: HashMap::new(),
            expiries: BTreeSet::new(),
        }
    }

    /// How the claim ended, if it has ended.
    pub(super) fn get(&self, name: &LockName, token: Token, now: StoreTime) -> Option<NotHolder> {
        let tombstone = self.tombstones.get(&(name.clone(), token))?;
        (tombstone.until > now.instant).then(|| tombstone.reason.clone())
    }

    pub(super) fn remember(
        &mut self,
        name: &LockName,
        token: Token,
        reason: NotHolder,
        since: Instant,
    ) {
        let until = since + TOMBSTONE_TTL;
        self.insert(
            name,
            token,
            Tombstone {
                reason,
                until,
                unacknowledged: None,
            },
        );
    }

    /// Records an expired lease. Its grant can still be withdrawn if only the attempt that made it has received it.
    pub(super) fn remember_expired(&mut self, name: &LockName, record: &LeaseRecord) {
        let tombstone = Tombstone {
            reason: NotHolder::Expired,
            until: record.until + TOMBSTONE_TTL,
            unacknowledged: record
                .receivers
                .unacknowledged()
                .map(|attempt| (attempt, record.fence)),
        };
        self.insert(name, record.token, tombstone);
    }

    /// Records that the lock was granted to another claim after this claim's lease expired.
    pub(super) fn lose(&mut self, name: &LockName, token: Token) {
        if let Some(tombstone) = self.tombstones.get_mut(&(name.clone(), token)) {
            tombstone.reason = NotHolder::Lost;
        }
    }

    /// Drops the tombstone of an expired grant that this attempt made. Returns the grant's fencing token.
    pub(super) fn withdraw(
        &mut self,
        name: &LockName,
        token: Token,
        attempt: Attempt,
    ) -> Option<Fence> {
        let (by, fence) = self
            .tombstones
            .get(&(name.clone(), token))?
            .unacknowledged?;
        if by != attempt {
            return None;
        }
        self.remove(name.clone(), token);
        Some(fence)
    }

    /// Drops one expired tombstone. Returns whether there was one.
    pub(super) fn forget(&mut self, now: StoreTime) -> bool {
        match self.expiries.first() {
            Some((until, name, token)) if *until <= now.instant => {
                let (name, token) = (name.clone(), *token);
                self.remove(name, token);
                true
            }
            Some(_) | None => false,
        }
    }

    fn insert(&mut self, name: &LockName, token: Token, tombstone: Tombstone) {
        let until = tombstone.until;
        if let Some(before) = self.tombstones.insert((name.clone(), token), tombstone) {
            self.expiries.remove(&(before.until, name.clone(), token));
        }
        self.expiries.insert((until, name.clone(), token));
        if self.tombstones.len() > self.max
            && let Some((_, name, token)) = self.expiries.first().cloned()
        {
            self.remove(name, token);
        }
    }

    fn remove(&mut self, name: LockName, token: Token) {
        let claim = (name, token);
        if let Some(tombstone) = self.tombstones.remove(&claim) {
            let (name, token) = claim;
            self.expiries.remove(&(tombstone.until, name, token));
        }
    }
}
