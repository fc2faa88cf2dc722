//! Tombstones of claims that ended a short while ago.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use super::StoreTime;
use super::effects::{Effects, Row};
use super::lease::LeaseRecord;
use crate::domain::{Attempt, ClaimDigest, Fence, NotHolder};
use crate::store::TOMBSTONE_TTL;

/// A list of this capacity is not worth shrinking.
const CAPACITY_MIN: usize = 1_024;

/// The tombstones of the last minute, limited to the latest `max`. The digest of a claim includes the name of its lock.
pub(super) struct Tombstones {
    max: usize,
    tombstones: BTreeMap<ClaimDigest, Tombstone>,
    /// When tombstones expire, in the order in which they were made; and those of tombstones that were replaced or
    /// withdrawn. Only an expiry that was noticed late can be out of order, and then waits for the ones before it.
    expiries: VecDeque<(StoreTime, ClaimDigest)>,
}

#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) until: StoreTime,
    pub(super) end: End,
}

/// How a claim ended.
#[derive(Debug)]
pub(super) enum End {
    Released,
    Evicted {
        reason: Box<str>,
    },
    Expired {
        /// Whether the lock was granted to another claim since.
        is_lost: bool,
        /// The expired grant, if no request but the attempt that made it has received it.
        unacknowledged: Option<Box<(Attempt, Fence)>>,
    },
}

impl Tombstones {
    /// Keeps at most `max` tombstones.
    pub(super) fn at_most(max: usize) -> Self {
        Self {
            max,
            tombstones: BTreeMap::new(),
            expiries: VecDeque::new(),
        }
    }

    /// All tombstones.
    #[cfg(test)]
    pub(super) fn rows(&self) -> impl Iterator<Item = (Row, String)> {
        let describe =
            |(claim, it): (&ClaimDigest, &Tombstone)| (Row::Tombstone(*claim), format!("{it:?}"));
        self.tombstones.iter().map(describe)
    }

    /// The tombstone of the claim, past or not.
    pub(super) fn of(&self, claim: ClaimDigest) -> Option<&Tombstone> {
        self.tombstones.get(&claim)
    }

    /// Puts back tombstones that were loaded, in the order of their time.
    pub(super) fn restore(&mut self, mut loaded: Vec<(ClaimDigest, Tombstone)>) {
        loaded.sort_by_key(|(_, tombstone)| tombstone.until);
        for (claim, tombstone) in loaded {
            self.expiries.push_back((tombstone.until, claim));
            self.tombstones.insert(claim, tombstone);
        }
    }

    /// How the claim ended, if it has ended.
    pub(super) fn get(&self, claim: ClaimDigest, now: StoreTime) -> Option<NotHolder> {
        let tombstone = self.tombstones.get(&claim)?;
        (tombstone.until > now).then(|| tombstone.end.reason())
    }

    pub(super) fn remember(
        &mut self,
        claim: ClaimDigest,
        end: End,
        since: StoreTime,
        effects: &mut Effects,
    ) {
        effects.changed(|| Row::Tombstone(claim));
        let until = since + TOMBSTONE_TTL;
        self.tombstones.insert(claim, Tombstone { until, end });
        self.expiries.push_back((until, claim));
        while self.tombstones.len() > self.max && self.remove_first(effects) {}
    }

    /// Records an expired lease. Its grant can still be withdrawn if only the attempt that made it has received it.
    pub(super) fn remember_expired(&mut self, record: &LeaseRecord, effects: &mut Effects) {
        let unacknowledged = record.receivers.unacknowledged();
        let end = End::Expired {
            is_lost: false,
            unacknowledged: unacknowledged.map(|attempt| Box::new((attempt, record.fence))),
        };
        self.remember(record.claim, end, record.until, effects);
    }

    /// Records that the lock was granted to another claim after this claim's lease expired.
    pub(super) fn lose(&mut self, claim: ClaimDigest, effects: &mut Effects) {
        if let Some(tombstone) = self.tombstones.get_mut(&claim)
            && let End::Expired { is_lost, .. } = &mut tombstone.end
        {
            *is_lost = true;
            effects.changed(|| Row::Tombstone(claim));
        }
    }

    /// Drops the tombstone of an expired grant that this attempt made. Returns the grant's fencing token.
    pub(super) fn withdraw(
        &mut self,
        claim: ClaimDigest,
        attempt: Attempt,
        effects: &mut Effects,
    ) -> Option<Fence> {
        let tombstone = self.tombstones.get(&claim)?;
        let End::Expired {
            unacknowledged: Some(grant),
            ..
        } = &tombstone.end
        else {
            return None;
        };
        let (by, fence) = **grant;
        if by != attempt {
            return None;
        }
        self.tombstones.remove(&claim);
        effects.changed(|| Row::Tombstone(claim));
        Some(fence)
    }

    /// Drops one expired tombstone. Returns whether there was one.
    pub(super) fn forget(&mut self, now: StoreTime, effects: &mut Effects) -> bool {
        let first = self.expiries.front();
        first.is_some_and(|(until, _)| *until <= now) && self.remove_first(effects)
    }

    /// Drops the first tombstone, unless it was replaced or withdrawn. Returns whether there was one.
    fn remove_first(&mut self, effects: &mut Effects) -> bool {
        let Some((until, claim)) = self.expiries.pop_front() else {
            return false;
        };
        if let Entry::Occupied(tombstone) = self.tombstones.entry(claim)
            && tombstone.get().until == until
        {
            tombstone.remove();
            effects.changed(|| Row::Tombstone(claim));
        }
        let (length, capacity) = (self.expiries.len(), self.expiries.capacity());
        if capacity > CAPACITY_MIN && length < capacity / 4 {
            self.expiries.shrink_to(capacity / 2);
        }
        true
    }
}

impl End {
    fn reason(&self) -> NotHolder {
        match self {
            Self::Released => NotHolder::Released,
            Self::Evicted { reason } => NotHolder::Evicted {
                reason: reason.to_string(),
            },
            Self::Expired { is_lost: true, .. } => NotHolder::Lost,
            Self::Expired { is_lost: false, .. } => NotHolder::Expired,
        }
    }
}
