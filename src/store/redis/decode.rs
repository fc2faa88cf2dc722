//! Decodes the answers of the scripts, with one function per script. `scripts` reads single items, and `views` decodes
//! inspections, listings and evictions.

use std::time::Duration;

use super::record::Packed;
use super::scripts::{InTime, Malformed, Reply};
use crate::domain::{
    Acquired, Claim, Conflict, ConflictKind, Fence, Grant, HoldCount, Holder, Holders, Lease,
    LockName, LockNames, LockState, Metadata, Mismatch, Mode, NotHeld, NotHolder, Owner, Position,
    Released, Renewal, Renewed, Share, Suspended, Ticket, Timestamp, Ttl, Waiting,
};

/// How long locks that were held before stay taken or closed at most, without further operations.
pub(super) type ClosedFor = Duration;

/// The outcome of an acquire as far as the script knows it.
pub(super) enum AcquireReply {
    Answer(Acquired, Option<ClosedFor>),
    /// Grants wait; `recovery` knows for how long.
    Recovering,
    /// A fencing counter is missing, or behind what this process has seen: data were lost.
    CounterRegressed,
    /// The request arrived after its time limit, at this time in Redis. Nothing was done.
    Late {
        redis_us: u64,
    },
    /// There is no larger fencing token.
    Exhausted,
    /// This attempt was withdrawn before it arrived.
    Withdrawn,
}

/// The outcome of a release.
pub(super) struct ReleaseReply {
    pub(super) released: Vec<Released>,
    /// Whether the lock may be reserved for this process without a notification: the answer says so, or the claim was
    /// released before, perhaps by this same request, whose first answer was lost.
    pub(super) may_be_reserved: bool,
    /// Whether a stream may have held one of the released leases, now or before.
    pub(super) may_be_of_stream: bool,
    /// For the leases that are still held.
    pub(super) closed_for: Option<ClosedFor>,
}

pub(super) fn acquired(mut reply: Reply, claim: &Claim) -> Result<AcquireReply, Malformed> {
    if let Some(packed) = reply.packed() {
        let acquired = acquired_packed(&packed, claim)?;
        return Ok(AcquireReply::Answer(acquired, None));
    }
    let mut closed_for = None;
    let acquired = match reply.number()? {
        1 => granted(reply, claim)?,
        2 => Acquired::Reentered(leases(reply, &mut closed_for)?),
        3 => Acquired::Replayed(leases(reply, &mut closed_for)?),
        4 => {
            let now_ms = reply.number()?;
            Acquired::Blocked(conflicts(reply, &claim.names, now_ms)?)
        }
        5 => Acquired::Waiting(waiting(reply)?),
        6 => Acquired::Ended(NotHeld {
            name: name(&mut reply, &claim.names)?,
            reason: mark(&reply.text()?)?,
        }),
        7 => return Ok(AcquireReply::Recovering),
        8 => return Ok(AcquireReply::CounterRegressed),
        9 => return Ok(AcquireReply::Exhausted),
        10 => return Ok(AcquireReply::Withdrawn),
        code @ (11 | 12) => Acquired::Mismatched(mismatch(code, &mut reply, &claim.names)?),
        13 => Acquired::Mismatched(Mismatch::Limit {
            name: name(&mut reply, &claim.names)?,
            in_force: limit(reply.number()?)?,
        }),
        14 => Acquired::TooManyWaiters {
            name: name(&mut reply, &claim.names)?,
            queue_length: reply.number()?,
        },
        15 => Acquired::WaitExpired,
        16 => {
            let redis_us = reply.number()?;
            return Ok(AcquireReply::Late { redis_us });
        }
        17 => Acquired::Superseded,
        _ => return Err(Malformed),
    };
    Ok(AcquireReply::Answer(acquired, closed_for))
}

