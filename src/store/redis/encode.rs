//! Builds the commands that call the scripts for claims. `decode` reads their answers.

use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::keys::RedisKeys;
use super::node::Node;
use super::operations::AcquireScope;
use super::scripts::ScriptRequest;
use super::{constants, record};
use crate::domain::{
    Claim, ClaimDigest, HoldCount, LockNames, Metadata, Mode, QueueRequest, RenewOptions, Rollback,
    RollbackRight, StepBack, SuspendOptions, Token,
};

/// How long a poll that is to be sent still knows that its process has no waiter before it. Then one may have come back.
const HEAD_KNOWN_FOR: Duration = Duration::from_millis(100);

/// What the script may do for a claim without a conflict.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrantScope {
    /// Nothing: new grants wait for leases that may be alive.
    Nothing = 0,
    /// Grant it.
    All = 1,
    /// Grant it, but pass over no process that did not claim its reservation: the store was unavailable, and the
    /// process may not have noticed yet that it is back.
    PastNobody = 2,
    /// Find out whether it could be granted as with [`All`](Self::All), and keep its locks for it.
    AllLater = 3,
    /// The same as with [`PastNobody`](Self::PastNobody).
    PastNobodyLater = 4,
}

/// What a rollback is for, in the form of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undoing {
    /// [`Rollback::Undo`].
    Undo = 0,
    /// [`Rollback::Close`].
    Close = 1,
    /// The claim was not granted its locks in another partition. The attempt may be granted these again.
    Part = 2,
    /// [`Rollback::Refuse`].
    Refuse = 3,
}

impl From<Rollback> for Undoing {
    fn from(rollback: Rollback) -> Self {
        match rollback {
            Rollback::Undo => Self::Undo,
            Rollback::Refuse => Self::Refuse,
            Rollback::Close => Self::Close,
        }
    }
}

/// What an acquire or a renewal is sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To be granted the locks, or to renew the leases.
    Grant,
    /// To learn whether it could be, and to be queued if it waits: its locks are in several partitions of a cluster.
    Ask,
}

/// When the client of a request that was sent at `sent_at` is answered at the latest.
fn too_late_at(request: Option<&QueueRequest>, sent_at: Instant, deadline: Instant) -> Instant {
    request.map_or(deadline, |request| {
        deadline.min(sent_at + request.execute_within)
    })
}

impl Node {
    /// What an acquire that is sent now may be granted.
    fn may_grant(&self, purpose: Purpose) -> GrantScope {
        // With too few replicas, a grant would be rolled back. Those that wait keep their places meanwhile.
        if self.recovery.grace_left().is_some() || self.has_few_replicas() {
            return GrantScope::Nothing;
        }
        match (self.recovery.passes_over(), purpose) {
            (true, Purpose::Grant) => GrantScope::All,
            (true, Purpose::Ask) => GrantScope::AllLater,
            (false, Purpose::Grant) => GrantScope::PastNobody,
            (false, Purpose::Ask) => GrantScope::PastNobodyLater,
        }
    }

    /// The call of `acquire.lua`. Options that most claims lack come last, and only if this claim has some.
    pub(super) fn acquire_command(
        &self,
        request: ScriptRequest,
        (claim, digests): (&Claim, &[ClaimDigest]),
        queue_request: Option<&QueueRequest>,
        scope: AcquireScope,
        [sent_at, deadline]: [Instant; 2],
        is_repeat: bool,
    ) -> Cmd {
        let too_late_at = too_late_at(queue_request, sent_at, deadline);
        let keys = self.keys;
        let mut command = request.evalsha(4 * digests.len());
        for (name, digest) in claim.names.iter().zip(digests) {
            command
                .arg(keys.lock(name))
                .arg(keys.fence(name.bucket()))
                .arg(keys.ended(name, digest))
                .arg(keys.ticket(name, digest));
        }
        let lasts = claim.ttl.get();
        command
            .arg(millis(lasts) + constants::TOMBSTONE_MS)
            .arg(self.recovery.time.not_after_us(too_late_at));
        for (name, digest) in claim.names.iter().zip(digests) {
            command
                .arg(record::head(
                    request.id,
                    digest,
                    millis(lasts),
                    &claim.owner,
                ))
                .arg(self.recovery.last_fence(name.bucket()));
        }
        let may_grant = self.may_grant(scope.purpose);
        let channel = self.messages.channel();
        let is_plain = may_grant == GrantScope::All
            && scope.of_all.is_none()
            && channel.is_empty()
            && is_plain(claim);
        match queue_request {
            Some(queue_request) => command.arg(self.queue_request(queue_request, sent_at)),
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
        add_durations(&mut command, claim);
        let metadata = claim.metadata.as_ref().map_or("", Metadata::as_json);
        command.arg(metadata).arg(channel);
        command.arg(u8::from(claim.takes_over));
        // Only a claim with a hold count above 1 can change a lease that it already has, and that is an option.
        let is_repeat = is_repeat && claim.hold_count > HoldCount::ONE;
        match (is_repeat, scope.of_all) {
            (_, Some(total)) => {
                command.arg(u8::from(is_repeat)).arg(total);
                command.arg(u8::from(scope.enters_queue));
            }
            (true, None) => {
                command.arg("1");
            }
            (false, None) => {}
        }
        command
    }

    /// The queue request as `acquire.lua` reads it.
    fn queue_request(&self, request: &QueueRequest, sent_at: Instant) -> String {
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
            u8::from(request.wants_position),
            u8::from(request.is_head && sent_at.elapsed() < HEAD_KNOWN_FOR),
            u8::from(request.takes_over),
        )
    }

