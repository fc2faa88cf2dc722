//! What the answers of the scripts mean: one function for each script. How they are read item by item is in `scripts`, and
//! what is only looked at is read in `views`.

use std::time::Duration;

use super::record::Packed;
use super::scripts::{Malformed, Reply};
use crate::domain::{
    Acquired, Blockade, Blocker, Claim, Contradiction, Fence, Grant, HoldCount, Holder, Holders,
    Lease, LockName, LockNames, LockState, Lost, Metadata, Mode, NotHolder, Owner, Parked, Place,
    Position, Released, Renewal, Renewed, Share, Timestamp, Ttl, Waiting,
};

/// What came of an acquire as far as the script knows.
pub(super) enum AcquireReply {
    Told(Acquired),
    /// Grants wait; for how long is known to `recovery`.
    Recovering,
    /// A fencing counter is missing, or behind what this process has seen: the data were lost.
    CounterRegressed,
    /// It was later in Redis than the request allowed: then it was so many microseconds. Nothing was done.
    Late {
        redis_us: u64,
    },
    /// No larger fencing token can be given.
    UsedUp,
    /// This attempt was withdrawn before it arrived.
    Withdrawn,
}

/// What came of a release.
pub(super) struct ReleaseReply {
    pub(super) released: Vec<Released>,
    /// Whether this process may have been offered the lock and told by nothing else: the answer says so, or the claim was
    /// released before, perhaps by this very request, whose first answer was lost.
    pub(super) may_be_offered: bool,
    /// Whether a stream may have held what was released, now or before.
    pub(super) may_be_of_stream: bool,
}

/// One step of an eviction.
pub(super) struct Eviction {
    /// When it was done, by the clock of Redis.
    pub(super) at_ms: u64,
    /// How many were evicted.
    pub(super) count: u64,
    /// Those of them that the step tells of.
    pub(super) told: Vec<Holder>,
    /// The cursor with which the next step goes on, if there is one.
    pub(super) next: Option<u64>,
}

pub(super) fn acquired(mut reply: Reply, claim: &Claim) -> Result<AcquireReply, Malformed> {
    if let Some(packed) = reply.packed() {
        return acquired_shortly(&packed, claim).map(AcquireReply::Told);
    }
    let acquired = match reply.number()? {
        1 => granted(reply, claim)?,
        2 => Acquired::Reentered(leases(reply)?),
        3 => Acquired::Replayed(leases(reply)?),
        4 => {
            let now_ms = reply.number()?;
            Acquired::Blocked(blockades(reply, &claim.names, now_ms)?)
        }
        5 => Acquired::Waiting(waiting(reply)?),
        6 => Acquired::Ended(Lost {
            name: name(&mut reply, &claim.names)?,
            how: mark(&reply.text()?)?,
        }),
        7 => return Ok(AcquireReply::Recovering),
        8 => return Ok(AcquireReply::CounterRegressed),
        9 => return Ok(AcquireReply::UsedUp),
        10 => return Ok(AcquireReply::Withdrawn),
        code @ (11 | 12) => Acquired::Contradicts(contradiction(code, &mut reply, &claim.names)?),
        13 => Acquired::Contradicts(Contradiction::Limit {
            name: name(&mut reply, &claim.names)?,
            in_force: limit(reply.number()?)?,
        }),
        14 => Acquired::TooManyWaiters {
            name: name(&mut reply, &claim.names)?,
            queue_length: reply.number()?,
        },
        15 => Acquired::Overdue,
        16 => {
            let redis_us = reply.number()?;
            return Ok(AcquireReply::Late { redis_us });
        }
        17 => Acquired::Superseded,
        _ => return Err(Malformed),
    };
    Ok(AcquireReply::Told(acquired))
}

pub(super) fn renewed(mut reply: Reply, names: &LockNames) -> Result<Renewed, Malformed> {
    if let Some(packed) = reply.packed() {
        let slack = Duration::from_millis(packed.millis(1)?);
        let lease = packed.lease(2)?;
        return Ok(Renewed::Extended(vec![Renewal { lease, slack }]));
    }
    match reply.number()? {
        1 => {
            let now_ms = reply.number()?;
            let renewals = names.iter().map(|_| {
                let slack = reply.millis()?;
                let lease = lease(reply.list()?, now_ms)?;
                Ok(Renewal { lease, slack })
            });
            Ok(Renewed::Extended(renewals.collect::<Result<_, _>>()?))
        }
        0 => {
            let mut lost = Vec::new();
            while !reply.is_read() {
                let name = name(&mut reply, names)?;
                let how = mark(&reply.text()?)?;
                lost.push(Lost { name, how });
            }
            Ok(Renewed::NotHolder(lost))
        }
        code => Ok(Renewed::Contradicts(contradiction(
            code, &mut reply, names,
        )?)),
    }
}

