//! How many holders the last answers about each lock listed. An answer that lists a hundred keeps the store busy about
//! as long as twenty operations on other locks.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::domain::{
    Acquired, AnswerRoom, Claim, Conflict, ConflictKind, LockName, LockState, LockView, Refused,
};

/// How many locks are known at a time, in 256 KiB. To make the service forget some, a client has to hold as many crowded
/// locks, which costs it more than their first answers cost the store.
const ENTRIES: usize = 65_536;
/// Shorter lists make no difference.
const LISTED_MIN: usize = 4;
const COUNT_MAX: u32 = 0xff;

/// Numbers of holders, in a table of fixed size. They are an estimate: a lock whose entry another lock has taken counts
/// as unknown, and a number falls by half with each shorter answer. Locks with a short list take no entry, so they
/// displace none.
#[derive(Debug)]
pub(super) struct ListedHolders {
    /// Each has a part of the hash of the name in the upper 24 bits, and the number in the lower 8.
    entries: Box<[AtomicU32]>,
    /// Whether there is any entry. Most services never have one.
    is_used: AtomicBool,
    /// Keyed at random, so that no client knows which names share an entry.
    hasher: RandomState,
}

impl Default for ListedHolders {
    fn default() -> Self {
        Self {
            entries: (0..ENTRIES).map(|_| AtomicU32::new(0)).collect(),
            is_used: AtomicBool::new(false),
            hasher: RandomState::new(),
        }
    }
}

impl ListedHolders {
    /// How many holders an answer about these locks is expected to list.
    pub(super) fn expected(&self, names: &[LockName]) -> usize {
        if !self.is_used.load(Ordering::Relaxed) {
            return 0;
        }
        let of_lock = |name| {
            let (entry, tag) = self.entry(name);
            count_of(entry.load(Ordering::Relaxed), tag)
        };
        let all: u32 = names.iter().map(of_lock).sum();
        (all as usize).min(AnswerRoom::HOLDERS_MAX)
    }

    /// Notes the answer to a claim.
    pub(super) fn acquired(&self, claim: &Claim, acquired: &Acquired) {
        if let Acquired::Refused(Refused::Blocked(conflicts)) = acquired {
            self.conflicts(conflicts);
        } else {
            claim.names.iter().for_each(|name| self.note(name, 0));
        }
    }

    /// Notes the conflicts of a claim.
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
        let is_short = listed < LISTED_MIN;
        if is_short && !self.is_used.load(Ordering::Relaxed) {
            return;
        }
        let (entry, tag) = self.entry(name);
        let before = entry.load(Ordering::Relaxed);
        let is_own = before & !COUNT_MAX == tag;
        if is_short && !is_own {
            return;
        }
        let listed = u32::try_from(listed).map_or(COUNT_MAX, |listed| listed.min(COUNT_MAX));
        let after = tag | listed.max(count_of(before, tag) / 2);
        // Most answers repeat the last one, and a write would take the line from other cores.
        if after != before {
            entry.store(after, Ordering::Relaxed);
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    fn entry(&self, name: &LockName) -> (&AtomicU32, u32) {
        let hash = self.hasher.hash_one(name);
        let index = (hash as usize) % ENTRIES;
        let tag = (hash >> 32) as u32 & !COUNT_MAX;
        (&self.entries[index], tag)
    }
}

/// The number of an entry, if it is that of the lock.
fn count_of(entry: u32, tag: u32) -> u32 {
    match entry & !COUNT_MAX == tag {
        true => entry & COUNT_MAX,
        false => 0,
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
    fn locks_without_a_list_displace_none() {
        let listed = ListedHolders::default();
        let crowded = name("crowded");
        listed.note(&crowded, 100);
        for number in 0..20_000 {
            listed.note(&name(&format!("other/{number}")), 0);
        }
        assert_eq!(listed.expected(&[crowded]), 100);
    }

    #[test]
    fn an_answer_lists_a_hundred_at_most() {
        let listed = ListedHolders::default();
        let names = ["a", "b", "c"].map(name);
        names.iter().for_each(|name| listed.note(name, 90));
        assert_eq!(listed.expected(&names), AnswerRoom::HOLDERS_MAX);
    }
}
