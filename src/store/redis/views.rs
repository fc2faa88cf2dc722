//! Decodes the answers of the scripts that read locks, correct them after a step of the clock, or evict their holders.

use std::time::Duration;

use super::leases::{lease, mode, state};
use super::reply::{InTime, Malformed, Reply};
use crate::domain::{HeadWaiter, Holder, LockName, LockState, LockView, Owner, Queue, Timestamp};

/// One step of an eviction.
pub(super) struct Eviction {
    /// When it was done, on the clock of Redis.
    pub(super) at_ms: u64,
    /// How many were evicted.
    pub(super) count: u64,
    /// The evicted holders that the step lists.
    pub(super) listed: Vec<Holder>,
    /// The cursor of the next step; none if this was the last.
    pub(super) next: Option<u64>,
}

pub(super) fn evicted(mut reply: Reply) -> Result<InTime<Eviction>, Malformed> {
    let now = reply.number()?;
    if reply.is_read() {
        return Ok(InTime::Late { redis_us: now });
    }
    let (cursor, count) = (reply.number()?, reply.number()?);
    let mut listed = Vec::new();
    while !reply.is_read() {
        listed.push(lease(reply.list()?, now)?.holder);
    }
    let next = (cursor != 0).then_some(cursor);
    Ok(InTime::Done(Eviction {
        at_ms: now,
        count,
        listed,
        next,
    }))
}

/// One step of a scan.
pub(super) struct Scanned {
    /// The cursor of the next step; 0 if this was the last.
    pub(super) next: u64,
    /// How many of the visited locks are held.
    pub(super) held: u64,
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
        held: reply.number()?,
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
