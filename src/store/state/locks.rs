//! All entries of locks: found by name, in the order of names, and by when they are due. What an entry means is not
//! known here.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use super::lock::Lock;
use super::name_index::NameIndex;
use super::slab::{Slab, Slot};
use super::time::StoreTime;
use crate::domain::LockName;

/// The entries of all locks that are not simply free.
pub(super) struct Locks {
    entries: Slab<Lock>,
    names: NameIndex,
    /// When the state machine looks at a lock again: one entry per lock, never later than the lock is due.
    due: BTreeSet<(StoreTime, Slot)>,
}

impl Locks {
    pub(super) fn new() -> Self {
        Self {
            entries: Slab::new(),
            names: NameIndex::default(),
            due: BTreeSet::new(),
        }
    }

    /// The slot of a lock, if it has an entry.
    pub(super) fn find(&self, name: &LockName) -> Option<Slot> {
        let place = self.names.search(name.as_str(), |slot| self.name_of(slot));
        place.ok().and_then(|place| self.names.at(place))
    }

    fn name_of(&self, slot: Slot) -> &str {
        self[slot].name.as_str()
    }

    /// The entry of a lock, if it has one.
    pub(super) fn get(&self, name: &LockName) -> Option<&Lock> {
        self.find(name).map(|slot| &self[slot])
    }

    /// The slot and the entry of a lock, if it has one.
    pub(super) fn get_mut(&mut self, name: &LockName) -> Option<(Slot, &mut Lock)> {
        let slot = self.find(name)?;
        Some((slot, &mut self[slot]))
    }

    /// The entry in a slot, unless it has been removed.
    pub(super) fn at_mut(&mut self, slot: Slot) -> Option<&mut Lock> {
        self.entries.get_mut(slot)
    }

    /// The slot of a lock, whose entry is made if there is none.
    pub(super) fn find_or_insert(&mut self, name: &LockName) -> Slot {
        let found = self.names.search(name.as_str(), |slot| self.name_of(slot));
        match found {
            Ok(place) => self.names.at(place),
            Err(place) => {
                let slot = self.entries.insert(Lock::new(name));
                self.names.insert(place, slot);
                Some(slot)
            }
        }
        .expect("the search has found it")
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        self.unschedule(slot);
        let place = self
            .names
            .search(self.name_of(slot), |slot| self.name_of(slot));
        if let Ok(place) = place {
            self.names.remove(place);
        }
        self.entries.remove(slot);
    }

    /// The first lock after this name, or the first from the prefix on if that comes later. It may not have the prefix.
    pub(super) fn next(&self, prefix: &str, after: Option<&LockName>) -> Option<&Lock> {
        let after = after.map(LockName::as_str).filter(|after| *after >= prefix);
        let found = self
            .names
            .search(after.unwrap_or(prefix), |slot| self.name_of(slot));
        let slot = match (found, after) {
            (Ok(place), Some(_)) => self.names.after(place),
            (Ok(place), None) | (Err(place), _) => self.names.at(place),
        };
        slot.map(|slot| &self[slot])
    }

    /// Plans to look at a lock when it is due. A renewal makes it due later; the earlier time stays planned, which costs
    /// less than to move it each time.
    pub(super) fn schedule(&mut self, slot: Slot, due: StoreTime) {
        let scheduled = self[slot].scheduled;
        if scheduled.is_none_or(|at| due < at) {
            self.unschedule(slot);
            self.due.insert((due, slot));
            self[slot].scheduled = Some(due);
        }
    }

    pub(super) fn unschedule(&mut self, slot: Slot) {
        if let Some(at) = self[slot].scheduled.take() {
            self.due.remove(&(at, slot));
        }
    }

    /// A lock to look at now.
    pub(super) fn first_due(&self, now: StoreTime) -> Option<Slot> {
        let (at, slot) = self.due.first()?;
        (*at <= now).then_some(*slot)
    }
}

impl Index<Slot> for Locks {
    type Output = Lock;

    fn index(&self, slot: Slot) -> &Lock {
        self.entries.get(slot).expect("the lock has an entry")
    }
}

impl IndexMut<Slot> for Locks {
    fn index_mut(&mut self, slot: Slot) -> &mut Lock {
        self.entries.get_mut(slot).expect("the lock has an entry")
    }
}
