//! The constants of the scripts, each in one place. `scripts` writes their values into the scripts as literals when it
//! assembles them, because a local variable would cost at every call.
//!
//! Each number has a second name in the scripts, which ends in `_TEXT`: Redis is slow at converting a number to text.

use std::time::Duration;

use super::keys::{self, prefix};
use crate::domain::{AnswerRoom, Bucket, Fence, UNCOUNTED_MAX};
use crate::store::{RESERVATION_EXTENSION, RESERVATION_TTL, TOMBSTONE_TTL};

macro_rules! numbers {
    ($table:ident: $($(#[$doc:meta])* $name:ident = $value:expr;)+) => {
        $($(#[$doc])* pub(super) const $name: u64 = $value;)+
        const $table: &[(&str, u64)] = &[$((stringify!($name), $name)),+];
    };
}

macro_rules! letters {
    ($table:ident: $($(#[$doc:meta])* $name:ident = $value:expr;)+) => {
        $($(#[$doc])* pub(super) const $name: u8 = $value;)+
        const $table: &[(&str, u8)] = &[$((stringify!($name), $name)),+];
    };
}

macro_rules! texts {
    ($table:ident: $($(#[$doc:meta])* $name:ident = $value:expr;)+) => {
        $($(#[$doc])* pub(super) const $name: &str = $value;)+
        const $table: &[(&str, &str)] = &[$((stringify!($name), $name)),+];
    };
}

numbers! { TIMES:
    /// How long an ended claim is remembered, and how long its record outlives a lease.
    TOMBSTONE_MS = millis(TOMBSTONE_TTL);
    /// How long a free lock is reserved for the process of the head waiter.
    RESERVATION_MS = millis(RESERVATION_TTL);
    /// How much longer a reservation lasts that is found expired: if the store or the whole machine stalled, the
    /// process could not claim it, and its request may be the next to run.
    RESERVATION_EXTENSION_MS = millis(RESERVATION_EXTENSION);
    /// How much longer the set of a process's waiters lives than the process may take to poll: the store may be
    /// unavailable that long.
    OUTAGE_MS = 6_000;
    /// How long a TTL counts as in use after the last lease with it.
    TTL_IN_USE_MS = 3_600_000;
    /// If a process returns that could not reach Redis, and none has checked for this long, all were cut off.
    AWAY_MS = 3_000;
    /// How long Redis then grants nothing, so that the processes of the waiters can poll.
    POLL_AGAIN_MS = 3_000;
    /// A smaller step of the clock is not worth a check of all locks.
    CLOCK_STEP_MIN_MS = 500;
    /// How long it takes at most until a new lease is counted or rolled back.
    UNCOUNTED_MS = millis(UNCOUNTED_MAX);
}

numbers! { BOUNDS:
    /// The largest fencing token.
    FENCE_MAX = Fence::MAX;
    /// The latest time by which a token can be granted.
    CLOCK_MAX_US = Fence::MAX;
    /// How many fencing counters there are.
    BUCKETS = Bucket::COUNT as u64;
    /// The most holders that one answer lists.
    LISTED_MAX = AnswerRoom::HOLDERS_MAX as u64;
    /// The most bytes of the owners and metadata that one answer lists, over all of its locks.
    LISTED_BYTES_MAX = AnswerRoom::BYTES_MAX as u64;
    /// The most entries of a lock that are searched for holders to list.
    SEARCHED_MAX = 200;
    /// How many expired entries one script searches, or removes from the count of a principal's leases.
    REAPED_MAX = 500;
    /// How many holders one script evicts, or ends because they have expired: each takes some ten commands. Approximate
    /// for evictions: Redis returns a small set whole, and a step may find a few more.
    ENDED_AT_ONCE = 100;
    /// How many dead processes and departed waiters one script passes over.
    PASSED_OVER_MAX = 16;
    /// The most withdrawn attempts that are remembered of one claim. A client that disconnects again and again must not
    /// make a key grow.
    WITHDRAWN_MAX = 32;
    /// The most attempts that are remembered to have had a lease in turn.
    TURNS_MAX = 32;
    /// The most repeated requests that are remembered of one claim.
    REPEATED_MAX = 32;
    /// The numbers of attempts in the count of a principal's leases.
    COUNT_ATTEMPTS = 1_024;
}

numbers! { CODES:
    GRANTED = 1;
    REENTERED = 2;
    REPLAYED = 3;
    BLOCKED = 4;
    WAITING = 5;
    ENDED = 6;
    /// New grants wait for leases that may be alive.
    RECOVERING = 7;
    /// A fencing counter is missing, or behind what the process has seen: data were lost.
    COUNTER_REGRESSED = 8;
    /// There is no larger fencing token.
    FENCES_EXHAUSTED = 9;
    /// The attempt was withdrawn before it arrived.
    WITHDRAWN = 10;
    /// The claim has other parameters.
    CLAIM_MISMATCH = 11;
    /// The claim holds the lock shared, and wants it exclusively.
    HOLDS_SHARED = 12;
    LIMIT_MISMATCH = 13;
    TOO_MANY_WAITERS = 14;
    WAIT_EXPIRED = 15;
    /// The request came too late, and nothing was done.
    TOO_LATE = 16;
    /// The client has retried elsewhere since.
    SUPERSEDED = 17;
    /// Nothing is in the claim's way.
    ADMITTED = 18;
    /// What is in the way of a claim that is to be granted later.
    ASKED = 19;
    /// The claim holds its locks.
    HOLDS = 20;
    /// The claim could renew its leases.
    RENEWABLE = 21;
    /// The grant of the claim is beyond a quota, and is being rolled back.
    OVER_QUOTA = 22;
    /// Very many holders have expired together. Some were removed, and the request must be repeated.
    HOLDERS_EXPIRED = 23;
    /// The claim does not hold the lock.
    NOT_HELD = 0;
    EXTENDED = 1;
    /// The leases have the tokens that the quorum has decided.
    ASSIGNED = 1;
    /// A token may have been given to another claim that shares the lock.
    TAKEN = 2;
    FREED = 1;
    STEPPED_BACK = 2;
    LEFT_QUEUE = 3;
    /// Freed, and reserved for the calling process, which gets no other notification.
    FREED_FOR_CALLER = 4;
}

letters! { LETTERS:
    /// The kind of a record with nothing between the claim and the numbers but the owner. It is also the code of a
    /// grant, so that the record of a new lease is the answer to its own grant.
    PLAIN = b'1';
    /// The kind of a record with options.
    WITH_OPTIONS = b'2';
    /// The first letter of a tombstone, which is called a mark in the scripts. Redis stores small integers once for all
    /// keys, so the digits take no memory of their own.
    MARK_RELEASED = b'1';
    /// The lease expired.
    MARK_EXPIRED = b'2';
    /// The lease expired, and the lock was granted again.
    MARK_LOST = b'3';
    /// The reason follows.
    MARK_EVICTED = b'v';
    /// The claim has not ended, but the attempts that follow were withdrawn.
    MARK_OPEN = b'c';
    /// In answers: there is neither a record nor a mark.
    MARK_UNKNOWN = b'u';
    /// The steps of the count of a principal's leases.
    COUNT_CHECK = b'c';
    COUNT_TAKE = b't';
    COUNT_KEEP = b'k';
    COUNT_EXTEND = b'x';
    COUNT_UNDO = b'u';
    COUNT_END = b'e';
    /// The state of a lock, or what keeps it from a claim.
    HELD = b'h';
    COOLING = b'c';
    FREE = b'f';
    /// The lock is shared with another limit.
    OTHER_LIMIT = b'l';
    /// Others wait before the claim.
    WAITED_FOR = b'w';
}

texts! { TEXTS:
    /// The attempt of a lease that none may roll back any more.
    NO_ATTEMPT = r"\0\0\0\0\0\0\0\0";
    /// No milliseconds, packed.
    NO_TIME = r"\0\0\0\0\0\0";
    /// The attempt of a lease whose stream was closed before its successor received it.
    CLOSED_ATTEMPT = r"\255\255\255\255\255\255\255\255";
    /// The attempt of a grant that was undone after another attempt had received the lease.
    UNDONE_ATTEMPT = r"\255\255\255\255\255\255\255\254";
    /// An attempt whose lease was not counted, undone after another one had received the lease.
    REFUSED_ATTEMPT = r"\254\254\254\254\254\254\254\254";
    /// Splits the key of a lock into what precedes and what follows the kind.
    LOCK_KEY_PATTERN = concat!("^(", prefix!(), "{%d+}:)l:(.*)$");
    /// The counter of a bucket.
    FENCE_KEY_FORMAT = concat!(prefix!(), "{%d}:f");
    /// The channel that notifies a process, before its id.
    WAKE_CHANNEL = keys::WAKE_CHANNEL;
    /// The channel that notifies of released leases of streams, before the number of the database.
    RELEASES_CHANNEL = keys::RELEASES_CHANNEL;
    /// The channel that notifies all processes that the clock was set back.
    CLOCK_CHANNEL = keys::CLOCK_CHANNEL;
    /// The error of a Redis whose clock shows a time that is larger than any fencing token.
    CLOCK_TOO_LATE = "CLOCKTOOLATE";
}

/// The Lua literal of a name.
pub(super) fn literal(name: &str) -> Option<String> {
    let number = |name: &str| {
        let mut numbers = [TIMES, BOUNDS, CODES].into_iter().flatten();
        numbers.find(|(known, _)| *known == name).map(|it| it.1)
    };
    if let Some(text_of) = name.strip_suffix("_TEXT") {
        return number(text_of).map(|number| format!("'{number}'"));
    }
    let letter = |(known, letter): &(&str, u8)| {
        (*known == name).then(|| format!("'{}'", char::from(*letter)))
    };
    let text = |(known, text): &(&str, &str)| (*known == name).then(|| format!("'{text}'"));
    number(name)
        .map(|number| number.to_string())
        .or_else(|| LETTERS.iter().find_map(letter))
        .or_else(|| TEXTS.iter().find_map(text))
}

/// Every name that the scripts may use.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let numbers = [TIMES, BOUNDS, CODES].into_iter().flatten();
    let names = numbers.map(|it| it.0).chain(LETTERS.iter().map(|it| it.0));
    names.chain(TEXTS.iter().map(|it| it.0))
}

const fn millis(duration: Duration) -> u64 {
    assert!(duration.as_millis() <= u64::MAX as u128, "not that long");
    duration.as_millis() as u64
}
