//! The order of names: slots sorted by the names of their locks, at a few bytes for each. It grows in small chunks, so no
//! step is delayed by copying all of it.

use super::slab::Slot;

/// The most slots in a chunk.
const CHUNK_MAX: usize = 256;
/// A chunk with fewer slots is merged with the one after it, if both fit well into one.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

/// Slots in the order of names. Where a slot's name is kept is the caller's affair.
#[derive(Default)]
pub(super) struct NameIndex {
    /// Sorted within and among each other; none is empty.
    chunks: Vec<Vec<Slot>>,
}

/// A place in the order.
#[derive(Clone, Copy)]
pub(super) struct Place {
    chunk: usize,
    index: usize,
}

impl NameIndex {
    /// Where the name is, or where it would have to be inserted.
    pub(super) fn search<'a>(
        &self,
        name: &str,
        name_of: impl Fn(Slot) -> &'a str,
    ) -> Result<Place, Place> {
        let after = self
            .chunks
            .partition_point(|chunk| name_of(chunk[0]) <= name);
        let chunk = after.saturating_sub(1);
        let Some(slots) = self.chunks.get(chunk) else {
            return Err(Place { chunk, index: 0 });
        };
        match slots.binary_search_by(|slot| name_of(*slot).cmp(name)) {
            Ok(index) => Ok(Place { chunk, index }),
            Err(index) => Err(Place { chunk, index }),
        }
    }

    /// The slot at a place, or the next one in the order if the place is behind its chunk.
    pub(super) fn at(&self, place: Place) -> Option<Slot> {
        let slot = self.chunks.get(place.chunk)?.get(place.index);
        let next = || self.chunks.get(place.chunk + 1)?.first();
        slot.or_else(next).copied()
    }

    /// The slot after a place that has one.
    pub(super) fn after(&self, place: Place) -> Option<Slot> {
        self.at(Place {
            index: place.index + 1,
            ..place
        })
    }

    /// Inserts a slot where [`search`](Self::search) has not found its name.
    pub(super) fn insert(&mut self, place: Place, slot: Slot) {
        let Some(chunk) = self.chunks.get_mut(place.chunk) else {
            self.chunks.push(vec![slot]);
            return;
        };
        chunk.insert(place.index, slot);
        if chunk.len() > CHUNK_MAX {
            // Names often arrive in their order. Then the chunk before stays full.
            let at = match place.index + 1 == chunk.len() {
                true => CHUNK_MAX,
                false => CHUNK_MAX / 2,
            };
            let rest = chunk.split_off(at);
            chunk.shrink_to_fit();
            self.chunks.insert(place.chunk + 1, rest);
        }
    }

    /// Removes the slot at a place where [`search`](Self::search) has found it.
    pub(super) fn remove(&mut self, place: Place) {
        let Some(chunk) = self.chunks.get_mut(place.chunk) else {
            return;
        };
        chunk.remove(place.index);
        let length = chunk.len();
        let next = self.chunks.get(place.chunk + 1).map_or(0, Vec::len);
        if length == 0 {
            self.chunks.remove(place.chunk);
        } else if length < CHUNK_MIN && next > 0 && length + next <= CHUNK_MAX - CHUNK_MIN {
            let rest = self.chunks.remove(place.chunk + 1);
            self.chunks[place.chunk].extend(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::Slab;
    use super::*;

    struct Names {
        slab: Slab<String>,
        index: NameIndex,
    }

    impl Names {
        fn search(&self, name: &str) -> Result<Place, Place> {
            self.index
                .search(name, |slot| self.slab.get(slot).expect("it is there"))
        }

        fn insert(&mut self, name: &str) {
            let place = self.search(name).err().expect("the name is new");
            let slot = self.slab.insert(name.to_owned());
            self.index.insert(place, slot);
        }

        fn remove(&mut self, name: &str) {
            let place = self.search(name).ok().expect("the name is there");
            let slot = self.index.at(place).expect("it is there");
            self.index.remove(place);
            self.slab.remove(slot);
        }

        fn in_order(&self) -> Vec<&str> {
            let slots = self.index.chunks.iter().flatten();
            slots
                .map(|slot| self.slab.get(*slot).expect("it is there").as_str())
                .collect()
        }
    }

    /// Visits the numbers to `count` in an order without a pattern.
    fn shuffled(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(move |number| format!("{:05}", number * 7_919 % count))
    }

    #[test]
    fn names_are_in_order_whatever_was_inserted_and_removed() {
        let mut names = Names {
            slab: Slab::new(),
            index: NameIndex::default(),
        };
        shuffled(5_000).for_each(|name| names.insert(&name));
        let all: Vec<_> = (0..5_000).map(|number| format!("{number:05}")).collect();
        assert_eq!(names.in_order(), all);
        let mut place = names.search("").err();
        for name in &all {
            let next = place.and_then(|place| names.index.at(place));
            assert_eq!(next.and_then(|slot| names.slab.get(slot)), Some(name));
            place = names.search(&format!("{name}!")).err();
        }
        shuffled(5_000)
            .take(4_900)
            .for_each(|name| names.remove(&name));
        let mut left: Vec<_> = shuffled(5_000).skip(4_900).collect();
        left.sort();
        assert_eq!(names.in_order(), left);
        assert!(names.index.chunks.len() < 5, "sparse chunks are merged");
        left.iter().for_each(|name| names.remove(name));
        assert!(names.index.chunks.is_empty());
    }

    #[test]
    fn names_that_arrive_in_order_fill_their_chunks() {
        let mut names = Names {
            slab: Slab::new(),
            index: NameIndex::default(),
        };
        (0..5_000).for_each(|number| names.insert(&format!("{number:05}")));
        assert_eq!(names.index.chunks.len(), 5_000_usize.div_ceil(CHUNK_MAX));
    }
}
