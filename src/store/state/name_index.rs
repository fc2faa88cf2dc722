//! The order of names: slots sorted by the names of their locks, at a few bytes for each. It grows and shrinks in small
//! chunks, so no step is delayed by copying all of it.

use std::cmp::Ordering;

use super::locks::SlabKey;
use crate::domain::LockName;

/// The most slots in a chunk.
const CHUNK_MAX: usize = 256;
/// A chunk with fewer slots is merged with the one after it, if both fit well into one.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

/// Slots in the order of names. The names themselves are kept by the caller.
#[derive(Default)]
pub(super) struct NameIndex {
    /// Sorted within and among each other; none is empty.
    chunks: Vec<NameChunk>,
}

/// A position in the order.
#[derive(Clone, Copy)]
pub(super) struct IndexCursor {
    chunk: usize,
    index: usize,
}

struct NameChunk {
    /// The first name.
    first: LockName,
    /// How many bytes at their beginning all names of the chunk have in common, or fewer.
    common: usize,
    entries: Vec<Entry>,
}

struct Entry {
    /// The bytes of the name after those in common. They nearly always decide a comparison, which spares a look at the
    /// name: with millions of locks it is far away in memory.
    bytes: u32,
    slot: SlabKey,
}

impl NameIndex {
    /// Where the name is, or where it would have to be inserted.
    pub(super) fn search<'a>(
        &self,
        name: &str,
        name_of: impl Fn(SlabKey) -> &'a LockName,
    ) -> Result<IndexCursor, IndexCursor> {
        let is_before = |chunk: &NameChunk| chunk.first.as_str() <= name;
        let chunk = self.chunks.partition_point(is_before).saturating_sub(1);
        let found = match self.chunks.get(chunk) {
            Some(entries) => entries.search(name, name_of),
            None => Err(0),
        };
        found
            .map(|index| IndexCursor { chunk, index })
            .map_err(|index| IndexCursor { chunk, index })
    }

    /// The slot at a cursor, or the next one in the order if the cursor is behind its chunk.
    pub(super) fn at(&self, cursor: IndexCursor) -> Option<SlabKey> {
        let entry = self.chunks.get(cursor.chunk)?.entries.get(cursor.index);
        let next = || self.chunks.get(cursor.chunk + 1)?.entries.first();
        entry.or_else(next).map(|entry| entry.slot)
    }

    /// The slot after a cursor that has one.
    pub(super) fn after(&self, cursor: IndexCursor) -> Option<SlabKey> {
        self.at(IndexCursor {
            index: cursor.index + 1,
            ..cursor
        })
    }

    /// Inserts a slot where [`search`](Self::search) has not found its name.
    pub(super) fn insert<'a>(
        &mut self,
        cursor: IndexCursor,
        slot: SlabKey,
        name_of: impl Fn(SlabKey) -> &'a LockName,
    ) {
        let Some(chunk) = self.chunks.get_mut(cursor.chunk) else {
            let entries = vec![Entry { bytes: 0, slot }];
            self.chunks.extend(NameChunk::of(entries, name_of));
            return;
        };
        chunk.insert(cursor.index, slot, &name_of);
        if chunk.entries.len() > CHUNK_MAX {
            // Names often arrive in their order. Then the chunk before stays full.
            let at = match cursor.index + 1 == chunk.entries.len() {
                true => CHUNK_MAX,
                false => CHUNK_MAX / 2,
            };
            let rest = chunk.entries.split_off(at);
            chunk.entries.shrink_to_fit();
            chunk.compare_anew(&name_of);
            let rest = NameChunk::of(rest, name_of);
            self.chunks.splice(cursor.chunk + 1..cursor.chunk + 1, rest);
        }
    }

    /// Removes the slot at a cursor where [`search`](Self::search) has found it.
    pub(super) fn remove<'a>(
        &mut self,
        cursor: IndexCursor,
        name_of: impl Fn(SlabKey) -> &'a LockName,
    ) {
        let Some(chunk) = self.chunks.get_mut(cursor.chunk) else {
            return;
        };
        chunk.entries.remove(cursor.index);
        let Some(first) = chunk.entries.first() else {
            self.chunks.remove(cursor.chunk);
            return;
        };
        if cursor.index == 0 {
            chunk.first = name_of(first.slot).clone();
        }
        let length = chunk.entries.len();
        let next = self.chunks.get(cursor.chunk + 1);
        let next = next.map_or(usize::MAX, |next| next.entries.len());
        if length < CHUNK_MIN && next <= CHUNK_MAX - 2 * CHUNK_MIN {
            let rest = self.chunks.remove(cursor.chunk + 1);
            let chunk = &mut self.chunks[cursor.chunk];
            chunk.entries.extend(rest.entries);
            chunk.compare_anew(name_of);
        }
    }
}

