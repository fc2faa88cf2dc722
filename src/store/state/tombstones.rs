//! Tombstones of claims that ended a short while ago.

use std::collections::{BTreeMap, BTreeSet};

use super::effects::{Effects, Row};
use super::lease::LeaseRecord;
use super::time::StoreTime;
use crate::domain::{Attempt, ClaimDigest, Fence, NotHolder};
use crate::store::TOMBSTONE_TTL;

/// The tombstones of the last minute, limited to the latest `max`. The digest of a claim includes the name of its lock.
pub(super) struct Tombstones {
    max: usize,
    tombstones: BTreeMap<ClaimDigest, Tombstone>,
    /// Exactly one entry for each tombstone.
    expiries: BTreeSet<(StoreTime, ClaimDigest)>,
}

struct Tombstone {
    until: StoreTime,
    end: End,
}

/// How a claim ended.
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
            expiries: BTreeSet::new(),
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
        if let Some(before) = self.tombstones.insert(claim, Tombstone { until, end }) {
            self.expiries.remove(&(before.until, claim));
        }
        self.expiries.insert((until, claim));
        if self.tombstones.len() > self.max
            && let Some((_, first)) = self.expiries.pop_first()
        {
            self.tombstones.remove(&first);
            effects.changed(|| Row::Tombstone(first));
        }
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
        self.expiries.remove(&(tombstone.until, claim));
        self.tombstones.remove(&claim);
        effects.changed(|| Row::Tombstone(claim));
        Some(fence)
    }

    /// Drops one expired tombstone. Returns whether there was one.
    pub(super) fn forget(&mut self, now: StoreTime, effects: &mut Effects) -> bool {
        let Some(first) = self.expiries.first().filter(|(until, _)| *until <= now) else {
            return false;
        };
        let (_, claim) = *first;
        self.expiries.pop_first();
        self.tombstones.remove(&claim);
        effects.changed(|| Row::Tombstone(claim));
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
