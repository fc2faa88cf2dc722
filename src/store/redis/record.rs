//! The compact record: how the fast paths of the scripts write a lease down, and how they tell of it.
//!
//! What is in it is told in `lua/lease.lua`. The scripts put its numbers together and take them apart; what comes before
//! them is made here, and what goes to a client is read here.

use std::time::Duration;

use super::scripts::Malformed;
use crate::domain::{
    Attempt, ClaimDigest, Fence, HoldCount, Holder, Lease, Mode, Owner, Timestamp, Ttl,
};

/// The attempt, and the code that makes of a new record the answer that it was granted.
const HEAD_LEN: usize = 9;
const MILLIS_LEN: usize = 6;

/// What scripts know a claim by.
pub(super) fn claim(digest: &ClaimDigest) -> &[u8] {
    &digest.0
}

/// The beginning of a new record.
pub(super) fn identity(attempt: Attempt, digest: &ClaimDigest, owner: &Owner) -> Vec<u8> {
    let attempt = attempt.0.to_be_bytes();
    [
        attempt.as_slice(),
        b"1",
        claim(digest),
        owner.as_str().as_bytes(),
    ]
    .concat()
}

/// A request, the claim that makes it, and what the script has to know of the process that passes it on.
pub(super) fn claimant(request: u64, digest: &ClaimDigest, process: &str) -> Vec<u8> {
    [&request.to_be_bytes(), claim(digest), process.as_bytes()].concat()
}

/// An answer of a fast path after its request id, read from the front.
pub(super) struct Packed(Vec<u8>);

impl Packed {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// What is answered, and the lease that was granted just now if that is it.
    pub(super) fn code(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// A number of milliseconds, by its place among those that follow the code.
    pub(super) fn millis(&self, index: usize) -> Result<u64, Malformed> {
        let start = 1 + index * MILLIS_LEN;
        let bytes = self.0.get(start..start + MILLIS_LEN).ok_or(Malformed)?;
        Ok(number(bytes))
    }

    /// The lease in a record that was written just now: it is the whole answer, and its clock is that of the grant.
    pub(super) fn granted(&self) -> Result<Lease, Malformed> {
        lease(self.0.get(1..).ok_or(Malformed)?, None)
    }

    /// The lease in a record that follows so many numbers, the first of which is the clock.
    pub(super) fn lease(&self, numbers: usize) -> Result<Lease, Malformed> {
        let start = 1 + numbers * MILLIS_LEN + HEAD_LEN;
        let record = self.0.get(start..).ok_or(Malformed)?;
        lease(record, Some(self.millis(0)?))
    }
}

/// The lease in a record after its head.
fn lease(record: &[u8], now_ms: Option<u64>) -> Result<Lease, Malformed> {
    let (_, rest) = record.split_at_checked(ClaimDigest::LEN).ok_or(Malformed)?;
    let (rest, until) = rest.split_last_chunk::<MILLIS_LEN>().ok_or(Malformed)?;
    let (rest, granted) = rest.split_last_chunk::<8>().ok_or(Malformed)?;
    let (owner, ttl) = rest.split_last_chunk::<4>().ok_or(Malformed)?;
    let owner = std::str::from_utf8(owner).map_err(|_| Malformed)?;
    let (granted_us, until_ms) = (number(granted), number(until));
    let acquired_ms = granted_us / 1_000;
    let ttl = Ttl::from_store(Duration::from_millis(number(ttl)));
    let left_ms = until_ms.saturating_sub(now_ms.unwrap_or(acquired_ms));
    let holder = Holder {
        owner: Owner::from_store(owner),
        metadata: None,
        mode: Mode::Exclusive,
        fence: Fence::new(granted_us).ok_or(Malformed)?,
        hold_count: HoldCount::ONE,
        acquired_at: Timestamp::from_unix_ms(acquired_ms),
        expires_at: Timestamp::from_unix_ms(until_ms),
        // When the clock of Redis was set back, the key lives longer; nobody is told to rely on that.
        expires_in: Duration::from_millis(left_ms).min(ttl.get()),
    };
    Ok(Lease { holder, ttl })
}

/// A number as the scripts pack it.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTED_US: u64 = 1_795_247_427_121_675;
    const UNTIL_MS: u64 = 1_795_247_487_121;

    /// As `acquire.lua` puts it together.
    fn record(owner: &str) -> Vec<u8> {
        let owner = Owner::new(owner).expect("a short text");
        let mut record = identity(Attempt(7), &ClaimDigest([65; ClaimDigest::LEN]), &owner);
        record.extend_from_slice(&60_000_u32.to_be_bytes());
        record.extend_from_slice(&GRANTED_US.to_be_bytes());
        record.extend_from_slice(&UNTIL_MS.to_be_bytes()[2..]);
        record
    }

    #[test]
    fn the_layout_never_changes_under_the_same_version() {
        let expected = b"\0\0\0\0\0\0\0\x071AAAAAAAAAAAAAAAAme";
        assert_eq!(record("me").split_at(27).0, expected);
        assert_eq!(record("me").len(), 45);
    }

    /// Longer strings take Redis a second allocation.
    #[test]
    fn a_record_without_an_owner_is_stored_in_one_piece() {
        assert_eq!(record("").len(), 43);
    }

    #[test]
    fn a_lease_is_read_as_it_was_written() {
        for owner in ["", "web-1", "é1"] {
            let record = record(owner);
            let granted = Packed::new(record[8..].to_vec()).granted();
            let granted = granted.expect("the record of a grant");
            assert_eq!(granted.holder.owner.as_str(), owner);
            assert_eq!(granted.holder.fence.get(), GRANTED_US);
            assert_eq!(granted.holder.acquired_at.unix_ms(), GRANTED_US / 1_000);
            assert_eq!(granted.holder.expires_at.unix_ms(), UNTIL_MS);
            assert_eq!(granted.holder.expires_in, granted.ttl.get());

            let a_second_later = &(GRANTED_US / 1_000 + 1_000).to_be_bytes()[2..];
            let answer = [b"4", a_second_later, record.as_slice()].concat();
            let seen = Packed::new(answer).lease(1).expect("a record");
            assert_eq!(seen.holder.expires_in, Duration::from_secs(59));
        }
    }

    #[test]
    fn what_is_too_short_for_a_record_is_out_of_form() {
        let record = record("");
        for len in 0..record.len() - HEAD_LEN {
            assert!(Packed::new(record[8..8 + len].to_vec()).granted().is_err());
        }
    }
}
