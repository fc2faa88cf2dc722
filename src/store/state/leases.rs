//! The leases on one lock, indexed by claim and by end. The lock decides which leases are admitted.

use std::collections::{BTreeMap, BTreeSet};

use super::StoreTime;
use super::lease::{LeaseRecord, permits};
use crate::domain::{AnswerRoom, ClaimDigest, Holders, Mode};

/// All leases on one lock.
///
/// Most locks have one holder, and there may be millions of them: a single lease needs no index.
#[derive(Default)]
pub(super) enum Leases {
    #[default]
    None,
    One(LeaseRecord),
    Several(Box<SharedLeases>),
}

/// At least two leases.
#[derive(Default)]
pub(super) struct SharedLeases {
    leases: BTreeMap<ClaimDigest, LeaseRecord>,
    /// Exactly one entry for each lease.
    ends: BTreeSet<(StoreTime, ClaimDigest)>,
    /// How many permits the leases take together.
    permits: u64,
}

impl Leases {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn get(&self, claim: ClaimDigest) -> Option<&LeaseRecord> {
        match self {
            Self::One(record) if record.claim == claim => Some(record),
            Self::None | Self::One(_) => None,
            Self::Several(several) => several.leases.get(&claim),
        }
    }

    /// For changes to anything but the end and the mode of the lease, which are indexed.
    pub(super) fn get_mut(&mut self, claim: ClaimDigest) -> Option<&mut LeaseRecord> {
        match self {
            Self::One(record) if record.claim == claim => Some(record),
            Self::None | Self::One(_) => None,
            Self::Several(several) => several.leases.get_mut(&claim),
        }
    }

    /// Changes a lease in any way.
    pub(super) fn change(&mut self, claim: ClaimDigest, change: impl FnOnce(&mut LeaseRecord)) {
        if let Self::Several(several) = self {
            if let Some(mut record) = several.remove(claim) {
                change(&mut record);
                several.insert(record);
            }
        } else if let Some(record) = self.get_mut(claim) {
            // A single lease is not indexed.
            change(record);
        }
    }

    /// The lease that ends first.
    pub(super) fn first(&self) -> Option<&LeaseRecord> {
        match self {
            Self::None => None,
            Self::One(record) => Some(record),
            Self::Several(several) => several.in_order().next(),
        }
    }

    /// The mode of all leases, which admit each other; none if there are none.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.first().map(LeaseRecord::mode)
    }

    /// How many permits the leases take together.
    pub(super) fn permits(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::One(record) => permits(record.mode()),
            Self::Several(several) => several.permits,
        }
    }

    pub(super) fn insert(&mut self, record: LeaseRecord) {
        match self {
            Self::None => *self = Self::One(record),
            Self::Several(several) => several.insert(record),
            Self::One(_) => {
                if let Self::One(other) = std::mem::take(self) {
                    let mut several = Box::<SharedLeases>::default();
                    several.insert(other);
                    several.insert(record);
                    *self = Self::Several(several);
                }
            }
        }
    }

    pub(super) fn remove(&mut self, claim: ClaimDigest) -> Option<LeaseRecord> {
        match self {
            Self::One(record) if record.claim == claim => match std::mem::take(self) {
                Self::One(record) => Some(record),
                Self::None | Self::Several(_) => None,
            },
            Self::None | Self::One(_) => None,
            Self::Several(several) => {
                let record = several.remove(claim);
                if let Some(last) = several.only() {
                    *self = Self::One(last);
                }
                record
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Several(several) => several.leases.len(),
        }
    }

    /// The public view of the holders, as far as the answer has room.
    pub(super) fn listed(&self, room: &mut AnswerRoom, now: StoreTime) -> Holders {
        match self {
            Self::None => Holders::none(),
            Self::One(record) => Holders {
                listed: room.take(std::iter::once(record.holder(now))),
                total: 1,
            },
            Self::Several(several) => Holders {
                listed: room.take(several.in_order().map(|record| record.holder(now))),
                total: several.leases.len() as u64,
            },
        }
    }

    /// All claims, in the order in which the leases end.
    pub(super) fn claims(&self) -> Vec<ClaimDigest> {
        match self {
            Self::None => Vec::new(),
            Self::One(record) => vec![record.claim],
            Self::Several(several) => several.ends.iter().map(|(_, claim)| *claim).collect(),
        }
    }
}

impl SharedLeases {
    /// All leases, in the order in which they end.
    fn in_order(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.ends.iter().map(|(_, claim)| &self.leases[claim])
    }

    fn insert(&mut self, record: LeaseRecord) {
        self.permits += permits(record.mode());
        self.ends.insert((record.until, record.claim));
        let before = self.leases.insert(record.claim, record);
        debug_assert!(before.is_none(), "a claim holds a lock once");
    }

    fn remove(&mut self, claim: ClaimDigest) -> Option<LeaseRecord> {
        let record = self.leases.remove(&claim)?;
        self.ends.remove(&(record.until, claim));
        self.permits -= permits(record.mode());
        Some(record)
    }

    /// Removes the last lease, if only one is left.
    fn only(&mut self) -> Option<LeaseRecord> {
        match self.leases.len() {
            1 => self.leases.pop_first().map(|(_, record)| record),
            _ => None,
        }
    }
}
