//! All entries of locks: found by name, in the order of names, and by when they are due. What an entry means is not
//! known here.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use super::StoreTime;
use super::lock::Lock;
use super::name_index::{IndexCursor, NameIndex};
use crate::domain::LockName;

/// How many slots a chunk has: as many as a `u64` has bits.
const CHUNK: u32 = u64::BITS;

/// The entries of all locks that are not simply free.
pub(super) struct Locks {
    entries: Slab<Lock>,
    names: NameIndex,
    /// When the state machine looks at a lock again: one entry per lock, never later than the lock is due.
    due: BTreeSet<(StoreTime, SlabKey)>,
    /// The lock that was found last, and its place among the names: a step looks its lock up several times.
    found: Cell<Option<(SlabKey, IndexCursor)>>,
}

impl Locks {
    pub(super) fn new() -> Self {
        Self {
            entries: Slab::new(),
            names: NameIndex::default(),
            due: BTreeSet::new(),
            found: Cell::new(None),
        }
    }

    /// The slot of a lock, if it has an entry.
    pub(super) fn find(&self, name: &LockName) -> Option<SlabKey> {
        if let Some((slot, _)) = self.found.get()
            && self[slot].name == *name
        {
            return Some(slot);
        }
        let found = self.names.search(name.as_str(), name_in(&self.entries));
        let cursor = found.ok()?;
        let slot = self.names.at(cursor)?;
        self.found.set(Some((slot, cursor)));
        Some(slot)
    }

    /// The entry of a lock, if it has one.
    pub(super) fn get(&self, name: &LockName) -> Option<&Lock> {
        self.find(name).map(|slot| &self[slot])
    }

    /// The slot and the entry of a lock, if it has one.
    pub(super) fn get_mut(&mut self, name: &LockName) -> Option<(SlabKey, &mut Lock)> {
        let slot = self.find(name)?;
        Some((slot, &mut self[slot]))
    }

    /// The entry in a slot, unless it has been removed.
    pub(super) fn at_mut(&mut self, slot: SlabKey) -> Option<&mut Lock> {
        self.entries.get_mut(slot)
    }

    /// The slot of a lock, whose entry is made if there is none.
    pub(super) fn find_or_insert(&mut self, name: &LockName) -> SlabKey {
        let found = self.names.search(name.as_str(), name_in(&self.entries));
        match found {
            Ok(cursor) => self.names.at(cursor),
            Err(cursor) => {
                self.found.set(None);
                let slot = self.entries.insert(Lock::new(name));
                self.names.insert(cursor, slot, name_in(&self.entries));
                Some(slot)
            }
        }
        .expect("the search has found it")
    }

    pub(super) fn remove(&mut self, slot: SlabKey) {
        self.unschedule(slot);
        let name_of = name_in(&self.entries);
        let cursor = match self.found.take() {
            Some((found, cursor)) if found == slot => Ok(cursor),
            Some(_) | None => self.names.search(name_of(slot).as_str(), name_of),
        };
        if let Ok(cursor) = cursor {
            self.names.remove(cursor, name_of);
        }
        self.entries.remove(slot);
    }

    /// The first lock after this name, or the first from the prefix on if that comes later. It may not have the prefix.
    pub(super) fn next(&self, prefix: &str, after: Option<&LockName>) -> Option<&Lock> {
        let after = after.map(LockName::as_str).filter(|after| *after >= prefix);
        let start = after.unwrap_or(prefix);
        let found = self.names.search(start, name_in(&self.entries));
        let slot = match (found, after) {
            (Ok(cursor), Some(_)) => self.names.after(cursor),
            (Ok(cursor), None) | (Err(cursor), _) => self.names.at(cursor),
        };
        slot.map(|slot| &self[slot])
    }

    /// Plans to look at a lock when it is due. A renewal makes it due later; the earlier time stays planned, which costs
    /// less than to move it each time.
    pub(super) fn schedule(&mut self, slot: SlabKey, due: StoreTime) {
        let scheduled = self[slot].scheduled;
        if scheduled.is_none_or(|at| due < at) {
            self.unschedule(slot);
            self.due.insert((due, slot));
            self[slot].scheduled = Some(due);
        }
    }

    pub(super) fn unschedule(&mut self, slot: SlabKey) {
        if let Some(at) = self[slot].scheduled.take() {
            self.due.remove(&(at, slot));
        }
    }