    pub(super) fn suspend_command(
        &self,
        request: ScriptRequest,
        claim: &Claim,
        digests: &[ClaimDigest],
        options: SuspendOptions,
    ) -> Cmd {
        let mut command = request.evalsha(digests.len());
        for name in claim.names.iter() {
            command.arg(self.keys.lock(name));
        }
        let (limit, permits) = share(claim.mode);
        command
            .arg(&request.id.to_be_bytes())
            .arg(self.messages.process())
            .arg(millis(options.keep))
            .arg(limit)
            .arg(permits)
            .arg(u8::from(options.lists_conflicts));
        add_claims(&mut command, digests);
        command
    }

    pub(super) fn withdraw_command(
        &self,
        request: ScriptRequest,
        names: &LockNames,
        digests: &[ClaimDigest],
        rollback: Undoing,
    ) -> Cmd {
        let mut command = of_claim(self.keys, request, names, digests);
        command
            .arg(&request.id.to_be_bytes())
            .arg(rollback as u8)
            .arg(self.messages.channel());
        add_claims(&mut command, digests);
        command
    }

    /// The call of `renew.lua`. Options that most renewals lack come last, and only if this one has some.
    pub(super) fn renew_command(
        &self,
        request: ScriptRequest,
        (names, digests): (&LockNames, &[ClaimDigest]),
        change: RenewOptions,
        purpose: Purpose,
        deadline: Instant,
        is_repeat: bool,
    ) -> Cmd {
        let mut command = request.evalsha(digests.len());
        for name in names.iter() {
            command.arg(self.keys.lock(name));
        }
        command.arg(self.recovery.time.not_after_us(deadline));
        add_callers(&mut command, request, digests, "");
        let channel = self.messages.channel();
        let ttl_ms = change.ttl.map(|ttl| millis(ttl.get()));
        let is_plain = change.mode.is_none()
            && change.rollback_right == RollbackRight::Never
            && channel.is_empty()
            && purpose == Purpose::Grant
            && !is_repeat;
        match ttl_ms {
            Some(ttl_ms) => command.arg(ttl_ms),
            None if is_plain => return command,
            None => command.arg(""),
        };
        if is_plain {
            return command;
        }
        let mode = match change.mode {
            None => "",
            Some(Mode::Exclusive) => "x",
            Some(Mode::Shared(_)) => "s",
        };
        let (limit, permits) = share(change.mode.unwrap_or_default());
        command.arg(mode).arg(limit).arg(permits);
        command
            .arg(channel)
            .arg(record::rollback_right(change.rollback_right));
        if purpose == Purpose::Ask {
            command.arg("").arg("1");
        } else if is_repeat {
            command.arg("1");
        }
        command
    }

    /// The call of `release.lua`. A step back to a hold count has a deadline.
    pub(super) fn release_command(
        &self,
        request: ScriptRequest,
        names: &LockNames,
        digests: &[ClaimDigest],
        step_back: Option<StepBack>,
        deadline: Instant,
        is_repeat: bool,
    ) -> Cmd {
        let mut command = of_claim(self.keys, request, names, digests);
        add_callers(&mut command, request, digests, self.messages.releaser());
        match (step_back, self.messages.channel()) {
            (None, "") => {}
            (None, channel) => {
                command.arg("").arg(channel);
            }
            (Some(step_back), channel) => {
                command.arg(step_back.hold_count.get()).arg(channel);
                command.arg(self.recovery.time.not_after_us(deadline));
                command.arg(record::rollback_right(step_back.rollback_right));
                if is_repeat {
                    command.arg("1");
                }
            }
        }
        command
    }
}

/// The beginning of a call of a script that takes each lock's record and the mark of the claim.
fn of_claim(
    keys: RedisKeys,
    request: ScriptRequest,
    names: &LockNames,
    digests: &[ClaimDigest],
) -> Cmd {
    let mut command = request.evalsha(2 * digests.len());
    for (name, digest) in names.iter().zip(digests) {
        command.arg(keys.lock(name)).arg(keys.ended(name, digest));
    }
    command
}

fn add_callers(command: &mut Cmd, request: ScriptRequest, digests: &[ClaimDigest], process: &str) {
    for digest in digests {
        command.arg(record::caller(request.id, digest, process));
    }
}

/// How long a claim may hold its locks, and keeps them closed.
pub(super) fn add_durations(command: &mut Cmd, claim: &Claim) {
    for optional in [claim.max_hold, claim.min_hold, claim.lock_delay] {
        match optional {
            Some(duration) => command.arg(millis(duration)),
            None => command.arg(""),
        };
    }
}

fn add_claims(command: &mut Cmd, digests: &[ClaimDigest]) {
    for digest in digests {
        command.arg(record::claim(digest));
    }
}

/// Whether a claim has no options.
fn is_plain(claim: &Claim) -> bool {
    let times = [claim.max_hold, claim.min_hold, claim.lock_delay];
    claim.mode == Mode::Exclusive
        && claim.fair
        && claim.hold_count == HoldCount::ONE
        && claim.metadata.is_none()
        && !claim.takes_over
        && times.iter().all(Option::is_none)
}

/// The digests by which the scripts know a claim, one for each of its locks.
pub(super) fn digests(names: &LockNames, token: Token) -> Vec<ClaimDigest> {
    names.iter().map(|name| token.digest(name)).collect()
}

/// Limit and permits in the form of the scripts: an empty limit for an exclusive claim, 0 for a read lock.
fn share(mode: Mode) -> (String, u32) {
    match mode {
        Mode::Exclusive => (String::new(), 1),
        Mode::Shared(share) => (share.limit().unwrap_or(0).to_string(), share.permits()),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
