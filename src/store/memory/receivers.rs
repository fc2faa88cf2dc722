//! The attempts that received a lease, and which of them may roll it back.
//!
//! A lease that a stream holds or has held passes from attempt to attempt. If one of them is undone, because no client
//! received its answer, the lease goes back to the attempt before.

use crate::domain::{Attempt, Rollback};

/// The most attempts that are remembered of one lease.
const TURNS_MAX: usize = 32;

pub(super) enum Receivers {
    /// Only the attempt that made the grant, which may roll it back.
    Grantee(Attempt),
    /// Other requests, too: no attempt may roll the lease back.
    Several,
    /// Of a lease that a stream holds or has held: the attempts in turn. The last one may roll the lease back.
    InTurn(Box<Turns>),
}

pub(super) struct Turns(Vec<Turn>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Grantee(Attempt),
    Successor(Attempt),
    /// An attempt whose stream was closed before the one after it.
    Closed,
    /// A request after which no earlier attempt may roll the lease back.
    Independent,
}

impl Turn {
    fn is_of(self, attempt: Attempt) -> bool {
        [Self::Grantee(attempt), Self::Successor(attempt)].contains(&self)
    }
}

impl Receivers {
    pub(super) fn grantee(attempt: Attempt, is_stream: bool) -> Self {
        match is_stream {
            true => Self::InTurn(Box::new(Turns(vec![Turn::Grantee(attempt)]))),
            false => Self::Grantee(attempt),
        }
    }

    /// Whether a stream holds the lease, or has held it.
    pub(super) fn is_of_stream(&self) -> bool {
        matches!(self, Self::InTurn(_))
    }

    /// Whether this attempt may roll the lease back.
    pub(super) fn may_be_withdrawn_by(&self, attempt: Attempt) -> bool {
        match self {
            Self::Grantee(grantee) => *grantee == attempt,
            Self::Several => false,
            Self::InTurn(turns) => turns.0.last().is_some_and(|turn| turn.is_of(attempt)),
        }
    }

    /// The attempt that made the grant, if no other request has received the lease.
    pub(super) fn unacknowledged(&self) -> Option<Attempt> {
        match self {
            Self::Grantee(attempt) => Some(*attempt),
            Self::Several => None,
            Self::InTurn(turns) => match turns.0[..] {
                [Turn::Grantee(attempt)] => Some(attempt),
                _ => None,
            },
        }
    }

    /// Passes the lease to an attempt, unless it has received the lease before.
    pub(super) fn pass_to(&mut self, attempt: Attempt, is_stream: bool) {
        let before = match self {
            Self::InTurn(turns) => return turns.pass_to(attempt),
            Self::Grantee(grantee) if *grantee == attempt => return,
            Self::Grantee(grantee) => Turn::Grantee(*grantee),
            Self::Several => Turn::Independent,
        };
        *self = match is_stream {
            true => {
                let turns = vec![before, Turn::Successor(attempt)];
                Self::InTurn(Box::new(Turns(turns)))
            }
            false => Self::Several,
        };
    }

    /// Leaves no attempt that may roll the lease back.
    pub(super) fn make_independent(&mut self) {
        match self {
            Self::InTurn(turns) => turns.push(Turn::Independent),
            Self::Grantee(_) | Self::Several => *self = Self::Several,
        }
    }

    /// Ends the turn of an attempt whose stream was closed, or that is undone. Returns whether the lease is to end.
    pub(super) fn end_turn(&mut self, attempt: Attempt, rollback: Rollback) -> bool {
        match self {
            Self::InTurn(turns) => turns.end(attempt, rollback),
            Self::Grantee(_) | Self::Several => self.may_be_withdrawn_by(attempt),
        }
    }
}

impl Turns {
    fn pass_to(&mut self, attempt: Attempt) {
        if !self.0.iter().any(|turn| turn.is_of(attempt)) {
            self.push(Turn::Successor(attempt));
        }
    }

    fn push(&mut self, turn: Turn) {
        if self.0.len() == TURNS_MAX {
            self.0.remove(1);
        }
        self.0.push(turn);
    }

    fn end(&mut self, attempt: Attempt, rollback: Rollback) -> bool {
        let Some(index) = self.0.iter().position(|turn| turn.is_of(attempt)) else {
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