    /// A lock to look at now.
    pub(super) fn first_due(&self, now: StoreTime) -> Option<SlabKey> {
        let (at, slot) = self.due.first()?;
        (*at <= now).then_some(*slot)
    }
}

/// The names of the entries, for the index.
fn name_in<'a>(entries: &'a Slab<Lock>) -> impl Fn(SlabKey) -> &'a LockName + Copy {
    |slot| &entries.get(slot).expect("the lock has an entry").name
}

impl Index<SlabKey> for Locks {
    type Output = Lock;

    fn index(&self, slot: SlabKey) -> &Lock {
        self.entries.get(slot).expect("the lock has an entry")
    }
}

impl IndexMut<SlabKey> for Locks {
    fn index_mut(&mut self, slot: SlabKey) -> &mut Lock {
        self.entries.get_mut(slot).expect("the lock has an entry")
    }
}

/// The number of a slot. It may be used again once its value is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlabKey(u32);

/// Values at numbered slots, without an allocation for each. It grows and shrinks in small chunks, so no step is delayed
/// by copying all values.
pub(super) struct Slab<T> {
    chunks: Vec<SlabChunk<T>>,
    /// The chunks that have a vacant slot. The first is filled first, so that the last become empty.
    vacant: BTreeSet<u32>,
}

struct SlabChunk<T> {
    /// Empty while no slot is used, unless the chunk is the next to be filled.
    slots: Box<[Option<T>]>,
    /// A bit for each slot that is used.
    used: u64,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            vacant: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, slot: SlabKey) -> Option<&T> {
        let chunk = self.chunks.get((slot.0 / CHUNK) as usize)?;
        chunk.slots.get((slot.0 % CHUNK) as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: SlabKey) -> Option<&mut T> {
        let chunk = self.chunks.get_mut((slot.0 / CHUNK) as usize)?;
        chunk.slots.get_mut((slot.0 % CHUNK) as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, value: T) -> SlabKey {
        let number = match self.vacant.first() {
            Some(number) => *number,
            None => self.add_chunk(),
        };
        let chunk = &mut self.chunks[number as usize];
        if chunk.slots.is_empty() {
            chunk.slots = (0..CHUNK).map(|_| None).collect();
        }
        let index = chunk.used.trailing_ones();
        chunk.slots[index as usize] = Some(value);
        chunk.used |= 1 << index;
        if chunk.used == u64::MAX {
            self.vacant.remove(&number);
        }
        SlabKey(number * CHUNK + index)
    }

    fn add_chunk(&mut self) -> u32 {
        let number = u32::try_from(self.chunks.len()).expect("memory ends before 2^32 slots");
        self.chunks.push(SlabChunk {
            slots: Box::default(),
            used: 0,
        });
        self.vacant.insert(number);
        number
    }

    pub(super) fn remove(&mut self, slot: SlabKey) -> Option<T> {
        let number = slot.0 / CHUNK;
        let chunk = self.chunks.get_mut(number as usize)?;
        let index = slot.0 % CHUNK;
        let value = chunk.slots.get_mut(index as usize)?.take()?;
        if chunk.used == u64::MAX {
            self.vacant.insert(number);
        }
        chunk.used &= !(1 << index);
        if chunk.used == 0 && self.vacant.first() != Some(&number) {
            chunk.slots = Box::default();
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_at_its_slot_until_it_is_removed() {
        let mut slab = Slab::new();
        let slots: Vec<_> = (0..1_000).map(|number| slab.insert(number)).collect();
        for (number, slot) in slots.iter().enumerate() {
            assert_eq!(slab.get(*slot), Some(&number));
        }
        assert_eq!(slab.remove(slots[500]), Some(500));
        assert_eq!(slab.remove(slots[500]), None);
        assert_eq!(slab.insert(7), slots[500]);
        assert_eq!(slab.get_mut(slots[500]), Some(&mut 7));
    }

    #[test]
    fn a_slab_that_was_once_large_gives_its_memory_back() {
        let mut slab = Slab::new();
        let slots: Vec<_> = (0..10_000).map(|number| slab.insert(number)).collect();
        for slot in &slots[1..] {
            slab.remove(*slot);
        }
        let kept = slab.chunks.iter().filter(|chunk| !chunk.slots.is_empty());
        assert_eq!(kept.count(), 1);
    }
}
