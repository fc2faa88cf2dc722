//! The partitions of a Redis Cluster: each has a part of the locks, and all keys of a partition are in one slot.
//!
//! So a partition is to the store what a Redis is otherwise: it has a history of its data, and each of its scripts is one
//! step. It only moves from one primary to another together with its slot.

use std::sync::LazyLock;

/// How many partitions there are: enough for every primary of a usual cluster to have several, and so few that a process
/// checks all of them with every check of the store.
pub(in crate::store::redis) const COUNT: usize = 64;

/// How many slots a Redis Cluster has.
const SLOTS: u16 = 16_384;

/// The hash tags of the partitions: for each the first number whose slot is in the same part of all slots, so that
/// primaries with equally many slots have equally many partitions.
static TAGS: LazyLock<[u16; COUNT]> = LazyLock::new(|| {
    std::array::from_fn(|partition| {
        let part = |slot: u16| usize::from(slot) * COUNT / usize::from(SLOTS);
        let fits = |tag: &u16| part(slot_of(*tag)) == partition;
        (0..u16::MAX).find(fits).unwrap_or_default()
    })
});

/// The partition with this hash tag.
pub(in crate::store::redis) fn with_tag(tag: u16) -> Option<usize> {
    TAGS.iter().position(|it| *it == tag)
}

/// The hash tag of a partition.
pub(in crate::store::redis) fn tag(partition: usize) -> u16 {
    TAGS[partition]
}

/// The slot of a partition.
pub(in crate::store::redis) fn slot(partition: usize) -> u16 {
    slot_of(TAGS[partition])
}

/// The slot of a hash tag, as Redis computes it.
fn slot_of(tag: u16) -> u16 {
    crc16(tag.to_string().as_bytes()) % SLOTS
}

/// The CRC of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // The example of the specification of Redis Cluster.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(0), 13907);
    }

    /// Another tag would be another layout of the keys.
    #[test]
    fn the_tags_never_change_and_are_spread_over_all_slots() {
        for partition in 0..COUNT {
            let part = usize::from(slot(partition)) / (usize::from(SLOTS) / COUNT);
            assert_eq!(part, partition);
            assert_eq!(with_tag(tag(partition)), Some(partition));
        }
        let sum: u32 = TAGS.iter().map(|tag| u32::from(*tag)).sum();
        assert_eq!((TAGS[0], TAGS[COUNT - 1], sum), (10, 40, 5004));
    }
}
