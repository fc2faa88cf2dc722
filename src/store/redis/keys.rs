//! Every key that Leasehold has in Redis, except those that the scripts derive from a lock's key: `lua/lease.lua` and
//! `lua/queue.lua` describe them, and build them for most scripts. The fast paths of `acquire.lua` and `release.lua` run
//! before these functions are defined, and build some of them again; `primary.lua` builds a key that never exists. No other
//! file builds keys.
//!
//! `lh:1:` is the schema's version. Until the first release it stays, although layouts change (see the changelog); from then
//! on another layout gets another number, and both can exist side by side. The bucket in braces is the hash tag, so all keys
//! of a lock and its fencing counter share a slot; in a Redis Cluster, all buckets of a partition have the same one. Nothing
//! that a client chooses precedes it, so no name can change a slot or collide with a key of another kind.

use super::cluster::partitions;
use super::record;
use crate::domain::{Bucket, ClaimDigest, LeaseQuota, LockName};

/// The prefix of all keys and channels.
macro_rules! prefix {
    () => {
        "lh:1:"
    };
}
pub(super) use prefix;

/// The channel that notifies a process of its reservations, before its id.
pub(super) const WAKE_CHANNEL: &str = concat!(prefix!(), "wake:");

/// The channel that notifies the processes that hold leases for their clients when such a lease is released, before the
/// number of the database.
pub(super) const RELEASES_CHANNEL: &str = concat!(prefix!(), "releases:");

/// The channel on which scripts announce that the clock of Redis was set back, from any database.
pub(super) const CLOCK_CHANNEL: &str = concat!(prefix!(), "clock");

/// The channel of the messages that show how far the replicas are. Nobody listens to it.
pub(super) const BARRIER_CHANNEL: &str = concat!(prefix!(), "barrier");

/// Builds the keys of the locks of one Redis, or of one partition of a cluster.
#[derive(Clone, Copy, Default)]
pub(super) struct RedisKeys(Option<usize>);

impl RedisKeys {
    /// The keys of one partition of a cluster, which all have the same hash tag.
    pub(super) fn of_partition(partition: usize) -> Self {
        Self(Some(partition))
    }

    /// The partition of a cluster; none for a Redis of its own.
    pub(super) fn partition(self) -> Option<usize> {
        self.0
    }

    /// The only hash tag of all keys, in the form of the scripts; empty if each bucket has one of its own.
    pub(super) fn only_tag(self) -> String {
        self.0
            .map_or_else(String::new, |it| partitions::tag(it).to_string())
    }

    /// How many fencing counters there are.
    pub(super) fn counters(self) -> usize {
        self.0.map_or(Bucket::COUNT, |_| 1)
    }

    /// The lock's record: a string or a hash, as `lua/lease.lua` says.
    pub(super) fn lock(self, name: &LockName) -> String {
        self.of_bucket(name.bucket(), "l:", name.as_str())
    }

    /// The bucket's fencing counter. These and [`node`](Self::node) are the only keys that never expire.
    pub(super) fn fence(self, bucket: Bucket) -> String {
        self.of_bucket(bucket, "f", "")
    }

    /// The tombstone of a claim: the mark that says how it ended, or which of its attempts were withdrawn.
    pub(super) fn ended(self, name: &LockName, claim: &ClaimDigest) -> Vec<u8> {
        self.of_claim(name, "e:", claim)
    }

    /// The ticket of a waiting claim.
    pub(super) fn ticket(self, name: &LockName, claim: &ClaimDigest) -> Vec<u8> {
        self.of_claim(name, "t:", claim)
    }

    /// The stored answer of an eviction request, in case the request is sent again.
    pub(super) fn evicted(self, name: &LockName, request: u64) -> String {
        self.of_bucket(name.bucket(), "v:", &format!("{request:016x}"))
    }

    /// The leases that are counted for a quota: `lua/count.lua` describes them.
    pub(super) fn counted(self, quota: &LeaseQuota) -> String {
        self.of_bucket(quota.bucket(), "p:", quota.of.name())
    }

    /// The history of the data. `lua/recovery.lua` describes its fields, and also builds the fencing counters of all
    /// buckets.
    pub(super) fn node(self) -> String {
        self.of_data("node")
    }

    /// The longest TTL in use, in milliseconds.
    pub(super) fn longest_ttl(self) -> String {
        self.of_data("ttl")
    }

    /// Exists while new grants must wait, on all processes.
    pub(super) fn grace(self) -> String {
        self.of_data("grace")
    }

