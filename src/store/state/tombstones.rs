//! Tombstones of claims that ended a short while ago.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use super::StoreTime;
use super::effects::{Effects, Row};
use super::lease::LeaseRecord;
use crate::domain::{Attempt, ClaimDigest, Fence, NotHolder};
use crate::store::TOMBSTONE_TTL;

/// How many expiries a chunk has.
const CHUNK: usize = 1_024;

/// How many expiries are looked at to make room for a tombstone.
const TRIMMED_MAX: usize = 64;

/// The tombstones of the last minute, limited to the latest `max`. The digest of a claim includes the name of its lock.
pub(super) struct Tombstones {
    max: usize,
    tombstones: BTreeMap<ClaimDigest, Tombstone>,
    /// When tombstones expire, in the order in which they were made; and those of tombstones that were replaced or
    /// withdrawn. Only an expiry that was noticed late can be out of order, and then waits for the ones before it.
    expiries: ChunkedQueue<(StoreTime, ClaimDigest)>,
}

/// A queue that grows and shrinks in chunks, so no step is delayed by copying all of it.
struct ChunkedQueue<T>(VecDeque<VecDeque<T>>);

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
        unacknowledged: Option<Box<ExpiredGrant>>,
    },
}

/// A grant that expired before any request but the attempt that made it has received it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpiredGrant {
    pub(super) attempt: Attempt,
    pub(super) fence: Fence,
    /// Until when it keeps the lock taken, which may be past.
    pub(super) kept: StoreTime,
}

impl Tombstones {
    /// Keeps at most `max` tombstones.
    pub(super) fn at_most(max: usize) -> Self {
        Self {
            max,
            tombstones: BTreeMap::new(),
            expiries: ChunkedQueue(VecDeque::new()),
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

    /// Puts back tombstones that were loaded.
    pub(super) fn restore(&mut self, loaded: BTreeMap<ClaimDigest, Tombstone>) {
        let untils = loaded.iter().map(|(claim, it)| (it.until, *claim));
        let mut expiries: Vec<_> = untils.collect();
        expiries.sort_unstable();
        for expiry in expiries {
            self.expiries.push_back(expiry);
        }
        self.tombstones = loaded;
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
        // Expiries of tombstones that were replaced make no room. The rest is for the next ones.
        for _ in 0..TRIMMED_MAX {
            if self.tombstones.len() <= self.max || !self.remove_first(effects) {
                break;
            }
        }
    }

    /// Records an expired lease. Its grant can still be withdrawn if only the attempt that made it has received it.
    pub(super) fn remember_expired(&mut self, record: &LeaseRecord, effects: &mut Effects) {
        let unacknowledged = record.receivers.unacknowledged().map(|attempt| {
            Box::new(ExpiredGrant {
                attempt,
                fence: record.fence,
                kept: record.kept_after_expiry(),
            })
        });
        let end = End::Expired {
            is_lost: false,
            unacknowledged,
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

    /// Drops the tombstone of an expired grant that this attempt made. Returns the grant.
    pub(super) fn withdraw(
        &mut self,
        claim: ClaimDigest,
        attempt: Attempt,
        effects: &mut Effects,
    ) -> Option<ExpiredGrant> {
        let tombstone = self.tombstones.get(&claim)?;
        let End::Expired {
            unacknowledged: Some(grant),
            ..
        } = &tombstone.end
        else {
            return None;
        };
        let grant = **grant;
        if grant.attempt != attempt {
            return None;
        }
        self.tombstones.remove(&claim);
        effects.changed(|| Row::Tombstone(claim));
        Some(grant)
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
        true
    }
}

impl<T> ChunkedQueue<T> {
    fn push_back(&mut self, value: T) {
        match self.0.back_mut() {
            Some(last) if last.len() < CHUNK => last.push_back(value),
            Some(_) | None => {
                let mut chunk = VecDeque::with_capacity(CHUNK);
                chunk.push_back(value);
                self.0.push_back(chunk);
            }
        }
    }

    fn front(&self) -> Option<&T> {
        self.0.front()?.front()
    }

    fn pop_front(&mut self) -> Option<T> {
        let first = self.0.front_mut()?;
        let value = first.pop_front();
        if first.is_empty() {
            self.0.pop_front();
        }
        value
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
