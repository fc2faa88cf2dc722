//! Decodes leases and the states of locks, which several scripts return; and the answers of the scripts that read locks,
//! correct them after a step of the clock, or evict their holders.

use std::time::Duration;

use super::constants as lua;
use super::reply::{InTime, Malformed, Reply};
use crate::domain::{
    ClaimDigest, Fence, HeadWaiter, HoldCount, Holder, Holders, Lease, LockName, LockState,
    LockView, Metadata, Mode, Owner, Queue, Share, Timestamp, Ttl,
};

/// One step of an eviction.
pub(super) struct Eviction {
    /// When it was done, on the clock of Redis.
    pub(super) at_ms: u64,
    /// For how long `lock_delay` keeps the lock closed if its holder had it alone.
    pub(super) closed_for: Duration,
    /// All that it has evicted.
    pub(super) claims: Vec<ClaimDigest>,
    /// The holders of these that the step lists.
    pub(super) listed: Vec<Holder>,
    /// The cursor of the next step; none if this was the last.
    pub(super) next: Option<u64>,
}

pub(super) fn evicted(mut reply: Reply) -> Result<InTime<Eviction>, Malformed> {
    let now = reply.number()?;
    if reply.is_read() {
        return Ok(InTime::Late { redis_us: now });
    }
    let (cursor, closed_for) = (reply.number()?, reply.millis()?);
    let claims = reply.bytes()?;
    let (claims, []) = claims.as_chunks() else {
        return Err(Malformed);
    };
    let claims = claims.iter().copied().map(ClaimDigest).collect();
    let mut listed = Vec::new();
    while !reply.is_read() {
        listed.push(lease(reply.list()?, now)?.holder);
    }
    let next = (cursor != 0).then_some(cursor);
    Ok(InTime::Done(Eviction {
        at_ms: now,
        closed_for,
        claims,
        listed,
        next,
    }))
}

/// One step of a scan.
pub(super) struct Scanned {
    /// The cursor of the next step; 0 if this was the last.
    pub(super) next: u64,
    /// How many keys the database has, also those of others.
    pub(super) total: u64,
    /// How many of the visited locks are held.
    pub(super) held: u64,
    /// Whether a pattern that names a hash tag makes the node of a cluster visit the keys of one slot only.
    pub(super) visits_slots: bool,
    pub(super) keys: Vec<Vec<u8>>,
}

/// One step of the correction after the clock was set back.
pub(super) struct Shifted {
    /// The cursor of the next step; 0 if this was the last.
    pub(super) next: u64,
    /// The keys of shared locks.
    pub(super) shared: Vec<Vec<u8>>,
}

pub(super) fn inspected(mut reply: Reply) -> Result<(LockState, Queue), Malformed> {
    let now_ms = reply.number()?;
    view(reply.list()?, now_ms)
}

/// When a missed eviction was done, on the clock of Redis, and how many it has evicted.
pub(super) fn evicted_missed(mut reply: Reply) -> Result<InTime<(u64, u64)>, Malformed> {
    let now = reply.number()?;
    Ok(match reply.optional()? {
        Some(count) => InTime::Done((now, count)),
        None => InTime::Late { redis_us: now },
    })
}

/// The first of these locks, as many as the step returned, and how long Redis worked.
pub(super) fn page(
    mut reply: Reply,
    names: &[LockName],
) -> Result<(Vec<LockView>, Option<Duration>), Malformed> {
    let worked = worked(&mut reply)?;
    let now_ms = reply.number()?;
    let mut views = Vec::new();
    while !reply.is_read() {
        let name = names.get(views.len()).cloned().ok_or(Malformed)?;
        let (state, queue) = view(reply.list()?, now_ms)?;
        views.push(LockView::new(name, state, queue));
    }
    // A step without progress would be repeated for ever.
    if views.is_empty() {
        return Err(Malformed);
    }
    Ok((views, worked))
}

/// The keys found, and how long Redis worked.
pub(super) fn scanned(mut reply: Reply) -> Result<(Scanned, Option<Duration>), Malformed> {
    let worked = worked(&mut reply)?;
    let scanned = Scanned {
        next: reply.number()?,
        total: reply.number()?,
        held: reply.number()?,
        visits_slots: reply.number()? == 1,
        keys: reply.keys()?,
    };
    Ok((scanned, worked))
}

/// The step's result, and how long Redis worked.
pub(super) fn shifted(mut reply: Reply) -> Result<(Shifted, Option<Duration>), Malformed> {
    let worked = worked(&mut reply)?;
    let shifted = Shifted {
        next: reply.number()?,
        shared: reply.keys()?,
    };
    Ok((shifted, worked))
}

/// How long a script took; none for versions of Redis that freeze the clock for scripts.
fn worked(reply: &mut Reply) -> Result<Option<Duration>, Malformed> {
    let micros = reply.number()?;
    Ok((micros > 0).then(|| Duration::from_micros(micros)))
}

fn view(mut reply: Reply, now_ms: u64) -> Result<(LockState, Queue), Malformed> {
    let state = state(reply.list()?, now_ms)?;
    let length = reply.number()?;
    if reply.is_read() {
        return Ok((state, Queue { length, head: None }));
    }
    let since = Timestamp::from_unix_ms(reply.number()? / 1_000);
    let limit = reply.text()?;
    let permits = reply.number()?;
    let head = HeadWaiter {
        mode: mode(&limit, permits)?,
        owner: Owner::from_store(&reply.text()?),
        since,
    };
    let head = Some(head);
    Ok((state, Queue { length, head }))
}

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
fn mode(limit_text: &str, permits: u64) -> Result<Mode, Malformed> {
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