pub(super) fn released(mut reply: Reply, names: &LockNames) -> Result<ReleaseReply, Malformed> {
    if let Some(packed) = reply.packed() {
        let held_for = Duration::from_millis(packed.millis(0)?);
        return Ok(ReleaseReply {
            released: vec![Released::Freed { held_for }],
            may_be_offered: packed.code() == Some(b'2'),
            may_be_of_stream: false,
        });
    }
    let now_ms = reply.number()?;
    let mut is_of_stream = false;
    let each = names.iter().map(|_| {
        let mut item = reply.list()?;
        match item.number()? {
            1 => {
                let held_for = item.millis()?;
                is_of_stream |= item.number()? == 1;
                Ok(Released::Freed { held_for })
            }
            2 => Ok(Released::SteppedBack(lease(item.list()?, now_ms)?)),
            3 => Ok(Released::LeftQueue),
            0 => Ok(Released::by_other(mark(&item.text()?)?)),
            _ => Err(Malformed),
        }
    });
    let released = each.collect::<Result<Vec<_>, _>>()?;
    let is_repeated = released.contains(&Released::Repeated);
    Ok(ReleaseReply {
        may_be_offered: is_repeated,
        may_be_of_stream: is_of_stream || is_repeated,
        released,
    })
}

pub(super) fn parked(mut reply: Reply, names: &LockNames) -> Result<Parked, Malformed> {
    let now_ms = reply.number()?;
    let position = position(&mut reply)?;
    Ok(Parked {
        position,
        blocked_by: blockades(reply, names, now_ms)?,
    })
}

/// None if the request came too late.
pub(super) fn evicted(mut reply: Reply) -> Result<Option<Eviction>, Malformed> {
    if reply.is_read() {
        return Ok(None);
    }
    let now_ms = reply.number()?;
    let (cursor, count) = (reply.number()?, reply.number()?);
    let mut told = Vec::new();
    while !reply.is_read() {
        told.push(lease(reply.list()?, now_ms)?.holder);
    }
    let next = (cursor != 0).then_some(cursor);
    Ok(Some(Eviction {
        at_ms: now_ms,
        count,
        told,
        next,
    }))
}

/// What the short way answers.
fn acquired_shortly(packed: &Packed, claim: &Claim) -> Result<Acquired, Malformed> {
    match packed.code() {
        Some(b'1') => Ok(Acquired::Granted(vec![Grant {
            lease: packed.granted()?,
            after_expiry: None,
        }])),
        Some(b'3') => Ok(Acquired::Replayed(vec![packed.lease(1)?])),
        Some(b'4') => Ok(Acquired::Blocked(vec![Blockade {
            name: claim.names.first().cloned().ok_or(Malformed)?,
            by: Blocker::Holders(packed.lease(1)?.holder.into()),
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
    let place = Place {
        sequence: reply.number()?,
        until: Some(Timestamp::from_unix_ms(reply.number()?)),
    };
    let look_in = reply.optional()?.map(Duration::from_millis);
    Ok(Waiting {
        place,
        look_in,
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

fn blockades(mut reply: Reply, names: &LockNames, now_ms: u64) -> Result<Vec<Blockade>, Malformed> {
    let mut blockades = Vec::new();
    while !reply.is_read() {
        let mut item = reply.list()?;
        let name = name(&mut item, names)?;
        let queue_length = item.number()?;
        let by = match state(item.list()?, now_ms)? {
            LockState::Held(holders) => Blocker::Holders(holders),
            LockState::Cooling { free_in } => Blocker::Cooling { free_in },
            LockState::Free => Blocker::Waiters,
        };
        blockades.push(Blockade {
            name,
            by,
            queue_length,
        });
    }
    Ok(blockades)
}

pub(super) fn state(mut reply: Reply, now_ms: u64) -> Result<LockState, Malformed> {
    match reply.text()?.as_str() {
        "f" => Ok(LockState::Free),
        "c" => Ok(LockState::Cooling {
            free_in: reply.millis()?,
        }),
        "h" => {
            let total = reply.number()?;
            let mut told = Vec::new();
            let mut leases = reply.list()?;
            while !leases.is_read() {
                told.push(lease(leases.list()?, now_ms)?.holder);
            }
            Ok(LockState::Held(Holders { told, total }))
        }
        _ => Err(Malformed),
    }
}

fn contradiction(
    code: u64,
    reply: &mut Reply,
    names: &LockNames,
) -> Result<Contradiction, Malformed> {
    let name = name(reply, names)?;
    match code {
        11 => Ok(Contradiction::Claim { name }),
        12 => Ok(Contradiction::Upgrade { name }),
        _ => Err(Malformed),
    }
}

/// A lock by its number among those of the request, as scripts count.
fn name(reply: &mut Reply, names: &LockNames) -> Result<LockName, Malformed> {
    let number = usize::try_from(reply.number()?).map_err(|_| Malformed)?;
    let index = number.checked_sub(1).ok_or(Malformed)?;
    names.get(index).cloned().ok_or(Malformed)
}

fn leases(mut reply: Reply) -> Result<Vec<Lease>, Malformed> {
    let now_ms = reply.number()?;
    let mut leases = Vec::new();
    while !reply.is_read() {
        leases.push(lease(reply.list()?, now_ms)?);
    }
    Ok(leases)
}

/// The fields that `lease_in` tells.
fn lease(mut reply: Reply, now_ms: u64) -> Result<Lease, Malformed> {
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
        // When the clock of Redis was set back, the key lives longer; nobody is told to rely on that.
        expires_in: Duration::from_millis(until_ms.saturating_sub(now_ms)).min(ttl.get()),
    };
    Ok(Lease { holder, ttl })
}

/// The empty limit of a claim that is alone, 0 for a read lock, or a number.
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
