//! The attempts that received a lease, and which of them may roll it back.
//!
//! A lease passes from attempt to attempt. If one of them is undone, because no client received its answer, the lease goes
//! back to the attempt before.

use crate::domain::{Attempt, Rollback};

/// The most attempts that are remembered of one lease.
const TURNS_MAX: usize = 32;

pub(super) enum Receivers {
    /// Only the attempt that made the grant, which may roll it back.
    Grantee(Attempt),
    /// A request after which no earlier attempt may roll the lease back.
    Independent,
    /// Several attempts in turn. The last one may roll the lease back.
    InTurn(Box<Turns>),
}

pub(super) struct Turns(Vec<Turn>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Attempt(Attempt),
    /// An attempt whose stream was closed, or whose grant was undone, before the one after it.
    Closed,
    Independent,
}

impl Receivers {
    /// Whether this attempt may roll the lease back.
    pub(super) fn may_be_withdrawn_by(&self, attempt: Attempt) -> bool {
        match self {
            Self::Grantee(grantee) => *grantee == attempt,
            Self::Independent => false,
            Self::InTurn(turns) => turns.0.last() == Some(&Turn::Attempt(attempt)),
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
        let is_undone = rollback == Rollback::Undo && index > 0;
        if is_undone && !(is_last && self.0[index - 1] == Turn::Closed) {
            self.0.remove(index);
            return false;
        }
        self.0[index] = Turn::Closed;
        is_last
    }
}
