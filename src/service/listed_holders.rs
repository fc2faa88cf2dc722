//! How many holders the last answers about each lock listed. An answer that lists a hundred keeps the store busy about
//! as long as twenty operations on other locks.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::domain::{Acquired, AnswerRoom, Bucket, Claim, Conflict, ConflictKind, LockName};
use crate::domain::{LockState, LockView};

/// Numbers of holders, for one group of locks each. They are an estimate: locks of one group share a number, and it
/// falls by half with each shorter answer.
#[derive(Debug)]
pub(super) struct ListedHolders(Box<[AtomicU8]>);

impl Default for ListedHolders {
    fn default() -> Self {
        Self((0..Bucket::COUNT).map(|_| AtomicU8::new(0)).collect())
    }
}

impl ListedHolders {
    /// How many holders an answer about these locks is expected to list.
    pub(super) fn expected(&self, names: &[LockName]) -> usize {
        let of_locks = names
            .iter()
            .map(|name| self.of(name).load(Ordering::Relaxed));
        let all: usize = of_locks.map(usize::from).sum();
        all.min(AnswerRoom::HOLDERS_MAX)
    }

    /// Notes the answer to a claim.
    pub(super) fn acquired(&self, claim: &Claim, acquired: &Acquired) {
        if let Acquired::Blocked(conflicts) = acquired {
            self.conflicts(conflicts);
        } else {
            claim.names.iter().for_each(|name| self.note(name, 0));
        }
    }

    /// Notes what was told of a claim's conflicts.
    pub(super) fn conflicts(&self, conflicts: &[Conflict]) {
        for conflict in conflicts {
            if let ConflictKind::Holders(holders) = &conflict.by {
                self.note(&conflict.name, holders.listed.len());
            }
        }
    }

    /// Notes the view of a lock.
    pub(super) fn view(&self, view: &LockView) {
        let listed = match &view.state {
            LockState::Held(holders) => holders.listed.len(),
            LockState::Free | LockState::Cooling { .. } => 0,
        };
        self.note(&view.name, listed);
    }

    fn note(&self, name: &LockName, listed: usize) {
        let number = self.of(name);
        let before = number.load(Ordering::Relaxed);
        let now = u8::try_from(listed).unwrap_or(u8::MAX).max(before / 2);
        // Most locks have few holders, and a write would take the line from other cores.
        if now != before {
            number.store(now, Ordering::Relaxed);
        }
    }

    fn of(&self, name: &LockName) -> &AtomicU8 {
        &self.0[name.bucket().index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn long_answers_are_expected_again_until_shorter_ones_came() {
        let listed = ListedHolders::default();
        let (crowded, other) = (name("crowded"), name("other"));
        listed.note(&crowded, 100);
        assert_eq!(listed.expected(std::slice::from_ref(&crowded)), 100);
        assert_eq!(listed.expected(std::slice::from_ref(&other)), 0);
        listed.note(&crowded, 3);
        assert_eq!(listed.expected(std::slice::from_ref(&crowded)), 50);
        for _ in 0..6 {
            listed.note(&crowded, 0);
        }
        assert_eq!(listed.expected(&[crowded]), 0);
    }

    #[test]
    fn an_answer_lists_a_hundred_at_most() {
        let listed = ListedHolders::default();
        let names = ["a", "b", "c"].map(name);
        names.iter().for_each(|name| listed.note(name, 90));
        assert_eq!(listed.expected(&names), AnswerRoom::HOLDERS_MAX);
    }
}
