//! A slab: values at numbered slots, without an allocation for each. It grows and shrinks in small chunks, so no step is
//! delayed by copying all values.

use std::collections::BTreeSet;

/// How many slots a chunk has: as many as a `u64` has bits.
const CHUNK: u32 = u64::BITS;

/// The number of a slot. It may be used again once its value is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u32);

/// Values at slots.
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// The chunks that have a vacant slot. The first is filled first, so that the last become empty.
    vacant: BTreeSet<u32>,
}

struct Chunk<T> {
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

    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        let chunk = self.chunks.get((slot.0 / CHUNK) as usize)?;
        chunk.slots.get((slot.0 % CHUNK) as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let chunk = self.chunks.get_mut((slot.0 / CHUNK) as usize)?;
        chunk.slots.get_mut((slot.0 % CHUNK) as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, value: T) -> Slot {
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
        Slot(number * CHUNK + index)
    }

    fn add_chunk(&mut self) -> u32 {
        let number = u32::try_from(self.chunks.len()).expect("memory ends before 2^32 slots");
        self.chunks.push(Chunk {
            slots: Box::default(),
            used: 0,
        });
        self.vacant.insert(number);
        number
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<T> {
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
