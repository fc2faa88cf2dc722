//! Decodes the leases in answers, and the states of locks.

use std::time::Duration;

use super::constants as lua;
use super::reply::{Malformed, Reply};
use crate::domain::{
    ClaimDigest, Fence, HoldCount, Holder, Holders, Lease, LockState, Metadata, Mode, Owner, Share,
    Timestamp, Ttl,
};

pub(super) fn state(mut reply: Reply, now_ms: u64) -> Result<LockState, Malformed> {
    match *reply.text()?.as_bytes() {
        [lua::FREE] => Ok(LockState::Free),
        [lua::COOLING] => Ok(LockState::Cooling {
            free_in: reply.millis()?,
        }),
        [lua::HELD] => {
            let total = reply.number()?;
            let mut listed = Vec::new();
            let mut leases = reply.list()?;
            while !leases.is_read() {
                listed.push(lease(leases.list()?, now_ms)?.holder);
            }
            Ok(LockState::Held(Holders { listed, total }))
        }
        _ => Err(Malformed),
    }
}

/// The fields that `lease_fields` in `lua/record.lua` returns.
pub(super) fn lease(mut reply: Reply, now_ms: u64) -> Result<Lease, Malformed> {
    let fence = Fence::new(reply.number()?).ok_or(Malformed)?;
    let (acquired_ms, until_ms) = (reply.number()?, reply.number()?);
    let ttl = Ttl::from_store(reply.millis()?);
    let hold_count = match reply.optional()? {
        None => HoldCount::ONE,
        Some(count) => HoldCount::new(count).map_err(|_| Malformed)?,
    };
    let owner = Owner::from_store(&reply.text()?);
    let metadata = match reply.text()?.as_str() {
        "" => None,
        text => Some(Metadata::from_json_object(text).map_err(|_| Malformed)?),
    };
    let limit = reply.text()?;
    let permits = reply.optional()?;
    let claim = reply.bytes()?.try_into().map_err(|_| Malformed)?;
    let holder = Holder {
        claim: ClaimDigest(claim),
        owner,
        metadata,
        mode: mode(&limit, permits.unwrap_or(1))?,
        fence,
        hold_count,
        acquired_at: Timestamp::from_unix_ms(acquired_ms),
        expires_at: Timestamp::from_unix_ms(until_ms),
        // If the clock of Redis was set back, the key lives longer, but clients must not rely on that.
        expires_in: Duration::from_millis(until_ms.saturating_sub(now_ms)).min(ttl.get()),
    };
    Ok(Lease { holder, ttl })
}

/// The limit text of a record: empty for an exclusive claim, 0 for a read lock, or a number.
pub(super) fn mode(limit_text: &str, permits: u64) -> Result<Mode, Malformed> {
    if limit_text.is_empty() {
        return Ok(Mode::Exclusive);
    }
    let in_force = limit(limit_text.parse().map_err(|_| Malformed)?)?;
    Share::new(in_force.map(u64::from), permits)
        .map(Mode::Shared)
        .map_err(|_| Malformed)
}

pub(super) fn limit(number: u64) -> Result<Option<u32>, Malformed> {
    match number {
        0 => Ok(None),
        _ => u32::try_from(number).map(Some).map_err(|_| Malformed),
    }
}
