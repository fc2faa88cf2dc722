//! The operations on the locks of one node, each of them one script.

use std::time::Duration;

use tokio::time::Instant;

use super::decode::{AcquireRejection, ClosedFor};
use super::encode::{Purpose, Undoing, digests};
use super::node::{LOSSES_MAX, Node, ScriptTries};
use super::scripts::ScriptRequest;
use super::{decode, scripts, views};
use crate::domain::{
    Acquired, AnswerRoom, Attempt, Claim, Conflict, Evicted, HoldCount, Holders, LockName,
    LockNames, LockView, QueueRequest, Released, RenewOptions, Renewed, StepBack, SuspendOptions,
    Suspended, Token, Waiting,
};
use crate::store::{Deadlines, Fault, StoreError, StoreResult};

/// What an acquire is sent for.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcquireScope {
    pub(super) purpose: Purpose,
    /// Identifies the locks of the claim in all partitions of a cluster, if they are in several.
    pub(super) of_all: Option<u64>,
    /// Whether its place in this partition is a new one, although it has a ticket from another one.
    pub(super) enters_queue: bool,
}

impl AcquireScope {
    /// Of a claim whose locks are all in one place.
    pub(super) const ALONE: Self = Self {
        purpose: Purpose::Grant,
        of_all: None,
        enters_queue: false,
    };
}

/// The answer to [`Purpose::Ask`], if it is no outcome.
pub(super) enum AskReply {
    /// It is in the queues, and nothing is in its way.
    Queued(Waiting),
    /// It holds its locks; whether another attempt than this one has received them.
    Holds { is_acknowledged: bool },
    /// It does not wait by this request, and these conflicts are in its way.
    NotQueued {
        /// The sequence number of the place that it has.
        ticket: Option<u64>,
        conflicts: Vec<Conflict>,
    },
}

/// The outcome of an acquire, or the answer to what it has asked; and how long locks that were held before stay taken or
/// closed.
pub(super) type AcquireReply = (Result<Acquired, AskReply>, Option<ClosedFor>);

impl From<AskReply> for StoreError {
    /// Nothing was asked: [`Purpose::Grant`] has an outcome.
    fn from(_: AskReply) -> Self {
        Self::unknown(Fault::Corrupt, "an answer to another question")
    }
}

impl Node {
    /// The outcome, or what the claim has asked for. Also returns whether an earlier try may still arrive, and be granted or
    /// queued then: see [`resolve_ambiguous`](super::RedisStore::resolve_ambiguous).
    pub(super) async fn acquire(
        &self,
        scope: AcquireScope,
        claim: &Claim,
        attempt: Attempt,
        queue_request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<(Result<Acquired, AskReply>, bool)> {
        let node = self;
        if node.recovery.is_refused()
            && let Some((fault, why)) = node.recovery.refusal()
        {
            return Err(StoreError::unavailable(fault, why));
        }
        if queue_request.is_none() {
            node.refuse_unreplicated()?;
        }
        node.refuse_unwritable()?;
        node.recovery.renew_if_long_away();
        let times = [Instant::now(), deadline];
        let digests = digests(&claim.names, claim.token);
        let request = ScriptRequest::of(&scripts::ACQUIRE, attempt);
        let command = |is_repeat| {
            let claim = (claim, &*digests);
            node.acquire_command(request, claim, queue_request, scope, times, is_repeat)
        };
        let read = |reply| decode::acquired(reply, claim);
        let (mut tries, mut losses) = (ScriptTries::default(), 0);
        while losses < LOSSES_MAX {
            let run = node.run_tracked(request, deadline, &mut tries, command, read);
            let (mut outcome, closed_for) = match run.await {
                Ok(Ok(reply)) => reply,
                Ok(Err(rejection)) => {
                    losses += usize::from(!matches!(rejection, AcquireRejection::HoldersExpired));
                    node.check_loss(rejection, tries.generation)?;
                    // The next try finds that grants wait, and a queued claim keeps waiting.
                    continue;
                }
                // The service rolls back a grant whose answer was lost, but it cannot roll back a re-entry.
                Err(error) if claim.hold_count > HoldCount::ONE => {
                    return Err(tries.when_too_late(error, deadline).await);
                }
                Err(error) => return Err(error),
            };
            if let Ok(acquired) = &mut outcome {
                node.report_acquired(acquired, claim, closed_for, tries.generation, times)
                    .await?;
            }
            return Ok((outcome, tries.has_lost));
        }
        let detail = "the data are lost again and again";
        Err(StoreError::unknown(Fault::Corrupt, detail))
    }

    pub(super) async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let request = ScriptRequest::new(&scripts::SUSPEND);
        let digests = digests(&claim.names, claim.token);
        let command = |_| self.suspend_command(request, claim, &digests, options);
        let read = |reply| decode::suspended(reply, &claim.names);
        self.run(request, deadline, command, read).await
    }

