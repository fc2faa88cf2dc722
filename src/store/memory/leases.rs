//! Those who hold one lock, found by token and by the end of the lease. Who may join them is the lock's affair.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use crate::domain::{AnswerRoom, Holders, Token};

/// All holds on one lock.
///
/// Most locks are held once, and there may be millions of them: a single hold needs no index.
#[derive(Default)]
pub(super) enum Leases {
    #[default]
    None,
    One(LeaseRecord),
    Several(Box<SharedLeases>),
}

/// Never fewer than two.
#[derive(Default)]
pub(super) struct SharedLeases {
    holds: HashMap<Token, LeaseRecord>,
    /// Exactly one entry for each hold.
    ends: BTreeSet<(Instant, Token)>,
}

impl Leases {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn get(&self, token: Token) -> Option<&LeaseRecord> {
        match self {
            Self::One(hold) if hold.token == token => Some(hold),
            Self::None | Self::One(_) => None,
            Self::Several(several) => several.holds.get(&token),
        }
    }

    /// For changes to anything but the end of the lease.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut LeaseRecord> {
        match self {
            Self::One(hold) if hold.token == token => Some(hold),
            Self::None | Self::One(_) => None,
            Self::Several(several) => several.holds.get_mut(&token),
        }
    }

    /// The hold whose lease ends first.
    pub(super) fn first(&self) -> Option<&LeaseRecord> {
        match self {
            Self::None => None,
            Self::One(hold) => Some(hold),
            Self::Several(several) => several.in_order().next(),
        }
    }

    pub(super) fn insert(&mut self, hold: LeaseRecord) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(hold),
            Self::One(other) => {
                let mut several = Box::<SharedLeases>::default();
                several.insert(other);
                several.insert(hold);
                Self::Several(several)
            }
            Self::Several(mut several) => {
                several.insert(hold);
                Self::Several(several)
            }
        };
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<LeaseRecord> {
        match std::mem::take(self) {
            Self::One(hold) if hold.token == token => Some(hold),
            Self::Several(mut several) => {
                let hold = several.remove(token);
                *self = match several.only() {
                    Some(last) => Self::One(last),
                    None => Self::Several(several),
                };
                hold
            }
            others @ (Self::None | Self::One(_)) => {
                *self = others;
                None
            }
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Several(several) => several.holds.len(),
        }
    }

    /// Takes out one hold whose lease has run out.
    pub(super) fn remove_ended(&mut self, now: StoreTime) -> Option<LeaseRecord> {
        let first = self.first().filter(|hold| hold.until <= now.instant)?;
        self.remove(first.token)
    }

    /// What everybody may see of them, as far as an answer has room for it.
    pub(super) fn listed(&self, room: &mut AnswerRoom, now: StoreTime) -> Holders {
        match self {
            Self::None => Holders::none(),
            Self::One(hold) => Holders {
                listed: room.take(std::iter::once(hold.holder(now))),
                total: 1,
            },
            Self::Several(several) => Holders {
                listed: room.take(several.in_order().map(|hold| hold.holder(now))),
                total: several.holds.len() as u64,
            },
        }
    }

    /// All of them, those first whose leases end first.
    pub(super) fn tokens(&self) -> Vec<Token> {
        match self {
            Self::None => Vec::new(),
            Self::One(hold) => vec![hold.token],
            Self::Several(several) => several.ends.iter().map(|(_, token)| *token).collect(),
        }
    }
}

impl SharedLeases {
    /// Those whose leases end first come first.
    fn in_order(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.ends.iter().map(|(_, token)| &self.holds[token])
    }

    fn insert(&mut self, hold: LeaseRecord) {
        self.ends.insert((hold.until, hold.token));
        let before = self.holds.insert(hold.token, hold);
        debug_assert!(before.is_none(), "a claim holds a lock once");
    }

    fn remove(&mut self, token: Token) -> Option<LeaseRecord> {
        let hold = self.holds.remove(&token)?;
        self.ends.remove(&(hold.until, token));
        shrink(&mut self.holds);
        Some(hold)
    }

    /// Takes out the only one that is left.
    fn only(&mut self) -> Option<LeaseRecord> {
        match self.holds.len() {
            1 => self.holds.drain().next().map(|(_, hold)| hold),
            _ => None,
        }
    }
}

/// Gives back the room that a map has of a time when it was much larger: what is counted is what is in it.
pub(super) fn shrink<V>(map: &mut HashMap<Token, V>) {
    if map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}