pub(super) fn renewed(
    mut reply: Reply,
    names: &LockNames,
) -> Result<InTime<(Renewed, Option<ClosedFor>)>, Malformed> {
    if let Some(packed) = reply.packed() {
        let remaining_before = Duration::from_millis(packed.millis(1)?);
        let lease = packed.lease(2)?;
        let renewed = Renewed::Extended(vec![Renewal {
            lease,
            remaining_before,
        }]);
        return Ok(InTime::Done((renewed, None)));
    }
    let mut closed_for = None;
    let renewed = match reply.number()? {
        1 => {
            let now_ms = reply.number()?;
            let renewals = names.iter().map(|_| {
                let remaining_before = reply.millis()?;
                closed_for = closed_for.max(Some(reply.millis()?));
                let lease = lease(reply.list()?, now_ms)?;
                Ok(Renewal {
                    lease,
                    remaining_before,
                })
            });
            Renewed::Extended(renewals.collect::<Result<_, _>>()?)
        }
        0 => {
            let mut not_held = Vec::new();
            while !reply.is_read() {
                let name = name(&mut reply, names)?;
                let reason = mark(&reply.text()?)?;
                not_held.push(NotHeld { name, reason });
            }
            Renewed::NotHolder(not_held)
        }
        16 => {
            let redis_us = reply.number()?;
            return Ok(InTime::Late { redis_us });
        }
        code => Renewed::Mismatched(mismatch(code, &mut reply, names)?),
    };
    Ok(InTime::Done((renewed, closed_for)))
}

pub(super) fn released(
    mut reply: Reply,
    names: &LockNames,
) -> Result<InTime<ReleaseReply>, Malformed> {
    if let Some(packed) = reply.packed() {
        let held_for = Duration::from_millis(packed.millis(0)?);
        return Ok(InTime::Done(ReleaseReply {
            released: vec![Released::Freed { held_for }],
            may_be_reserved: packed.code() == Some(b'2'),
            may_be_of_stream: false,
            closed_for: None,
        }));
    }
    let now = reply.number()?;
    if reply.is_read() {
        return Ok(InTime::Late { redis_us: now });
    }
    let (mut is_of_stream, mut closed_for) = (false, None);
    let each = names.iter().map(|_| {
        let mut item = reply.list()?;
        match item.number()? {
            1 => {
                let held_for = item.millis()?;
                is_of_stream |= item.number()? == 1;
                Ok(Released::Freed { held_for })
            }
            2 => {
                closed_for = closed_for.max(Some(item.millis()?));
                Ok(Released::SteppedBack(lease(item.list()?, now)?))
            }
            3 => Ok(Released::LeftQueue),
            0 => Ok(Released::by_other(mark(&item.text()?)?)),
            _ => Err(Malformed),
        }
    });
    let released = each.collect::<Result<Vec<_>, _>>()?;
    let is_repeated = released.contains(&Released::Repeated);
    Ok(InTime::Done(ReleaseReply {
        may_be_reserved: is_repeated,
        may_be_of_stream: is_of_stream || is_repeated,
        released,
        closed_for,
    }))
}

pub(super) fn suspended(mut reply: Reply, names: &LockNames) -> Result<Suspended, Malformed> {
    let now_ms = reply.number()?;
    let position = position(&mut reply)?;
    Ok(Suspended {
        position,
        blocked_by: conflicts(reply, names, now_ms)?,
    })
}

/// Decodes the answer of the fast path.
fn acquired_packed(packed: &Packed, claim: &Claim) -> Result<Acquired, Malformed> {
    match packed.code() {
        Some(b'1') => Ok(Acquired::Granted(vec![Grant {
            lease: packed.granted()?,
            after_expiry: None,
        }])),
        Some(b'3') => Ok(Acquired::Replayed(vec![packed.lease(1)?])),
        Some(b'4') => Ok(Acquired::Blocked(vec![Conflict {
            name: claim.names.first().cloned().ok_or(Malformed)?,
            by: ConflictKind::Holders(packed.lease(1)?.holder.into()),
            queue_length: 0,
        }])),
        _ => Err(Malformed),
    }
}

