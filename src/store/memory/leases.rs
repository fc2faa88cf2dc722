//! The leases on one lock, indexed by token and by end. The lock decides which leases are admitted.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use crate::domain::{AnswerRoom, Holders, Token};

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
    leases: HashMap<Token, LeaseRecord>,
    /// Exactly one entry for each lease.
    ends: BTreeSet<(Instant, Token)>,
}

impl Leases {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn get(&self, token: Token) -> Option<&LeaseRecord> {
        match self {
            Self::One(record) if record.token == token => Some(record),
            Self::None | Self::One(_) => None,
            Self::Several(several) => several.leases.get(&token),
        }
    }

    /// For changes to anything but the end of the lease, which is indexed.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut LeaseRecord> {
        match self {
            Self::One(record) if record.token == token => Some(record),
            Self::None | Self::One(_) => None,
            Self::Several(several) => several.leases.get_mut(&token),
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

    pub(super) fn insert(&mut self, record: LeaseRecord) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(record),
            Self::One(other) => {
                let mut several = Box::<SharedLeases>::default();
                several.insert(other);
                several.insert(record);
                Self::Several(several)
            }
            Self::Several(mut several) => {
                several.insert(record);
                Self::Several(several)
            }
        };
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<LeaseRecord> {
        match std::mem::take(self) {
            Self::One(record) if record.token == token => Some(record),
            Self::Several(mut several) => {
                let record = several.remove(token);
                *self = match several.only() {
                    Some(last) => Self::One(last),
                    None => Self::Several(several),
                };
                record
            }
            others @ (Self::None | Self::One(_)) => {
                *self = others;
                None
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

    /// Removes one lease that has expired.
    pub(super) fn remove_ended(&mut self, now: StoreTime) -> Option<LeaseRecord> {
        let first = self.first().filter(|record| record.until <= now.instant)?;
        self.remove(first.token)
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

    /// All tokens, in the order in which the leases end.
    pub(super) fn tokens(&self) -> Vec<Token> {
        match self {
            Self::None => Vec::new(),
            Self::One(record) => vec![record.token],
            Self::Several(several) => several.ends.iter().map(|(_, token)| *token).collect(),
        }
    }
}

impl SharedLeases {
    /// All leases, in the order in which they end.
    fn in_order(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.ends.iter().map(|(_, token)| &self.leases[token])
    }

    fn insert(&mut self, record: LeaseRecord) {
        self.ends.insert((record.until, record.token));
        let before = self.leases.insert(record.token, record);
        debug_assert!(before.is_none(), "a claim holds a lock once");
    }

    fn remove(&mut self, token: Token) -> Option<LeaseRecord> {
        let record = self.leases.remove(&token)?;
        self.ends.remove(&(record.until, token));
        shrink(&mut self.leases);
        Some(record)
    }

    /// Removes the last lease, if only one is left.
    fn only(&mut self) -> Option<LeaseRecord> {
        match self.leases.len() {
            1 => self.leases.drain().next().map(|(_, record)| record),
            _ => None,
        }
    }
}

/// Frees the spare capacity of a map that was once much larger: the store's limit counts entries, not capacity.
pub(super) fn shrink<V>(map: &mut HashMap<Token, V>) {
    if map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}
