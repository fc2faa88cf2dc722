//! The record of a lease: its head, which is built here, and the records without options that the fast paths of the
//! scripts return, which are decoded here.
//!
//! `lua/record.lua` describes it. The scripts pack and unpack everything after the head, and return a lease with options
//! as a list of fields, which `decode` reads.

use std::time::Duration;

use super::constants;
use super::reply::Malformed;
use crate::domain::{
    Attempt, ClaimDigest, Fence, HoldCount, Holder, Lease, Mode, Owner, RollbackRight, Timestamp,
    Ttl,
};

/// The attempt, and the code that makes a new record the answer to its own grant.
const HEAD_LEN: usize = 9;
const MILLIS_LEN: usize = 6;
const FENCE_LEN: usize = 7;

/// What a record has in place of an attempt if none may roll the lease back.
const NO_ATTEMPT: u64 = 0;

/// The id of a claim in the scripts.
pub(super) fn claim(digest: &ClaimDigest) -> &[u8] {
    &digest.0
}

/// The head of a new record, which has no options.
pub(super) fn head(attempt: u64, digest: &ClaimDigest, ttl_ms: u64, owner: &Owner) -> Vec<u8> {
    [
        attempt.to_be_bytes().as_slice(),
        &[constants::PLAIN],
        claim(digest),
        &ttl_ms.to_be_bytes()[8 - MILLIS_LEN..],
        owner.as_str().as_bytes(),
    ]
    .concat()
}

/// A request, its claim, and what the script needs to know of the calling process.
pub(super) fn caller(request: u64, digest: &ClaimDigest, process: &str) -> Vec<u8> {
    [&request.to_be_bytes(), claim(digest), process.as_bytes()].concat()
}

/// The attempt that may roll a lease back, if one may.
pub(super) fn attempt(bytes: &[u8]) -> Result<Option<Attempt>, Malformed> {
    let bytes = bytes.try_into().map_err(|_| Malformed)?;
    let number = u64::from_be_bytes(bytes);
    Ok((number != NO_ATTEMPT).then_some(Attempt(number)))
}

/// Which attempt may roll a lease back, as the scripts read it.
pub(super) fn rollback_right(right: RollbackRight) -> &'static str {
    match right {
        RollbackRight::Never => "",
        RollbackRight::AsBefore => "r",
        RollbackRight::UnlessYoung => "y",
    }
}

/// An answer of a fast path after its request id, read from the front.
pub(super) struct Packed(Vec<u8>);

impl Packed {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The code of the answer, a digit. After the code of a grant, the rest is the granted lease.
    pub(super) fn code(&self) -> Option<u64> {
        let digit = self.0.first()?.checked_sub(b'0')?;
        Some(u64::from(digit))
    }

    /// A number of milliseconds, by its index among the numbers after the code.
    pub(super) fn millis(&self, index: usize) -> Result<u64, Malformed> {
        let start = 1 + index * MILLIS_LEN;
        let bytes = self.0.get(start..start + MILLIS_LEN).ok_or(Malformed)?;
        Ok(number(bytes))
    }

    /// A fencing token after this many numbers.
    pub(super) fn fence(&self, numbers: usize) -> Result<Fence, Malformed> {
        let start = 1 + numbers * MILLIS_LEN;
        let bytes = self.0.get(start..start + FENCE_LEN).ok_or(Malformed)?;
        Fence::new(number(bytes)).ok_or(Malformed)
    }

    /// The lease in a record written just now: the record is the whole answer, and its grant is the current time.
    pub(super) fn granted(&self) -> Result<Lease, Malformed> {
        lease(self.0.get(1..).ok_or(Malformed)?, None)
    }

    /// The lease in a record after this many numbers, the first of which is the current time.
    pub(super) fn lease(&self, numbers: usize) -> Result<Lease, Malformed> {
        let start = 1 + numbers * MILLIS_LEN + HEAD_LEN;
        let record = self.0.get(start..).ok_or(Malformed)?;
        lease(record, Some(self.millis(0)?))
    }
}