impl NameChunk {
    /// A chunk of these entries in their order; none if there are none.
    fn of<'a>(entries: Vec<Entry>, name_of: impl Fn(SlabKey) -> &'a LockName) -> Option<Self> {
        let first = name_of(entries.first()?.slot).clone();
        let mut chunk = Self {
            first,
            common: 0,
            entries,
        };
        chunk.compare_anew(name_of);
        Some(chunk)
    }

    fn search<'a>(
        &self,
        name: &str,
        name_of: impl Fn(SlabKey) -> &'a LockName,
    ) -> Result<usize, usize> {
        let common = &self.first.as_str().as_bytes()[..self.common];
        let bytes = name.as_bytes();
        match bytes[..bytes.len().min(self.common)].cmp(common) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.entries.len()),
            Ordering::Equal => {}
        }
        let bytes = bytes_after(name, self.common);
        self.entries.binary_search_by(|entry| {
            let by_name = || name_of(entry.slot).as_str().cmp(name);
            entry.bytes.cmp(&bytes).then_with(by_name)
        })
    }

    fn insert<'a>(
        &mut self,
        index: usize,
        slot: SlabKey,
        name_of: &impl Fn(SlabKey) -> &'a LockName,
    ) {
        let name = name_of(slot);
        let common = common_bytes(self.first.as_str(), name.as_str()).min(self.common);
        if index == 0 {
            self.first = name.clone();
        }
        let bytes = bytes_after(name.as_str(), common);
        self.entries.insert(index, Entry { bytes, slot });
        if common < self.common {
            self.set_common(common, name_of);
        }
    }

    /// Finds out what the names have in common now.
    fn compare_anew<'a>(&mut self, name_of: impl Fn(SlabKey) -> &'a LockName) {
        // The order of names puts the most different ones at the ends.
        let last = self.entries.last().map(|entry| name_of(entry.slot));
        let common = last.map_or(0, |last| common_bytes(self.first.as_str(), last.as_str()));
        self.set_common(common, &name_of);
    }

    fn set_common<'a>(&mut self, common: usize, name_of: &impl Fn(SlabKey) -> &'a LockName) {
        self.common = common;
        for entry in &mut self.entries {
            entry.bytes = bytes_after(name_of(entry.slot).as_str(), common);
        }
    }
}

fn common_bytes(one: &str, other: &str) -> usize {
    let pairs = one.bytes().zip(other.bytes());
    pairs.take_while(|(one, other)| one == other).count()
}

/// Four bytes of a name, as a number that sorts like them. A name that ends earlier sorts before longer ones.
fn bytes_after(name: &str, common: usize) -> u32 {
    let rest = name.as_bytes().get(common..).unwrap_or_default();
    match rest.first_chunk() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; size_of::<u32>()];
            bytes[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::locks::Slab;
    use super::*;

    struct NamedSlab {
        slab: Slab<LockName>,
        index: NameIndex,
    }

    impl NamedSlab {
        fn search(&self, name: &str) -> Result<IndexCursor, IndexCursor> {
            self.index.search(name, |slot| name_of(&self.slab, slot))
        }

        fn insert(&mut self, name: &str) {
            let cursor = self.search(name).err().expect("the name is new");
            let name = LockName::parse(name.as_bytes()).expect("a name");
            let slot = self.slab.insert(name);
            self.index
                .insert(cursor, slot, |slot| name_of(&self.slab, slot));
        }

        fn remove(&mut self, name: &str) {
            let cursor = self.search(name).ok().expect("the name is there");
            let slot = self.index.at(cursor).expect("it is there");
            self.index.remove(cursor, |slot| name_of(&self.slab, slot));
            self.slab.remove(slot);
        }

        /// No change moves more entries than a chunk has.
        fn assert_bounded(&self) {
            let mut lengths = self.index.chunks.iter().map(|chunk| chunk.entries.len());
            assert!(lengths.all(|length| (1..=CHUNK_MAX).contains(&length)));
        }

        fn in_order(&self) -> Vec<&str> {
            let entries = self.index.chunks.iter().flat_map(|chunk| &chunk.entries);
            entries
                .map(|entry| name_of(&self.slab, entry.slot).as_str())
                .collect()
        }
    }

    fn name_of(slab: &Slab<LockName>, slot: SlabKey) -> &LockName {
        slab.get(slot).expect("it is there")
    }

    /// Visits the numbers to `count` in an order without a pattern.
    fn shuffled(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(move |number| format!("{:05}", number * 7_919 % count))
    }

    #[test]
    fn names_are_in_order_whatever_was_inserted_and_removed() {
        let mut names = NamedSlab {
            slab: Slab::new(),
            index: NameIndex::default(),
        };
        shuffled(5_000).for_each(|name| {
            names.insert(&name);
            names.assert_bounded();
        });
        let all: Vec<_> = (0..5_000).map(|number| format!("{number:05}")).collect();
        assert_eq!(names.in_order(), all);
        let mut cursor = names.search("").err();
        for name in &all {
            let next = cursor.and_then(|cursor| names.index.at(cursor));
            let next = next.and_then(|slot| names.slab.get(slot));
            assert_eq!(next.map(LockName::as_str), Some(name.as_str()));
            cursor = names.search(&format!("{name}!")).err();
        }
        shuffled(5_000).take(4_900).for_each(|name| {
            names.remove(&name);
            names.assert_bounded();
        });
        let mut left: Vec<_> = shuffled(5_000).skip(4_900).collect();
        left.sort();
        assert_eq!(names.in_order(), left);
        assert!(names.index.chunks.len() < 5, "sparse chunks are merged");
        left.iter().for_each(|name| names.remove(name));
        assert!(names.index.chunks.is_empty());
    }

    #[test]
    fn names_that_arrive_in_order_fill_their_chunks() {
        let mut names = NamedSlab {
            slab: Slab::new(),
            index: NameIndex::default(),
        };
        (0..5_000).for_each(|number| names.insert(&format!("{number:05}")));
        assert_eq!(names.index.chunks.len(), 5_000_usize.div_ceil(CHUNK_MAX));
    }
}
