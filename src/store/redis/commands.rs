//! The commands for claims that acquire, suspend and withdraw. `decode` reads the answers.

use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::call::LOSSES_MAX;
use super::decode::{self, AcquireReply};
use super::pool::{self, Connection, evalsha};
use super::scripts::{self, Reply, Script};
use super::{RedisStore, constants, keys, record};
use crate::domain::{
    Acquired, Attempt, Claim, ClaimDigest, HoldCount, LockNames, Metadata, Mode, QueueRequest,
    Rollback, SuspendOptions, Suspended, Token,
};
use crate::store::{Fault, StoreError};

/// What the script may do for a claim without a conflict.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayGrant {
    /// Nothing: new grants wait for leases that may be alive.
    Nothing = 0,
    /// Grant it.
    All = 1,
    /// Grant it, but pass over no process that did not claim its reservation: the store was unavailable, and the
    /// process may not have noticed yet that it is back.
    PastNobody = 2,
}

/// When the client of a request that was sent at `sent_at` is answered at the latest.
fn too_late_at(request: Option<&QueueRequest>, sent_at: Instant, deadline: Instant) -> Instant {
    request.map_or(deadline, |request| {
        deadline.min(sent_at + request.execute_within)
    })
}

impl RedisStore {
    pub(super) async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        if self.recovery.is_refused() {
            return Err(StoreError::unavailable(
                Fault::Refused,
                "the store is configured so that it would lose leases",
            ));
        }
        self.recovery.renew_if_long_away();
        let sent_at = Instant::now();
        let times = [sent_at, deadline];
        let digests = digests(&claim.names, claim.token);
        let mut is_unsure = false;
        for _ in 0..LOSSES_MAX {
            // Built once there is a connection: opening it may be what reveals that the data were lost.
            let command = |is_repeat| {
                let mut command = self.acquire_call(claim, &digests, attempt, request, times);
                // Only a claim with a hold count above 1 can change a lease that it already has.
                if (is_repeat || is_unsure) && claim.hold_count > HoldCount::ONE {
                    command.arg("1");
                }
                command
            };
            let (reply, epoch, has_lost_tries) =
                self.run_acquire(claim, attempt, command, deadline).await?;
            is_unsure |= has_lost_tries;
            let acquired = match reply {
                AcquireReply::Answer(acquired, closed_for) => {
                    self.report_acquired(acquired, claim, closed_for, epoch, times)
                        .await?
                }
                AcquireReply::Recovering => Acquired::Recovering {
                    retry_in: self.recovery.grace_left().unwrap_or_default(),
                },
                // Nothing was granted. The retry finds that grants wait, and a queued claim keeps waiting.
                AcquireReply::CounterRegressed => {
                    self.recovery.declare_lost(epoch);
                    continue;
                }
                AcquireReply::Late { redis_us } if self.recovery.is_ahead(redis_us) => {
                    self.recovery.declare_lost(epoch);
                    continue;
                }
                // Another try of the same request may have arrived in time.
                AcquireReply::Late { .. } => {
                    return Err(StoreError::unknown(Fault::Timeout, "it came too late"));
                }
                AcquireReply::Withdrawn => {
                    let detail = "the attempt was withdrawn";
                    return Err(StoreError::unavailable(Fault::Timeout, detail));
                }
                AcquireReply::Exhausted => {
                    let detail = "the fencing counter is used up";
                    return Err(StoreError::unavailable(Fault::Corrupt, detail));
                }
            };
            return match is_unsure {
                true => self.unless_late(acquired, claim, attempt, deadline).await,
                false => Ok(acquired),
            };
        }
        let detail = "the data are lost again and again";
        Err(StoreError::unknown(Fault::Corrupt, detail))
    }

    /// Runs `acquire.lua` until the store answers. Also returns the epoch of the connection, and whether an earlier try
    /// may still be executed.
    async fn run_acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        command: impl Fn(bool) -> Cmd,
        deadline: Instant,
    ) -> Result<(AcquireReply, u64, bool), StoreError> {
        let read = |reply: Reply, connection: &Connection| {
            Ok((decode::acquired(reply, claim)?, connection.epoch))
        };
        let run = self.run_unsure(&scripts::ACQUIRE, attempt.0, deadline, command, read);
        match run.await {
            Ok(((reply, epoch), has_lost_tries)) => Ok((reply, epoch, has_lost_tries)),
            // The service rolls back a grant whose answer was lost, but it cannot roll back a re-entry.
            Err(unanswered) if claim.hold_count > HoldCount::ONE => {
                Err(unanswered.when_too_late(deadline).await)
            }
            Err(unanswered) => Err(unanswered.error),
        }
    }

    /// The call of `acquire.lua`. Options that most claims lack come last, and only if this claim has some.
    fn acquire_call(
        &self,
        claim: &Claim,
        digests: &[ClaimDigest],
        attempt: Attempt,
        request: Option<&QueueRequest>,
        [sent_at, deadline]: [Instant; 2],
    ) -> Cmd {
        let too_late_at = too_late_at(request, sent_at, deadline);
        let mut command = evalsha(&scripts::ACQUIRE, 4 * digests.len());
        for (name, digest) in claim.names.iter().zip(digests) {
            command
                .arg(keys::lock(name))
                .arg(keys::fence(name.bucket()))
                .arg(keys::ended(name, digest))
                .arg(keys::ticket(name, digest));
        }
        let lasts = claim.ttl.get();
        command
            .arg(millis(lasts) + constants::TOMBSTONE_MS)
            .arg(self.recovery.time.not_after_us(too_late_at));
        for (name, digest) in claim.names.iter().zip(digests) {
            command
                .arg(record::head(attempt, digest, &claim.owner))
                .arg(self.recovery.last_fence(name.bucket()));
        }
        let may_grant = match self.recovery.grace_left() {
            Some(_) => MayGrant::Nothing,
            None if self.recovery.passes_over() => MayGrant::All,
            None => MayGrant::PastNobody,
        };
        let channel = self.messages.channel();
        let is_plain = may_grant == MayGrant::All && channel.is_empty() && is_plain(claim);
        match request {
            Some(request) => command.arg(self.add_queue_request(request, sent_at)),
            None if is_plain => return command,
            None => command.arg(""),
        };
        if is_plain {
            return command;
        }
        let (limit, permits) = share(claim.mode);
        command
            .arg(may_grant as u8)
            .arg(limit)
            .arg(permits)
            .arg(u8::from(claim.fair))
            .arg(claim.hold_count.get());
        for optional in [claim.max_hold, claim.min_hold, claim.lock_delay] {
            match optional {
                Some(duration) => command.arg(millis(duration)),
                None => command.arg(""),
            };
        }
        let metadata = claim.metadata.as_ref().map_or("", Metadata::as_json);
        command.arg(metadata).arg(channel);
        command.arg(u8::from(claim.takes_over));
        command
    }

    /// The queue request as `acquire.lua` reads it.
    fn add_queue_request(&self, request: &QueueRequest, sent_at: Instant) -> String {
        let (sequence, until) = request.ticket.map_or_else(Default::default, |place| {
            let until_ms = place.until.map(|until| {
                let until_ms = until.unix_ms();
                until_ms.saturating_add_signed(self.recovery.clock_shift_ms())
            });
            let until = until_ms.map(|until_ms| until_ms.to_string());
            (place.sequence.to_string(), until.unwrap_or_default())
        });
        let (asked_earliest_us, asked_latest_us) =
            self.recovery.time.bounds_before(sent_at, request.age);
        format!(
            "{} {} {} {} {} {} {} {} {asked_earliest_us} {asked_latest_us} {sequence} {until}",
            self.messages.process(),
            millis(request.remembered()),
            millis(request.liveness_timeout()) + constants::OUTAGE_MS,
            millis(request.wait),
            request.waiters_max,
            u8::from(request.tells_position),
            u8::from(request.is_head),
            u8::from(request.takes_over),
        )
    }

    pub(super) async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> Result<Suspended, StoreError> {
        let (script, request) = (&scripts::SUSPEND, pool::request_id());
        let digests = digests(&claim.names, claim.token);
        let command = || {
            let mut command = evalsha(script, digests.len());
            for name in claim.names.iter() {
                command.arg(keys::lock(name));
            }
            let (limit, permits) = share(claim.mode);
            command
                .arg(&request.to_be_bytes())
                .arg(self.messages.process())
                .arg(millis(options.keep).max(1))
                .arg(limit)
                .arg(permits)
                .arg(u8::from(options.lists_conflicts));
            add_claims(&mut command, &digests);
            command
        };
        let read = |reply: Reply, _: &Connection| decode::suspended(reply, &claim.names);
        self.run(script, request, deadline, command, read).await
    }

    pub(super) async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let script = &scripts::WITHDRAW;
        let digests = digests(&claim.names, claim.token);
        let command = || {
            let mut command = call(script, &claim.names, &digests);
            command.arg(&attempt.0.to_be_bytes());
            command.arg(u8::from(rollback == Rollback::Close));
            command.arg(self.messages.channel());
            add_claims(&mut command, &digests);
            command
        };
        self.run(script, attempt.0, deadline, command, |mut reply, _| {
            reply.number().map(drop)
        })
        .await
    }
}