/// The lease in a record after its head.
fn lease(record: &[u8], now_ms: Option<u64>) -> Result<Lease, Malformed> {
    let (claim, rest) = record.split_first_chunk().ok_or(Malformed)?;
    let (ttl, rest) = rest.split_first_chunk::<MILLIS_LEN>().ok_or(Malformed)?;
    let (rest, until) = rest.split_last_chunk::<MILLIS_LEN>().ok_or(Malformed)?;
    let (owner, fence) = rest.split_last_chunk::<FENCE_LEN>().ok_or(Malformed)?;
    let owner = std::str::from_utf8(owner).map_err(|_| Malformed)?;
    let (fence, until_ms) = (number(fence), number(until));
    let acquired_ms = fence / 1_000;
    let ttl = Ttl::from_store(Duration::from_millis(number(ttl)));
    let left_ms = until_ms.saturating_sub(now_ms.unwrap_or(acquired_ms));
    let holder = Holder {
        claim: ClaimDigest(*claim),
        owner: Owner::from_store(owner),
        metadata: None,
        mode: Mode::Exclusive,
        fence: Fence::new(fence).ok_or(Malformed)?,
        hold_count: HoldCount::ONE,
        acquired_at: Timestamp::from_unix_ms(acquired_ms),
        expires_at: Timestamp::from_unix_ms(until_ms),
        // If the clock of Redis was set back, the key lives longer, but clients must not rely on that.
        expires_in: Duration::from_millis(left_ms).min(ttl.get()),
    };
    Ok(Lease { holder, ttl })
}

/// A number in the packing of the scripts.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FENCE: u64 = 1_795_247_427_121_676;
    const UNTIL_MS: u64 = 1_795_247_487_121;

    /// The same packing as in `acquire.lua`.
    fn record(owner: &str) -> Vec<u8> {
        let owner = Owner::new(owner).expect("a short text");
        let mut record = head(7, &ClaimDigest([65; ClaimDigest::LEN]), 60_000, &owner);
        record.extend_from_slice(&FENCE.to_be_bytes()[8 - FENCE_LEN..]);
        record.extend_from_slice(&UNTIL_MS.to_be_bytes()[8 - MILLIS_LEN..]);
        record
    }

    #[test]
    fn the_layout_never_changes_under_the_same_version() {
        let expected = b"\0\0\0\0\0\0\0\x071AAAAAAAAAAAAAAAA\0\0\0\0\xea\x60me";
        assert_eq!(record("me").split_at(33).0, expected);
        assert_eq!(record("me").len(), 46);
    }

    /// Redis needs a second allocation for longer strings.
    #[test]
    fn a_record_without_an_owner_is_stored_in_one_piece() {
        assert_eq!(record("").len(), 44);
    }

    #[test]
    fn a_written_lease_is_decoded_unchanged() {
        for owner in ["", "web-1", "é1"] {
            let record = record(owner);
            let granted = Packed::new(record[8..].to_vec()).granted();
            let granted = granted.expect("the record of a grant");
            assert_eq!(granted.holder.claim, ClaimDigest([65; ClaimDigest::LEN]));
            assert_eq!(granted.holder.owner.as_str(), owner);
            assert_eq!(granted.holder.fence.get(), FENCE);
            assert_eq!(granted.holder.acquired_at.unix_ms(), FENCE / 1_000);
            assert_eq!(granted.holder.expires_at.unix_ms(), UNTIL_MS);
            assert_eq!(granted.holder.expires_in, granted.ttl.get());

            let a_second_later = &(FENCE / 1_000 + 1_000).to_be_bytes()[2..];
            let answer = [b"4", a_second_later, record.as_slice()].concat();
            let seen = Packed::new(answer).lease(1).expect("a record");
            assert_eq!(seen.holder.expires_in, Duration::from_secs(59));
        }
    }

    #[test]
    fn a_truncated_record_is_malformed() {
        let record = record("");
        for len in 0..record.len() - HEAD_LEN {
            assert!(Packed::new(record[8..8 + len].to_vec()).granted().is_err());
        }
    }
}