    /// Written by a barrier, because the nodes of a cluster do not replicate published messages.
    pub(super) fn barrier(self) -> String {
        self.of_data("barrier")
    }

    /// A SCAN pattern that matches the records of these locks with this name prefix.
    pub(super) fn lock_pattern(self, name_prefix: &str) -> String {
        let tag = self
            .0
            .map_or("*".to_owned(), |it| partitions::tag(it).to_string());
        let mut pattern = [prefix!(), "{", &tag, "}:l:"].concat();
        for letter in name_prefix.chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '^' | '\\') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern.push('*');
        pattern
    }

    fn of_claim(self, name: &LockName, kind: &str, claim: &ClaimDigest) -> Vec<u8> {
        let kind = self.of_bucket(name.bucket(), kind, "");
        [kind.as_bytes(), record::claim(claim)].concat()
    }

    fn of_data(self, kind: &str) -> String {
        let tag = self.0.map_or(0, partitions::tag);
        [prefix!(), "{", &tag.to_string(), "}:", kind].concat()
    }

    fn of_bucket(self, bucket: Bucket, kind: &str, rest: &str) -> String {
        let tag = match self.0 {
            None => bucket.index(),
            Some(partition) => usize::from(partitions::tag(partition)),
        };
        [prefix!(), "{", &tag.to_string(), "}:", kind, rest].concat()
    }
}

pub(super) fn wake_channel(process: &str) -> String {
    format!("{WAKE_CHANNEL}{process}")
}

/// The channel for events. Channels span all databases, so the name includes the database number.
pub(super) fn events_channel(database: u32) -> String {
    format!(concat!(prefix!(), "events:{}"), database)
}

/// The channel that notifies of evictions the processes that hold leases for their clients.
pub(super) fn evictions_channel(database: u32) -> String {
    format!(concat!(prefix!(), "evictions:{}"), database)
}

pub(super) fn releases_channel(database: u32) -> String {
    format!("{RELEASES_CHANNEL}{database}")
}

/// The channel on which processes announce that they want events.
pub(super) fn watch_channel(database: u32) -> String {
    format!(concat!(prefix!(), "watch:{}"), database)
}

/// The lock's name in the key of its record.
pub(super) fn name_of(key: &[u8]) -> Option<LockName> {
    let rest = key.strip_prefix(concat!(prefix!(), "{").as_bytes())?;
    let tag_end = rest.iter().position(|&byte| byte == b'}')?;
    LockName::parse(rest[tag_end..].strip_prefix(b"}:l:")?).ok()
}

/// The hash tag in the key of a lock's record.
pub(super) fn tag_of(key: &[u8]) -> Option<u16> {
    let rest = key.strip_prefix(concat!(prefix!(), "{").as_bytes())?;
    let tag_end = rest.iter().position(|&byte| byte == b'}')?;
    std::str::from_utf8(&rest[..tag_end]).ok()?.parse().ok()
}

/// The channel on which processes announce losses and longest TTLs.
pub(super) fn recovery_channel(database: u32, keys: RedisKeys) -> String {
    match keys.partition() {
        None => format!(concat!(prefix!(), "recovery:{}"), database),
        Some(partition) => format!(concat!(prefix!(), "recovery:{}:{}"), database, partition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn the_layout_never_changes_under_the_same_version() {
        let keys = RedisKeys::default();
        assert_eq!(keys.lock(&name("orders/42")), "lh:1:{41}:l:orders/42");
        assert_eq!(keys.fence(name("orders/42").bucket()), "lh:1:{41}:f");
        assert_eq!(keys.node(), "lh:1:{0}:node");
        assert_eq!(
            keys.ended(&name("a"), &ClaimDigest([65; ClaimDigest::LEN])),
            [b"lh:1:{192}:e:".as_slice(), &[65; 16]].concat()
        );
    }

    #[test]
    fn a_name_can_be_read_from_its_key() {
        assert_eq!(
            name_of(RedisKeys::default().lock(&name("a:l:b")).as_bytes()),
            Some(name("a:l:b"))
        );
        assert_eq!(name_of(b"lh:1:{41}:f"), None);
    }

    #[test]
    fn a_prefix_means_itself_in_a_pattern() {
        let pattern_of = |keys: RedisKeys| keys.lock_pattern("a*[b");
        assert_eq!(pattern_of(RedisKeys::default()), "lh:1:{*}:l:a\\*\\[b*");
        assert_eq!(
            pattern_of(RedisKeys::of_partition(0)),
            "lh:1:{10}:l:a\\*\\[b*"
        );
    }
}