fn granted(mut reply: Reply, claim: &Claim) -> Result<Acquired, Malformed> {
    let now_ms = reply.number()?;
    let grants = claim.names.iter().map(|_| {
        let fence = Fence::new(reply.number()?).ok_or(Malformed)?;
        let (acquired_ms, until_ms) = (reply.number()?, reply.number()?);
        let after_expiry = reply.optional()?.map(Duration::from_millis);
        let holder = Holder {
            owner: claim.owner.clone(),
            metadata: claim.metadata.clone(),
            mode: claim.mode,
            fence,
            hold_count: claim.hold_count,
            acquired_at: Timestamp::from_unix_ms(acquired_ms),
            expires_at: Timestamp::from_unix_ms(until_ms),
            expires_in: Duration::from_millis(until_ms.saturating_sub(now_ms)),
        };
        let ttl = claim.ttl;
        Ok(Grant {
            lease: Lease { holder, ttl },
            after_expiry,
        })
    });
    Ok(Acquired::Granted(grants.collect::<Result<_, _>>()?))
}

fn waiting(mut reply: Reply) -> Result<Waiting, Malformed> {
    let ticket = Ticket {
        sequence: reply.number()?,
        until: Some(Timestamp::from_unix_ms(reply.number()?)),
    };
    let recheck_in = reply.optional()?.map(Duration::from_millis);
    Ok(Waiting {
        ticket,
        recheck_in,
        position: position(&mut reply)?,
        restored: reply.number()? == 1,
        is_unsure: false,
    })
}

fn position(reply: &mut Reply) -> Result<Option<Position>, Malformed> {
    let (position, queue_length) = (reply.optional()?, reply.number()?);
    Ok(position.map(|position| Position {
        position,
        queue_length,
    }))
}

fn conflicts(mut reply: Reply, names: &LockNames, now_ms: u64) -> Result<Vec<Conflict>, Malformed> {
    let mut conflicts = Vec::new();
    while !reply.is_read() {
        let mut item = reply.list()?;
        let name = name(&mut item, names)?;
        let queue_length = item.number()?;
        let by = match state(item.list()?, now_ms)? {
            LockState::Held(holders) => ConflictKind::Holders(holders),
            LockState::Cooling { free_in } => ConflictKind::Cooling { free_in },
            LockState::Free => ConflictKind::Waiters,
        };
        conflicts.push(Conflict {
            name,
            by,
            queue_length,
        });
    }
    Ok(conflicts)
}

pub(super) fn state(mut reply: Reply, now_ms: u64) -> Result<LockState, Malformed> {
    match reply.text()?.as_str() {
        "f" => Ok(LockState::Free),
        "c" => Ok(LockState::Cooling {
            free_in: reply.millis()?,
        }),
        "h" => {
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

fn mismatch(code: u64, reply: &mut Reply, names: &LockNames) -> Result<Mismatch, Malformed> {
    let name = name(reply, names)?;
    match code {
        11 => Ok(Mismatch::Claim { name }),
        12 => Ok(Mismatch::Upgrade { name }),
        _ => Err(Malformed),
    }
}

/// A lock by its number in the request, which scripts count from 1.
fn name(reply: &mut Reply, names: &LockNames) -> Result<LockName, Malformed> {
    let number = usize::try_from(reply.number()?).map_err(|_| Malformed)?;
    let index = number.checked_sub(1).ok_or(Malformed)?;
    names.get(index).cloned().ok_or(Malformed)
}

fn leases(mut reply: Reply, closed_for: &mut Option<ClosedFor>) -> Result<Vec<Lease>, Malformed> {
    let now_ms = reply.number()?;
    *closed_for = Some(reply.millis()?);
    let mut leases = Vec::new();
    while !reply.is_read() {
        leases.push(lease(reply.list()?, now_ms)?);
    }
    Ok(leases)
}

/// The fields that `lease_in` returns.
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
    let holder = Holder {
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

fn limit(number: u64) -> Result<Option<u32>, Malformed> {
    match number {
        0 => Ok(None),
        _ => u32::try_from(number).map(Some).map_err(|_| Malformed),
    }
}

fn mark(mark: &str) -> Result<NotHolder, Malformed> {
    match mark.as_bytes().first() {
        Some(b'1') => Ok(NotHolder::Released),
        Some(b'2') => Ok(NotHolder::Expired),
        Some(b'3') => Ok(NotHolder::Lost),
        Some(b'u') => Ok(NotHolder::Unknown),
        Some(b'v') => Ok(NotHolder::Evicted {
            reason: mark[1..].to_owned(),
        }),
        _ => Err(Malformed),
    }
}
