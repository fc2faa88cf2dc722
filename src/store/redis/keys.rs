//! Every key that Leasehold has in Redis, but for those that the scripts make from a lock's key: they are told in
//! `lua/lease.lua` and `lua/ticket.lua`. No other file makes one.
//!
//! `lh:1:` is the schema's version: another layout gets another number, and both can live side by side. The bucket in
//! braces is the hash tag, so all keys of a lock and its fencing counter share a slot. Nothing a client chooses comes
//! before it, so no name can change a slot or collide with a key of another kind.

use super::record;
use crate::domain::{Bucket, ClaimDigest, LockName};

/// The lock's record: a hash.
pub(super) fn lock(name: &LockName) -> String {
    of_bucket(name.bucket(), "l:", name.as_str())
}

/// The bucket's fencing counter. Beside [`NODE`], these are the only keys that never expire.
pub(super) fn fence(bucket: Bucket) -> String {
    of_bucket(bucket, "f", "")
}

/// The mark of a claim that ended.
pub(super) fn ended(name: &LockName, claim: &ClaimDigest) -> Vec<u8> {
    of_claim(name, "e:", claim)
}

/// What is known of a claim that waits.
pub(super) fn ticket(name: &LockName, claim: &ClaimDigest) -> Vec<u8> {
    of_claim(name, "t:", claim)
}

/// What a request evicted that may be sent again.
pub(super) fn evicted(name: &LockName, request: u64) -> String {
    of_bucket(name.bucket(), "v:", &format!("{request:016x}"))
}

fn of_claim(name: &LockName, kind: &str, claim: &ClaimDigest) -> Vec<u8> {
    let kind = of_bucket(name.bucket(), kind, "");
    [kind.as_bytes(), record::claim(claim)].concat()
}

fn of_bucket(bucket: Bucket, kind: &str, rest: &str) -> String {
    ["lh:1:{", &bucket.index().to_string(), "}:", kind, rest].concat()
}

/// The channel on which a process hears that a lock is offered to it. `queue.lua` makes the same.
pub(super) fn wake_channel(process: &str) -> String {
    format!("lh:1:wake:{process}")
}

/// The channel on which events are told. Channels know no databases, so the number of the database is part of the name.
pub(super) fn events_channel(database: u32) -> String {
    format!("lh:1:events:{database}")
}

/// The channel on which evictions are told to the processes that hold leases for their clients.
pub(super) fn evictions_channel(database: u32) -> String {
    format!("lh:1:evictions:{database}")
}

/// The channel on which it is told to the same processes that such a lease was released. `release_any.lua` makes the same.
pub(super) fn releases_channel(database: u32) -> String {
    format!("lh:1:releases:{database}")
}

/// The channel on which processes tell each other that somebody has come to watch.
pub(super) fn watch_channel(database: u32) -> String {
    format!("lh:1:watch:{database}")
}

/// A pattern for SCAN that matches the records of all locks whose names begin so.
pub(super) fn lock_pattern(name_prefix: &str) -> String {
    let mut pattern = "lh:1:{*}:l:".to_owned();
    for letter in name_prefix.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('*');
    pattern
}

/// The lock's name in the key of its record.
pub(super) fn name_of(key: &[u8]) -> Option<LockName> {
    let rest = key.strip_prefix(b"lh:1:{")?;
    let tag_end = rest.iter().position(|&byte| byte == b'}')?;
    LockName::parse(rest[tag_end..].strip_prefix(b"}:l:")?).ok()
}

/// The channel on which processes announce what all must know about losses.
pub(super) fn recovery_channel(database: u32) -> String {
    format!("lh:1:recovery:{database}")
}

/// The channel on which scripts tell that the clock of Redis was set back, whichever database they found it out in.
/// `step_back.lua` makes the same.
pub(super) const CLOCK_CHANNEL: &str = "lh:1:clock";

/// Which history of the data this is. What is in it is told in `lua/recovery.lua`, which also makes the fencing counters
/// of all buckets.
pub(super) const NODE: &str = "lh:1:{0}:node";

/// The longest TTL in use, in milliseconds.
pub(super) const LONGEST_TTL: &str = "lh:1:{0}:ttl";

/// Lasts as long as new grants must wait, on all processes.
pub(super) const GRACE: &str = "lh:1:{0}:grace";

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn the_layout_never_changes_under_the_same_version() {
        assert_eq!(lock(&name("orders/42")), "lh:1:{41}:l:orders/42");
        assert_eq!(fence(name("orders/42").bucket()), "lh:1:{41}:f");
        assert_eq!(
            ended(&name("a"), &ClaimDigest([65; ClaimDigest::LEN])),
            [b"lh:1:{192}:e:".as_slice(), &[65; 16]].concat()
        );
    }

    #[test]
    fn a_name_is_found_again_in_its_key() {
        assert_eq!(
            name_of(lock(&name("a:l:b")).as_bytes()),
            Some(name("a:l:b"))
        );
        assert_eq!(name_of(b"lh:1:{41}:f"), None);
    }

    #[test]
    fn a_prefix_means_itself_in_a_pattern() {
        assert_eq!(lock_pattern("a*[b"), "lh:1:{*}:l:a\\*\\[b*");
    }
}
