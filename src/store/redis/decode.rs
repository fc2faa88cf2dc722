//! Decodes the answers of the scripts, with one function per script. `scripts` reads single items, and `views` decodes
//! inspections, listings and evictions.

use std::time::Duration;

use super::constants as lua;
use super::operations::{AcquireReply, AskReply};
use super::record::{self, Packed};
use super::reply::{InTime, Malformed, Reply};
use super::views::{lease, limit, state};
use crate::domain::{
    Acquired, Claim, Conflict, ConflictKind, Fence, GrantKind, Granted, HoldOptions, Holder, Lease,
    LockName, LockNames, LockState, Mismatch, NotHeld, NotHolder, Position, PreviousLease, Refused,
    Released, Renewal, Renewed, Suspended, Ticket, Timestamp, Waiting,
};

/// How long locks that were held before stay taken or closed at most, without further operations.
pub(super) type ClosedFor = Duration;

/// Why the script of an acquire has no outcome.
pub(super) enum AcquireRejection {
    /// A fencing counter is missing, or behind what this process has seen: data were lost.
    CounterRegressed,
    /// The request arrived after its time limit, at this time in Redis.
    Late { redis_us: u64 },
    /// There is no larger fencing token.
    Exhausted,
    /// This attempt was withdrawn before it arrived.
    Withdrawn,
    /// Very many holders have expired together, and only some of them were removed.
    HoldersExpired,
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

/// `recovery` knows how long grants wait.
pub(super) fn acquired(
    mut reply: Reply,
    claim: &Claim,
) -> Result<Result<AcquireReply, AcquireRejection>, Malformed> {
    if let Some(packed) = reply.packed() {
        return Ok(Ok((Ok(acquired_packed(&packed, claim)?), None)));
    }
    let asked = |reply| Ok(Ok((Err(reply), None)));
    let mut closed_for = None;
    let acquired = match reply.number()? {
        lua::GRANTED => granted(reply, claim)?,
        lua::REENTERED => before(GrantKind::Reentered, held(reply, &mut closed_for)?),
        lua::REPLAYED => before(GrantKind::Replayed, held(reply, &mut closed_for)?),
        lua::BLOCKED => {
            let now_ms = reply.number()?;
            Acquired::Refused(Refused::Blocked(conflicts(reply, &claim.names, now_ms)?))
        }
        lua::WAITING => Acquired::Waiting(waiting(reply)?),
        lua::ADMITTED => return asked(AskReply::Queued(waiting(reply)?)),
        lua::ASKED => {
            let (ticket, now_ms) = (reply.optional()?, reply.number()?);
            let conflicts = conflicts(reply, &claim.names, now_ms)?;
            return asked(AskReply::NotQueued { ticket, conflicts });
        }
        lua::HOLDS => {
            let is_acknowledged = reply.number()? == 1;
            return asked(AskReply::Holds { is_acknowledged });
        }
        lua::ENDED => Acquired::Refused(Refused::Ended(NotHeld {
            name: name(&mut reply, &claim.names)?,
            reason: not_holder(&reply.text()?)?,
        })),
        lua::RECOVERING => Acquired::Refused(Refused::Recovering {
            retry_in: Duration::ZERO,
        }),
        lua::COUNTER_REGRESSED => return Ok(Err(AcquireRejection::CounterRegressed)),
        lua::FENCES_EXHAUSTED => return Ok(Err(AcquireRejection::Exhausted)),
        lua::HOLDERS_EXPIRED => return Ok(Err(AcquireRejection::HoldersExpired)),
        lua::WITHDRAWN => return Ok(Err(AcquireRejection::Withdrawn)),
        code @ (lua::CLAIM_MISMATCH | lua::HOLDS_SHARED) => Acquired::Refused(Refused::Mismatched(
            mismatch(code, &mut reply, &claim.names)?,
        )),
        lua::LIMIT_MISMATCH => Acquired::Refused(Refused::Mismatched(Mismatch::Limit {
            name: name(&mut reply, &claim.names)?,
            in_force: limit(reply.number()?)?,
        })),
        lua::TOO_MANY_WAITERS => Acquired::Refused(Refused::TooManyWaiters {
            name: name(&mut reply, &claim.names)?,
            queue_length: reply.number()?,
        }),
        lua::WAIT_EXPIRED => Acquired::WaitExpired,
        lua::TOO_LATE => {
            let redis_us = reply.number()?;
            return Ok(Err(AcquireRejection::Late { redis_us }));
        }
        lua::SUPERSEDED => Acquired::Superseded,
        lua::OVER_QUOTA => Acquired::Refused(Refused::TooManyLeases {
            of_all: false,
            retry_in: Duration::from_millis(reply.number()?),
        }),
        _ => return Err(Malformed),
    };
    Ok(Ok((Ok(acquired), closed_for)))
}

fn hold_options(mut reply: Reply) -> Result<HoldOptions, Malformed> {
    let mut millis = || Ok(reply.optional()?.map(Duration::from_millis));
    Ok(HoldOptions {
        min_hold_left: millis()?,
        max_hold_left: millis()?,
        lock_delay: millis()?,
        is_of_stream: reply.optional()?.is_some(),
    })
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
            // A lease with options is not packed, and neither is one that an attempt may still roll back.
            options: HoldOptions::default(),
            withdrawable_by: None,
        }]);
        return Ok(InTime::Done((renewed, None)));
    }
    let mut closed_for = None;
    let renewed = match reply.number()? {
        lua::EXTENDED => {
            let now_ms = reply.number()?;
            let renewals = names.iter().map(|_| {
                let remaining_before = reply.millis()?;
                closed_for = closed_for.max(Some(reply.millis()?));
                let options = hold_options(reply.list()?)?;
                let lease = lease(reply.list()?, now_ms)?;
                Ok(Renewal {
                    lease,
                    remaining_before,
                    options,
                    withdrawable_by: record::attempt(&reply.bytes()?)?,
                })
            });
            Renewed::Extended(renewals.collect::<Result<_, _>>()?)
        }
        lua::NOT_HELD => {
            let mut not_held = Vec::new();
            while !reply.is_read() {
                let name = name(&mut reply, names)?;
                let reason = not_holder(&reply.text()?)?;
                not_held.push(NotHeld { name, reason });
            }
            Renewed::NotHolder(not_held)
        }
        lua::TOO_LATE => {
            let redis_us = reply.number()?;
            return Ok(InTime::Late { redis_us });
        }
        lua::RENEWABLE => Renewed::Extended(Vec::new()),
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
        let fence = Some(packed.fence(1)?);
        return Ok(InTime::Done(ReleaseReply {
            released: vec![Released::Freed { held_for, fence }],
            may_be_reserved: packed.code() == Some(lua::FREED_FOR_CALLER),
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
            lua::FREED => {
                let held_for = item.millis()?;
                is_of_stream |= item.number()? == 1;
                let fence = Some(Fence::new(item.number()?).ok_or(Malformed)?);
                Ok(Released::Freed { held_for, fence })
            }
            lua::STEPPED_BACK => {
                closed_for = closed_for.max(Some(item.millis()?));
                Ok(Released::SteppedBack(lease(item.list()?, now)?))
            }
            lua::LEFT_QUEUE => Ok(Released::LeftQueue),
            lua::NOT_HELD => Ok(Released::by_other(not_holder(&item.text()?)?)),
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

/// How many leases a roll-back ended.
pub(super) fn withdrawn(mut reply: Reply) -> Result<usize, Malformed> {
    usize::try_from(reply.number()?).map_err(|_| Malformed)
}

/// Decodes the answer of the fast path.
fn acquired_packed(packed: &Packed, claim: &Claim) -> Result<Acquired, Malformed> {
    match packed.code() {
        Some(lua::GRANTED) => Ok(Acquired::Granted(Granted {
            kind: GrantKind::New,
            leases: vec![packed.granted()?],
            options: Vec::new(),
            expired: Vec::new(),
        })),
        Some(lua::REPLAYED) => Ok(before(
            GrantKind::Replayed,
            // A lease with options is not packed.
            [(packed.lease(1)?, HoldOptions::default())],
        )),
        Some(lua::BLOCKED) => Ok(Acquired::Refused(Refused::Blocked(vec![Conflict {
            name: claim.names.first().cloned().ok_or(Malformed)?,
            by: ConflictKind::Holders(packed.lease(1)?.holder.into()),
            queue_length: 0,
        }]))),
        _ => Err(Malformed),
    }
}

fn granted(mut reply: Reply, claim: &Claim) -> Result<Acquired, Malformed> {
    let now_ms = reply.number()?;
    let mut granted = Granted {
        kind: GrantKind::New,
        leases: Vec::with_capacity(claim.names.len()),
        options: Vec::new(),
        expired: Vec::new(),
    };
    for name in claim.names.iter() {
        let fence = Fence::new(reply.number()?).ok_or(Malformed)?;
        let (acquired_ms, until_ms) = (reply.number()?, reply.number()?);
        if let Some(held_ms) = reply.optional()? {
            granted.expired.push(PreviousLease {
                name: name.clone(),
                held_for: Duration::from_millis(held_ms),
            });
        }
        let holder = Holder {
            claim: claim.token.digest(name),
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
        granted.leases.push(Lease { holder, ttl });
    }
    Ok(Acquired::Granted(granted))
}

fn before(kind: GrantKind, held: impl IntoIterator<Item = (Lease, HoldOptions)>) -> Acquired {
    Acquired::Granted(Granted::before(kind, held))
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
        has_ambiguous_attempt: false,
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

fn mismatch(code: u64, reply: &mut Reply, names: &LockNames) -> Result<Mismatch, Malformed> {
    let name = name(reply, names)?;
    match code {
        lua::CLAIM_MISMATCH => Ok(Mismatch::Claim { name }),
        lua::HOLDS_SHARED => Ok(Mismatch::Upgrade { name }),
        _ => Err(Malformed),
    }
}

/// A lock by its number in the request, which scripts count from 1.
fn name(reply: &mut Reply, names: &LockNames) -> Result<LockName, Malformed> {
    let number = usize::try_from(reply.number()?).map_err(|_| Malformed)?;
    let index = number.checked_sub(1).ok_or(Malformed)?;
    names.get(index).cloned().ok_or(Malformed)
}

fn held(
    mut reply: Reply,
    closed_for: &mut Option<ClosedFor>,
) -> Result<Vec<(Lease, HoldOptions)>, Malformed> {
    let now_ms = reply.number()?;
    *closed_for = Some(reply.millis()?);
    let mut held = Vec::new();
    while !reply.is_read() {
        let options = hold_options(reply.list()?)?;
        held.push((lease(reply.list()?, now_ms)?, options));
    }
    Ok(held)
}

fn not_holder(mark: &str) -> Result<NotHolder, Malformed> {
    match *mark.as_bytes().first().ok_or(Malformed)? {
        lua::MARK_RELEASED => Ok(NotHolder::Released),
        lua::MARK_EXPIRED => Ok(NotHolder::Expired),
        lua::MARK_LOST => Ok(NotHolder::Lost),
        lua::MARK_UNKNOWN => Ok(NotHolder::Unknown),
        lua::MARK_EVICTED => Ok(NotHolder::Evicted {
            reason: mark[1..].to_owned(),
        }),
        _ => Err(Malformed),
    }
}
