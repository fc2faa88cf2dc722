//! Leases in one Redis or Valkey: one script, one round trip for every operation, on Redis' own clock.
//!
//! Only this module knows Redis. Every operation is one request to the `node`: `encode` builds its command, `scripts` has
//! its script, and `decode` reads the answer. `keys` builds the keys; `pool` keeps the connections; `pubsub` and
//! `subscriber` handle messages between processes; `recovery` knows whether the data can be trusted, and `reports`
//! announces what the others must know before a grant is reported.

mod connector;
mod constants;
mod decode;
mod encode;
mod events;
mod failure;
mod health;
mod info;
mod keys;
mod listing;
mod node;
mod opening;
mod pool;
mod probe;
mod pubsub;
mod record;
mod recovery;
mod replication;
mod reply;
mod reports;
mod scripts;
mod sentinel;
mod subscriber;
mod switches;
mod tls;
mod transport;
mod views;

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::pace::Pace;
use super::{
    Deadlines, Fault, ListQuery, Listener, LockStore, StoreError, StoreHealth, StoreResult,
};
use crate::domain::{
    Acquired, AnswerRoom, Attempt, Claim, Evicted, HoldCount, Holders, Listing, LockName,
    LockNames, LockView, QueueRequest, Released, RenewOptions, Renewed, Rollback, SuspendOptions,
    Suspended, Token,
};
use encode::digests;
use health::{CHECK_TIMEOUT, HealthCheck};
use listing::Snapshots;
use node::{LOSSES_MAX, Node};
use scripts::ScriptRequest;

/// Leases in a Redis.
pub struct RedisStore {
    node: Node,
    last_health: Mutex<HealthCheck>,
    check_interval: Duration,
    /// The pace of listings, and of corrections after a clock that was set back.
    pace: Pace,
    count_pace: Pace,
    snapshots: Snapshots,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisStore")
    }
}

