//! The attempts of a claim that received its lease, and which of them may roll it back. When a lease ends and what it leaves
//! behind is not known here.
//!
//! A lease passes from attempt to attempt. If one of them is undone, because no client received its answer, the lease goes
//! back to the attempt before.

use crate::domain::{Attempt, Rollback};

/// The most attempts that are remembered of one lease.
const TURNS_MAX: usize = 32;

/// The attempts that received a lease, and which of them may roll it back.
#[derive(Debug)]
pub(super) enum Receivers {
    /// Only the attempt that made the grant, which may roll it back.
    Grantee(Attempt),
    /// A request after which no earlier attempt may roll the lease back.
    Independent,
    /// Several attempts in turn. The last one may roll the lease back.
    InTurn(Box<Turns>),
}

#[derive(Debug)]
pub(super) struct Turns(pub(super) Vec<Turn>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Attempt(Attempt),
    /// An attempt whose stream was closed before the one after it.
    Closed,
    /// The attempt that made the grant, undone before the one after it.
    Undone,
    /// An attempt whose lease was not counted, undone before the one after it. No further attempt receives the lease while
    /// it is young and undecided.
    Refused,
    Independent,
}

impl Receivers {
    /// The attempt that may roll the lease back, if one may.
    pub(super) fn withdrawable_by(&self) -> Option<Attempt> {
        match self {
            Self::Grantee(grantee) => Some(*grantee),
            Self::Independent => None,
            Self::InTurn(turns) => match turns.0.last() {
                Some(Turn::Attempt(attempt)) => Some(*attempt),
                Some(Turn::Closed | Turn::Undone | Turn::Refused | Turn::Independent) | None => {
                    None
                }
            },
        }
    }

    /// Whether this attempt may roll the lease back.
    pub(super) fn may_be_withdrawn_by(&self, attempt: Attempt) -> bool {
        self.withdrawable_by() == Some(attempt)
    }

    /// Whether another attempt than this one may roll the lease back.
    pub(super) fn have_passed(&self, attempt: Attempt) -> bool {
        self.withdrawable_by().is_some_and(|last| last != attempt)
    }

    /// Whether any attempt may roll the lease back.
    pub(super) fn may_be_withdrawn(&self) -> bool {
        self.withdrawable_by().is_some()
    }

    /// Whether the lease stays used, by a client or a stream, when its last attempt is undone.
    pub(super) fn have_used_it(&self) -> bool {
        match self {
            Self::Grantee(_) => false,
            Self::Independent => true,
            Self::InTurn(turns) => turns.0.split_last().is_some_and(|(_, before)| {
                let is_undone = |turn: &Turn| matches!(turn, Turn::Undone | Turn::Refused);
                !before.iter().all(is_undone)
            }),
        }
    }

    /// Whether one of them was refused what it had, and this attempt comes only now.
    pub(super) fn are_closed_to(&self, attempt: Attempt) -> bool {
        match self {
            Self::InTurn(turns) => {
                turns.0.contains(&Turn::Refused) && !turns.0.contains(&Turn::Attempt(attempt))
            }
            Self::Grantee(_) | Self::Independent => false,
        }
    }

    /// The attempt that made the grant, if no other request has received the lease.
    pub(super) fn unacknowledged(&self) -> Option<Attempt> {
        match self {
            Self::Grantee(attempt) => Some(*attempt),
            Self::Independent => None,
            Self::InTurn(turns) => match turns.0[..] {
                [Turn::Attempt(attempt)] => Some(attempt),
                _ => None,
            },
        }
    }

    /// Passes the lease to an attempt, unless it has received the lease before.
    pub(super) fn pass_to(&mut self, attempt: Attempt) {
        let before = match self {
            Self::InTurn(turns) => return turns.pass_to(attempt),
            Self::Grantee(grantee) if *grantee == attempt => return,
            Self::Grantee(grantee) => Turn::Attempt(*grantee),
            Self::Independent => Turn::Independent,
        };
        let turns = vec![before, Turn::Attempt(attempt)];
        *self = Self::InTurn(Box::new(Turns(turns)));
    }

    /// Ends the turn of an attempt whose stream was closed, or that is undone. Returns whether the lease is to end.
    pub(super) fn end_turn(&mut self, attempt: Attempt, rollback: Rollback) -> bool {
        match self {
            Self::InTurn(turns) => turns.end(attempt, rollback),
            Self::Grantee(_) | Self::Independent => self.may_be_withdrawn_by(attempt),
        }
    }
}

impl Turns {
    fn pass_to(&mut self, attempt: Attempt) {
        let turn = Turn::Attempt(attempt);
        if self.0.contains(&turn) {
            return;
        }
        if self.0.len() == TURNS_MAX {
            self.0.remove(1);
        }
        self.0.push(turn);
    }

    fn end(&mut self, attempt: Attempt, rollback: Rollback) -> bool {
        let mut turns = self.0.iter();
        let Some(index) = turns.position(|turn| *turn == Turn::Attempt(attempt)) else {
            return false;
        };
        let is_last = index + 1 == self.0.len();
        // A grant has no attempt before it that the lease could go back to.
        let is_first = match index.checked_sub(1).map(|before| self.0[before]) {
            None => true,
            Some(Turn::Closed | Turn::Undone | Turn::Refused) => {
                is_last || rollback == Rollback::Refuse
            }
            Some(Turn::Attempt(_) | Turn::Independent) => false,
        };
        if rollback != Rollback::Close && !is_first {
            self.0.remove(index);
            return false;
        }
        self.0[index] = match rollback {
            Rollback::Undo => Turn::Undone,
            Rollback::Refuse => Turn::Refused,
            Rollback::Close => Turn::Closed,
        };
        is_last
    }
}