/// The beginning of a call of a script that takes each lock's record and the mark of the claim.
pub(super) fn call(script: &Script, names: &LockNames, digests: &[ClaimDigest]) -> Cmd {
    let mut command = evalsha(script, 2 * digests.len());
    for (name, digest) in names.iter().zip(digests) {
        command.arg(keys::lock(name)).arg(keys::ended(name, digest));
    }
    command
}

fn add_claims(command: &mut Cmd, digests: &[ClaimDigest]) {
    for digest in digests {
        command.arg(record::claim(digest));
    }
}

/// Whether a claim has no options, so that a compact record can describe its lease.
fn is_plain(claim: &Claim) -> bool {
    let Claim {
        max_hold,
        min_hold,
        lock_delay,
        takes_over,
        ..
    } = claim;
    claim.mode == Mode::Exclusive
        && claim.fair
        && claim.hold_count == HoldCount::ONE
        && claim.metadata.is_none()
        && !takes_over
        && [max_hold, min_hold, lock_delay]
            .iter()
            .all(|it| it.is_none())
        && is_compact(millis(claim.ttl.get()))
}

/// Whether a TTL fits in a compact record.
pub(super) fn is_compact(ttl_ms: u64) -> bool {
    u32::try_from(ttl_ms).is_ok()
}

pub(super) fn digests(names: &LockNames, token: Token) -> Vec<ClaimDigest> {
    names.iter().map(|name| token.digest(name)).collect()
}

/// Limit and permits in the form of the scripts: an empty limit for an exclusive claim, 0 for a read lock.
pub(super) fn share(mode: Mode) -> (String, u32) {
    match mode {
        Mode::Exclusive => (String::new(), 1),
        Mode::Shared(share) => (share.limit().unwrap_or(0).to_string(), share.permits()),
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