#[async_trait]
impl LockStore for RedisStore {
    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        queue_request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let node = &self.node;
        if node.recovery.is_refused()
            && let Some((fault, why)) = node.recovery.refusal()
        {
            return Err(StoreError::unavailable(fault, why));
        }
        if queue_request.is_none() {
            node.refuse_unreplicated()?;
        }
        node.recovery.renew_if_long_away();
        let times = [Instant::now(), deadline];
        let digests = digests(&claim.names, claim.token);
        let request = ScriptRequest::of(&scripts::ACQUIRE, attempt);
        let mut is_ambiguous = false;
        for _ in 0..LOSSES_MAX {
            let command = |is_repeat| {
                let is_repeat = is_repeat || is_ambiguous;
                node.acquire_command(request, claim, &digests, queue_request, times, is_repeat)
            };
            let read = |reply| decode::acquired(reply, claim);
            let answered = match node.run(request, deadline, command, read).await {
                Ok(answered) => answered,
                // The service rolls back a grant whose answer was lost, but it cannot roll back a re-entry.
                Err(unanswered) if claim.hold_count > HoldCount::ONE => {
                    return Err(unanswered.when_too_late(deadline).await);
                }
                Err(unanswered) => return Err(unanswered.into()),
            };
            is_ambiguous |= answered.has_lost_tries;
            let reporting = node.report_acquired(answered.answer, claim, answered.epoch, times);
            if let Some(acquired) = reporting.await? {
                return match is_ambiguous {
                    true => self.unless_late(acquired, claim, attempt, deadline).await,
                    false => Ok(acquired),
                };
            }
            // The next try finds that grants wait, and a queued claim keeps waiting.
        }
        let detail = "the data are lost again and again";
        Err(StoreError::unknown(Fault::Corrupt, detail))
    }

    async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let request = ScriptRequest::new(&scripts::SUSPEND);
        let digests = digests(&claim.names, claim.token);
        let command = |_| self.node.suspend_command(request, claim, &digests, options);
        let read = |reply| decode::suspended(reply, &claim.names);
        Ok(self
            .node
            .run(request, deadline, command, read)
            .await?
            .answer)
    }

    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<()> {
        let request = ScriptRequest::of(&scripts::WITHDRAW, attempt);
        let (node, names) = (&self.node, &claim.names);
        let digests = digests(names, claim.token);
        let command = |_| node.withdraw_command(request, names, &digests, rollback);
        node.run(request, deadline, command, decode::withdrawn)
            .await?;
        Ok(())
    }

    async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let (node, request) = (&self.node, ScriptRequest::new(&scripts::RENEW));
        let digests = digests(names, token);
        let command =
            |is_repeat| node.renew_command(request, names, &digests, change, deadline, is_repeat);
        let read = |reply| decode::renewed(reply, names);
        let sent_at = Instant::now();
        let run = node.run_in_time(request, deadline, command, read);
        let ((renewed, closed_for), epoch) = run.await?;
        let times = [sent_at, deadline];
        node.report_renewed(renewed, closed_for, epoch, times).await
    }

    async fn release(
        &self,
        names: &LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let (node, request) = (&self.node, ScriptRequest::new(&scripts::RELEASE));
        let digests = digests(names, token);
        let command = |is_repeat| {
            node.release_command(request, names, &digests, hold_count, deadline, is_repeat)
        };
        let read = |reply| decode::released(reply, names);
        let sent_at = Instant::now();
        let answer = if hold_count.is_some() {
            let run = node.run_in_time(request, deadline, command, read);
            run.await.map(|(reply, epoch)| (reply, Some(epoch)))
        } else {
            let run = node.run(request, deadline, command, |reply| read(reply)?.done());
            run.await.map(|it| (it.answer, None)).map_err(Into::into)
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
        let (reply, epoch) = answer?;
        node.report_released(reply, epoch, [sent_at, deadline])
            .await
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let (node, lock) = (&self.node, keys::lock(name));
        let mut room = AnswerRoom::for_locks(1);
        let (mut holders, mut next) = (Holders::none(), Some(0));
        let mut last_epoch = node.recovery.epoch();
        while let Some(cursor) = next {
            let request = ScriptRequest::new(&scripts::EVICT);
            let mark = keys::evicted(name, request.id);
            let (sent_at, deadline) = (Instant::now(), deadlines.of_step());
            let listed_max = AnswerRoom::HOLDERS_MAX - holders.listed.len();
            let command = |_| {
                let mut command = request.command(&[&lock, &mark]);
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
            if step.as_ref().map_or(true, |(step, _)| step.count > 0) {
                node.messages.evicted(name);
            }
            let step = match step {
                Ok((step, epoch)) => {
                    last_epoch = epoch;
                    step
                }
                // Evictions that were done must be reported.
                Err(_) if holders.total > 0 => break,
                Err(error) => return Err(error),
            };
            holders.total += step.count;
            holders.listed.extend(room.take(step.listed.into_iter()));
            // The time that lock_delay keeps the lock closed counts from now.
            if step.count > 0
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
        node.confirm(last_epoch, deadlines.of_step()).await?;
        let is_complete = next.is_none();
        Ok(Evicted {
            holders,
            is_complete,
        })
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        let (node, request) = (&self.node, ScriptRequest::new(&scripts::INSPECT));
        let command = |_| {
            let mut command = request.command(&[&keys::lock(name)]);
            command.arg(node.messages.channel());
            command
        };
        let inspected = node.run(request, deadline, command, views::inspected);
        let (state, queue) = inspected.await?.answer;
        Ok(LockView {
            name: name.clone(),
            state,
            queue,
        })
    }

    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> StoreResult<Listing> {
        self.list_page(query, deadlines).await
    }

    async fn refresh_health(&self) {
        let check = self.check().await;
        self.log_changes(&check);
    }

    fn check_interval(&self) -> Duration {
        self.check_interval
    }

    async fn sweep(&self) {
        self.sweep_if_due().await;
    }

    fn health(&self) -> StoreHealth {
        let findings = self.findings();
        let last_health = self
            .last_health
            .lock()
            .expect("nobody panics while holding it");
        let contacted = findings.is_some();
        let (findings, clock_offset_ms) = findings.unwrap_or_default();
        StoreHealth {
            contacted,
            up: matches!(last_health.last_check, Some(Ok(()))),
            trouble: self.trouble(&last_health),
            refused: self.node.recovery.refusal().map(|(_, why)| why),
            recovering_for: self.node.recovery.grace_left(),
            findings,
            held_locks: last_health.held_locks,
            clock_offset_ms: contacted.then_some(clock_offset_ms),
            pool: Some(self.node.pool.health()),
            disk: None,
            response_mismatches: self.node.mismatches.load(Ordering::Relaxed),
        }
    }

    fn set_listener(&self, listener: Arc<dyn Listener>) {
        let Node { pool, messages, .. } = &self.node;
        messages.set_listener(pool, listener);
    }

    async fn set_event_delivery(&self, wanted: bool) {
        let setting = self.node.messages.set_event_delivery(wanted);
        // If the connection is lost, the listener gets `events_lost` once events arrive again.
        let _ = tokio::time::timeout(CHECK_TIMEOUT, setting).await;
    }
}
