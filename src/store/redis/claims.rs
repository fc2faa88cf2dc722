//! What is asked about claims: the calls of the scripts that act on the locks of one token. How an answer reads is in
//! `answers`.

use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::answers::{self, AcquireReply};
use super::pool::{self, Connection, evalsha};
use super::scripts::{self, Reply, Script};
use super::{RedisStore, keys, record};
use crate::domain::{
    Acquired, Attempt, Change, Claim, ClaimDigest, HoldCount, LockNames, Metadata, Mode, Parked,
    Released, Renewed, Rollback, Stand, Token, Withdrawable,
};
use crate::store::{Fault, REMEMBERED, StoreError};

/// How long the store may be away without forgetting who waits; `queue.lua` knows it, too.
const OUTAGE: Duration = Duration::from_secs(6);
/// How often a request finds out that data were lost before it gives up.
const LOSSES_MAX: usize = 3;

/// What the script may do for a claim that nothing is in the way of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayGrant {
    /// Nothing: new grants wait for leases that may be alive.
    Nothing = 0,
    /// Grant it.
    All = 1,
    /// Grant it, but pass over nobody who does not take what was offered: the store was away, and they may not know yet that
    /// it is back.
    PastNobody = 2,
}

impl RedisStore {
    pub(super) async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        stand: Option<&Stand>,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        if self.recovery.is_refused() {
            return Err(StoreError::unavailable(
                Fault::Refused,
                "the store is configured so that it would lose leases",
            ));
        }
        self.recovery.renew_if_long_away();
        let asked = Instant::now();
        let digests = digests(&claim.names, claim.token);
        // Read once the connection is there: getting it is what may find out that the data were lost.
        let command = || self.acquire_call(claim, &digests, attempt, stand, deadline);
        let read = |reply: Reply, connection: &Connection| {
            Ok((answers::acquired(reply, claim)?, connection.epoch))
        };
        let script = &scripts::ACQUIRE;
        let mut is_unsure = false;
        for _ in 0..LOSSES_MAX {
            let run = self.run_unsure(script, attempt.0, deadline, command, read);
            let ((reply, epoch), had_lost_tries) = run.await?;
            is_unsure |= had_lost_tries;
            let acquired = match reply {
                AcquireReply::Told(acquired) => {
                    self.report_acquired(acquired, claim, epoch, asked, deadline)
                        .await?
                }
                AcquireReply::Recovering => Acquired::Recovering {
                    retry_in: self.recovery.grace_left().unwrap_or_default(),
                },
                // Nothing was granted. Whoever asks again finds that grants wait, and a claim that stands in the queue
                // goes on waiting there.
                AcquireReply::CounterRegressed => {
                    self.recovery.declare_lost(epoch);
                    continue;
                }
                AcquireReply::Late { redis_us } if self.recovery.is_ahead(redis_us) => {
                    self.recovery.declare_lost(epoch);
                    continue;
                }
                // Another try of the same request may have come in time.
                AcquireReply::Late { .. } => {
                    return Err(StoreError::unknown(Fault::Timeout, "it came too late"));
                }
                AcquireReply::Withdrawn => {
                    let detail = "the attempt was withdrawn";
                    return Err(StoreError::unavailable(Fault::Timeout, detail));
                }
                AcquireReply::UsedUp => {
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

    /// The call of `acquire.lua`. What most claims do not ask for comes last, and only if this one does.
    fn acquire_call(
        &self,
        claim: &Claim,
        digests: &[ClaimDigest],
        attempt: Attempt,
        stand: Option<&Stand>,
        deadline: Instant,
    ) -> Cmd {
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
            .arg(millis(lasts + REMEMBERED))
            .arg(self.recovery.not_after_us(deadline));
        for (name, digest) in claim.names.iter().zip(digests) {
            command
                .arg(record::identity(attempt, digest, &claim.owner))
                .arg(self.recovery.last_fence(name.bucket()));
        }
        let may_grant = match self.recovery.grace_left() {
            Some(_) => MayGrant::Nothing,
            None if self.recovery.passes_over() => MayGrant::All,
            None => MayGrant::PastNobody,
        };
        let channel = self.messages.channel();
        let is_plain = may_grant == MayGrant::All && channel.is_empty() && is_plain(claim);
        match stand {
            Some(stand) => command.arg(self.stand(stand)),
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

    /// What `acquire.lua` is told of a stand.
    fn stand(&self, stand: &Stand) -> String {
        let (sequence, until) = stand.place.map_or_else(Default::default, |place| {
            let until_ms = place.until.map(|until| {
                let until_ms = until.unix_ms();
                until_ms.saturating_add_signed(self.recovery.clock_shift_ms())
            });
            let until = until_ms.map(|until_ms| until_ms.to_string());
            (place.sequence.to_string(), until.unwrap_or_default())
        });
        format!(
            "{} {} {} {} {} {} {} {} {sequence} {until}",
            self.messages.process(),
            millis(stand.remembered()),
            millis(stand.silence_max() + OUTAGE),
            millis(stand.wait),
            stand.waiters_max,
            u8::from(stand.tells_position),
            u8::from(stand.is_head),
            u8::from(stand.takes_over),
        )
    }

    pub(super) async fn park(
        &self,
        claim: &Claim,
        keep: Duration,
        deadline: Instant,
    ) -> Result<Parked, StoreError> {
        let (script, request) = (&scripts::PARK, pool::request_id());
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
                .arg(millis(keep).max(1))
                .arg(limit)
                .arg(permits);
            add_claims(&mut command, &digests);
            command
        };
        let read = |reply: Reply, _: &Connection| answers::parked(reply, &claim.names);
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

    pub(super) async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: Change,
        deadline: Instant,
    ) -> Result<Renewed, StoreError> {
        let (script, request) = (&scripts::RENEW, pool::request_id());
        let digests = digests(names, token);
        let ttl_ms = change.ttl.map(|ttl| millis(ttl.get()));
        let is_plain = change.mode.is_none() && change.withdrawable == Withdrawable::Never;
        let is_short = is_plain && ttl_ms.is_none_or(is_compact);
        let (limit, permits) = share(change.mode.unwrap_or_default());
        let mode = match change.mode {
            None => "",
            Some(Mode::Exclusive) => "x",
            Some(Mode::Shared(_)) => "s",
        };
        let command = || {
            let mut command = evalsha(script, digests.len());
            for name in names.iter() {
                command.arg(keys::lock(name));
            }
            add_claimants(&mut command, request, &digests, "");
            let channel = self.messages.channel();
            match ttl_ms {
                Some(ttl_ms) => command.arg(ttl_ms),
                None if is_short && channel.is_empty() => return command,
                None => command.arg(""),
            };
            if is_short && channel.is_empty() {
                return command;
            }
            command.arg(mode).arg(&limit).arg(permits).arg(channel);
            match change.withdrawable {
                Withdrawable::Never => command.arg(""),
                Withdrawable::AsBefore => command.arg("r"),
            };
            command
        };
        let read = |reply: Reply, connection: &Connection| {
            Ok((answers::renewed(reply, names)?, connection.epoch))
        };
        let asked = Instant::now();
        let (renewed, epoch) = self.run(script, request, deadline, command, read).await?;
        self.report_renewed(renewed, epoch, asked, deadline).await
    }

    pub(super) async fn release(
        &self,
        names: &LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> Result<Vec<Released>, StoreError> {
        let (script, request) = (&scripts::RELEASE, pool::request_id());
        let digests = digests(names, token);
        let command = || {
            let mut command = call(script, names, &digests);
            add_claimants(&mut command, request, &digests, self.messages.releaser());
            match (hold_count, self.messages.channel()) {
                (None, "") => {}
                (None, channel) => {
                    command.arg("").arg(channel);
                }
                (Some(depth), channel) => {
                    command.arg(depth.get()).arg(channel);
                }
            }
            command
        };
        let read = |reply: Reply, _: &Connection| answers::released(reply, names);
        let asked = Instant::now();
        let answer = self.run(script, request, deadline, command, read).await;
        let (may_be_offered, may_be_of_stream) = match &answer {
            Ok(reply) => (reply.may_be_offered, reply.may_be_of_stream),
            // What a lost answer said, nobody knows.
            Err(StoreError::Unknown { .. }) => (true, true),
            Err(StoreError::Unavailable { .. }) => (false, false),
        };
        if may_be_offered {
            self.messages.may_be_offered(names);
        }
        // The message on the channel may be lost or late.
        if may_be_of_stream {
            self.messages.released(names, &digests);
        }
        let released = answer?.released;
        self.report_released(&released, asked, deadline).await?;
        Ok(released)
    }
}

/// The beginning of a call of a script that knows each lock by its record and the mark of the claim.
fn call(script: &Script, names: &LockNames, digests: &[ClaimDigest]) -> Cmd {
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

fn add_claimants(command: &mut Cmd, request: u64, digests: &[ClaimDigest], process: &str) {
    for digest in digests {
        command.arg(record::claimant(request, digest, process));
    }
}

/// Whether a claim asks for nothing but a lease of its own, which a compact record can describe.
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

/// Whether a TTL has room in a compact record.
fn is_compact(ttl_ms: u64) -> bool {
    u32::try_from(ttl_ms).is_ok()
}

fn digests(names: &LockNames, token: Token) -> Vec<ClaimDigest> {
    names.iter().map(|name| token.digest(name)).collect()
}

/// Limit and permits as the scripts know them: an empty limit for a claim that is alone, 0 for a read lock.
fn share(mode: Mode) -> (String, u32) {
    match mode {
        Mode::Exclusive => (String::new(), 1),
        Mode::Shared(share) => (share.limit().unwrap_or(0).to_string(), share.permits()),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