    pub(super) async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: impl Into<Undoing>,
        deadline: Instant,
    ) -> StoreResult<usize> {
        let request = ScriptRequest::of(&scripts::WITHDRAW, attempt);
        let (node, names) = (self, &claim.names);
        let digests = digests(names, claim.token);
        let undoing = rollback.into();
        let command = |_| node.withdraw_command(request, names, &digests, undoing);
        node.run(request, deadline, command, decode::withdrawn)
            .await
    }

    pub(super) async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        purpose: Purpose,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let (node, request) = (self, ScriptRequest::new(&scripts::RENEW));
        let digests = digests(names, token);
        let command = |is_repeat| {
            node.renew_command(
                request,
                (names, &digests),
                change,
                purpose,
                deadline,
                is_repeat,
            )
        };
        let read = |reply| decode::renewed(reply, names);
        let sent_at = Instant::now();
        let run = node.run_in_time(request, deadline, command, read);
        let ((renewed, closed_for), generation) = run.await?;
        let times = [sent_at, deadline];
        node.report_renewed(renewed, closed_for, generation, times)
            .await
    }

    pub(super) async fn release(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let (node, request) = (self, ScriptRequest::new(&scripts::RELEASE));
        let digests = digests(names, token);
        let command = |is_repeat| {
            node.release_command(request, names, &digests, step_back, deadline, is_repeat)
        };
        let read = |reply| decode::released(reply, names);
        let sent_at = Instant::now();
        let answer = if step_back.is_some() {
            let run = node.run_in_time(request, deadline, command, read);
            run.await
                .map(|(reply, generation)| (reply, Some(generation)))
        } else {
            let read = |reply| read(reply)?.done();
            let run = node.run(request, deadline, command, read);
            run.await.map(|reply| (reply, None))
        };
        let (may_be_reserved, may_be_of_stream) = match &answer {
            Ok((reply, _)) => (reply.may_be_reserved, reply.may_be_of_stream),
            // The content of a lost answer is unknown.
            Err(StoreError::Unknown { .. }) => (true, true),
            Err(StoreError::Unavailable { .. }) => (false, false),
        };
        if may_be_reserved {
            node.messages.may_be_reserved(names);
        }
        // The message on the channel may be lost or late.
        if may_be_of_stream {
            node.messages.released(names, &digests);
        }
        let (reply, generation) = answer?;
        node.report_released(reply, generation, [sent_at, deadline])
            .await
    }

    /// Evicts all holders.
    pub(super) async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let (node, lock) = (self, self.keys.lock(name));
        let mut room = AnswerRoom::for_locks(1);
        let (mut holders, mut next) = (Holders::none(), Some(0));
        let (mut claims, mut closed_for) = (Vec::new(), Duration::ZERO);
        let mut last_generation = node.recovery.generation();
        while let Some(cursor) = next {
            let request = ScriptRequest::new(&scripts::EVICT);
            let answer_key = node.keys.evicted(name, request.id);
            let (sent_at, deadline) = (Instant::now(), deadlines.of_step());
            let listed_max = AnswerRoom::HOLDERS_MAX - holders.listed.len();
            let command = |_| {
                let mut command = request.command(&[&lock, &answer_key]);
                command.arg(node.recovery.time.not_after_us(deadline));
                command.arg(reason).arg(cursor);
                command.arg(node.messages.evictions_channel());
                command.arg(node.messages.channel());
                command.arg(listed_max);
                command
            };
            let run = node.run_in_time(request, deadline, command, views::evicted);
            let step = run.await;
            // The message on the channel may be lost or late, and after a lost answer the outcome is unknown.
            if step
                .as_ref()
                .map_or(true, |(step, _)| !step.claims.is_empty())
            {
                node.messages.evicted(name);
            }
            let step = match step {
                Ok((step, generation)) => {
                    last_generation = generation;
                    step
                }
                // Evictions that were done must be reported.
                Err(_) if holders.total > 0 => break,
                Err(error) => return Err(error),
            };
            let has_evicted = !step.claims.is_empty();
            holders.total += step.claims.len() as u64;
            holders.listed.extend(room.take(step.listed.into_iter()));
            closed_for = closed_for.max(step.closed_for);
            claims.extend(step.claims);
            claims.truncate(Evicted::CLAIMS_MAX);
            // The time that lock_delay keeps the lock closed counts from now.
            if has_evicted
                && node
                    .check_time(step.at_ms, sent_at, deadline)
                    .await
                    .is_err()
            {
                break;
            }
            next = step.next;
        }
        holders.listed.sort_by_key(|holder| holder.expires_at);
        // A failover that lost it would give the holders their leases back. This also holds for a lock whose holders
        // an earlier request has just evicted.
        node.confirm(last_generation, deadlines.of_step()).await?;
        let is_complete = next.is_none();
        Ok(Evicted {
            holders,
            claims,
            closed_for,
            is_complete,
        })
    }

    pub(super) async fn inspect(
        &self,
        name: &LockName,
        deadline: Instant,
    ) -> StoreResult<LockView> {
        let (node, request) = (self, ScriptRequest::new(&scripts::INSPECT));
        let command = |_| {
            let mut command = request.command(&[&node.keys.lock(name)]);
            command.arg(node.messages.channel());
            command
        };
        let inspected = node.run(request, deadline, command, views::inspected);
        let (state, queue) = inspected.await?;
        Ok(LockView::new(name.clone(), state, queue))
    }
}
