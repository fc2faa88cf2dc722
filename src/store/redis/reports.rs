//! What must happen before a lease is reported: the other processes learn how long to wait if Redis loses it, including
//! the time that the lock stays closed afterwards.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::decode::{AcquireRejection, ClosedFor, ReleaseReply};
use super::failure::{Execution, Failure};
use super::node::Node;
use super::reply::Reply;
use super::scripts;
use super::scripts::ScriptRequest;
use crate::domain::{
    Acquired, Attempt, Claim, GrantKind, Holder, Lease, Refused, Released, Renewed, Rollback,
    Ticket, Timestamp,
};
use crate::store::{Fault, LockStore as _, StoreError, StoreResult};

impl Node {
    /// Takes note if an acquire of which the script did nothing shows that data were lost; the claim should ask again then.
    ///
    /// # Errors
    /// The claim is not granted for another reason, or it is unknown whether it holds.
    pub(super) fn check_loss(
        &self,
        rejection: AcquireRejection,
        generation: u64,
    ) -> StoreResult<()> {
        match rejection {
            AcquireRejection::CounterRegressed => {
                self.fencing_regressions.fetch_add(1, Ordering::Relaxed);
                self.recovery.declare_lost(generation);
            }
            AcquireRejection::Late { redis_us } if self.recovery.is_ahead(redis_us) => {
                self.recovery.declare_lost(generation);
            }
            // Each try removes more of them, so their number bounds the tries, as does the deadline.
            AcquireRejection::HoldersExpired => {}
            // Another try of the same request may have arrived in time.
            AcquireRejection::Late { .. } => {
                return Err(StoreError::unknown(Fault::Timeout, "it came too late"));
            }
            AcquireRejection::Withdrawn => {
                let detail = "the attempt was withdrawn";
                return Err(StoreError::unavailable(Fault::Timeout, detail));
            }
            AcquireRejection::Exhausted => {
                let detail = "the fencing counter is used up";
                return Err(StoreError::unavailable(Fault::Corrupt, detail));
            }
        }
        Ok(())
    }

    /// Makes the outcome of an acquire over a connection of this generation ready to be reported.
    ///
    /// # Errors
    /// It is unknown whether the claim holds, because the TTL could not be announced, or the store lost its data
    /// meanwhile.
    pub(super) async fn report_acquired(
        &self,
        acquired: &mut Acquired,
        claim: &Claim,
        closed_for: Option<ClosedFor>,
        generation: u64,
        [sent_at, deadline]: [Instant; 2],
    ) -> StoreResult<()> {
        let granted = match acquired {
            Acquired::Granted(granted) => granted,
            Acquired::Waiting(waiting) => {
                waiting.ticket = self.without_clock_steps(waiting.ticket);
                return Ok(());
            }
            Acquired::Refused(Refused::Recovering { retry_in }) => {
                *retry_in = self.recovery.grace_left().unwrap_or_default();
                return Ok(());
            }
            Acquired::Superseded | Acquired::WaitExpired | Acquired::Refused(_) => return Ok(()),
        };
        let longest = match granted.kind {
            GrantKind::New => {
                for (name, lease) in claim.names.iter().zip(&granted.leases) {
                    self.recovery
                        .granted(name.bucket(), lease.holder.fence, generation);
                }
                // The lock stays closed for longer than the lease lasts.
                let lasts = |ttl| ttl + claim.lock_delay.unwrap_or_default();
                longest(granted.leases.iter())
                    .map(lasts)
                    .max(claim.min_hold)
            }
            GrantKind::Reentered | GrantKind::Replayed => {
                longest(granted.leases.iter()).max(closed_for)
            }
        };
        self.check_clock(granted.leases.iter(), sent_at, deadline)
            .await?;
        self.report(longest, generation, deadline).await
    }

    /// Makes the answer of a renewal ready to be reported.
    pub(super) async fn report_renewed(
        &self,
        renewed: Renewed,
        closed_for: Option<ClosedFor>,
        generation: u64,
        [sent_at, deadline]: [Instant; 2],
    ) -> Result<Renewed, StoreError> {
        if let Renewed::Extended(renewals) = &renewed {
            let leases = renewals.iter().map(|renewal| &renewal.lease);
            self.check_clock(leases, sent_at, deadline).await?;
        }
        let longest = match &renewed {
            Renewed::Extended(renewals) => {
                longest(renewals.iter().map(|renewal| &renewal.lease)).max(closed_for)
            }
            Renewed::NotHolder(_) | Renewed::Mismatched(_) => None,
        };
        self.report(longest, generation, deadline).await?;
        Ok(renewed)
    }

    /// Makes the answer of a release ready to be reported. A step back has the generation of its connection, because it leaves
    /// a lease that new grants must wait for if it is lost.
    pub(super) async fn report_released(
        &self,
        reply: ReleaseReply,
        generation: Option<u64>,
        [sent_at, deadline]: [Instant; 2],
    ) -> Result<Vec<Released>, StoreError> {
        let leases = reply.released.iter().filter_map(|released| match released {
            Released::SteppedBack(lease) => Some(lease),
            Released::Freed { .. }
            | Released::LeftQueue
            | Released::Repeated
            | Released::NotHolder(_) => None,
        });
        self.check_clock(leases, sent_at, deadline).await?;
        if let Some(generation) = generation {
            self.report(reply.closed_for, generation, deadline).await?;
        }
        Ok(reply.released)
    }

    /// Checks the clock: the time that is left of a lease shows Redis's time just now.
    async fn check_clock<'a>(
        &self,
        mut leases: impl Iterator<Item = &'a Lease>,
        sent_at: Instant,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let Some(Holder {
            expires_at,
            expires_in,
            ..
        }) = leases.next().map(|lease| &lease.holder)
        else {
            return Ok(());
        };
        let left_ms = u64::try_from(expires_in.as_millis()).unwrap_or(u64::MAX);
        let now_ms = expires_at.unix_ms().saturating_sub(left_ms);
        self.check_time(now_ms, sent_at, deadline).await
    }

    /// Checks Redis's time of just now. If its clock was set back, times counted from then would end early if it is
    /// corrected: all processes must know of the step before any client relies on them, so that each notices the next
    /// step.
    pub(super) async fn check_time(
        &self,
        now_ms: u64,
        sent_at: Instant,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        // Rounded up, as Redis counts in milliseconds here.
        let redis_us = (now_ms + 1) * 1_000;
        match self.recovery.is_behind(redis_us, sent_at) {
            true => Box::pin(self.announce_step_back(deadline)).await,
            false => Ok(()),
        }
    }

    async fn announce_step_back(&self, deadline: Instant) -> Result<(), StoreError> {
        tracing::warn!("the clock of the store was set back");
        let connected = self.pool.connect(deadline).await;
        let mut connection = connected.map_err(|failure| failure.into_error(true))?;
        let announcing = async {
            let verify = redis::cmd("PUBLISH")
                .arg(self.recovery.channel())
                .arg("verify")
                .to_owned();
            // Redis may answer a moment before it sends a published message; then it answers the next command later.
            for command in [verify, redis::cmd("PING")] {
                connection.socket().send_packed_command(&command).await?;
            }
            redis::RedisResult::Ok(())
        };
        match timeout_at(deadline, announcing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(may_be_lost()),
        }
    }

    /// Prepares to report leases, the longest of which lasts for `ttl`.
    async fn report(
        &self,
        ttl: Option<Duration>,
        generation: u64,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let Some(ttl) = ttl else { return Ok(()) };
        if !self.recovery.use_ttl(ttl) {
            // Rare; boxed so that it does not enlarge every request.
            Box::pin(self.share(ttl, deadline)).await?;
        }
        // The TTL that was just shared must not be lost either.
        self.confirm(generation, deadline).await?;
        // Processes that noticed a loss since may have learned this TTL too late, and do not wait that long.
        if generation != self.recovery.generation() {
            let detail = "the connections are not used any more: since the lease was granted, the store may have become \
                 another one, or may have lost data";
            return Err(StoreError::unknown(Fault::Io, detail));
        }
        Ok(())
    }

    /// Makes sure that no failover loses what Redis has answered over connections of this generation, if replicas have to
    /// confirm it.
    pub(super) async fn confirm(
        &self,
        generation: u64,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        match &self.replication {
            None => Ok(()),
            // Boxed so that it does not enlarge the requests that need no replicas.
            Some(replication) => Box::pin(replication.confirm(generation, deadline)).await,
        }
    }

    /// Whether too few replicas confirm.
    pub(super) fn has_few_replicas(&self) -> bool {
        self.replication.as_ref().is_some_and(|it| it.has_trouble())
    }

    /// Refuses a claim at once while too few replicas confirm.
    pub(super) fn refuse_unreplicated(&self) -> Result<(), StoreError> {
        let trouble = self.replication.as_ref().and_then(|it| it.trouble());
        match trouble {
            None => Ok(()),
            Some(failure) => Err(StoreError::unavailable(failure.fault, failure.detail)),
        }
    }

    /// Refuses a claim at once while Redis has taken no writes for long.
    pub(super) fn refuse_unwritable(&self) -> Result<(), StoreError> {
        match self.recovery.awaits_writes() {
            true => (self.check_writes()).map_err(|failure| failure.into_error(false)),
            false => Ok(()),
        }
    }

    /// Fails while Redis takes no writes. It can still be read.
    pub(super) fn check_writes(&self) -> Result<(), Failure> {
        let detail = "a check of the data could not be stored";
        match self.recovery.outage.is_unwritable() {
            true => Err(Failure::new(Fault::ReadOnly, Execution::NotDone, detail)),
            false => Ok(()),
        }
    }

    /// Makes sure that all processes know of leases this long. One of many requests announces it.
    async fn share(&self, ttl: Duration, deadline: Instant) -> Result<(), StoreError> {
        let Ok(_announcing) = timeout_at(deadline, self.announcing.lock()).await else {
            let detail = "the other processes could not be notified in time";
            return Err(StoreError::unknown(Fault::Timeout, detail));
        };
        if self.recovery.use_ttl(ttl) {
            return Ok(());
        }
        match self.announce(ttl, deadline).await {
            Ok(true) => {
                self.recovery.announced(ttl);
                Ok(())
            }
            Ok(false) => Err(may_be_lost()),
            Err(error) => Err(StoreError::unknown(error.fault(), error.detail())),
        }
    }

    /// Announces to all processes that leases last this long. Returns whether the data are those that this process
    /// knows.
    async fn announce(&self, ttl: Duration, deadline: Instant) -> Result<bool, StoreError> {
        let data_epoch = self.recovery.data_epoch();
        let send = async |channel| {
            let request = ScriptRequest::new(&scripts::ANNOUNCE);
            let command = |_| {
                let mut command = request.command(&[&self.keys.node(), &self.keys.longest_ttl()]);
                command
                    .arg(data_epoch)
                    .arg(ttl.as_millis() as u64)
                    .arg(channel);
                command
            };
            let read = |mut reply: Reply| Ok(reply.number()? == 1);
            self.run(request, deadline, command, read).await
        };
        // Redis may answer a moment before it sends a published message, and may be killed in between. When it answers
        // the next command, the messages have been sent.
        Ok(send(self.recovery.channel()).await? && send("").await?)
    }

    /// A ticket whose end does not depend on steps of Redis's clock.
    fn without_clock_steps(&self, ticket: Ticket) -> Ticket {
        let shift_ms = self.recovery.clock_shift_ms();
        let until = ticket.until.map(|until| {
            let until_ms = until.unix_ms();
            Timestamp::from_unix_ms(until_ms.saturating_add_signed(-shift_ms))
        });
        Ticket { until, ..ticket }
    }
}

impl RedisStore {
    /// Changes the outcome of a request of which an earlier try may still arrive. A granted claim keeps its locks; a waiting
    /// claim is rolled back when its wait is over; after any other answer, nothing may be granted any more.
    pub(super) async fn resolve_ambiguous(
        &self,
        acquired: &mut Acquired,
        claim: &Claim,
        attempt: Attempt,
        deadline: Instant,
    ) -> StoreResult<()> {
        match acquired {
            Acquired::Waiting(waiting) => {
                waiting.has_ambiguous_attempt = true;
                Ok(())
            }
            Acquired::Granted(_) | Acquired::Superseded | Acquired::WaitExpired => Ok(()),
            Acquired::Refused(Refused::Ended(lost)) if lost.reason.ran_out() => {
                let detail = "an earlier try may have been granted a lease that has expired";
                Err(StoreError::unknown(Fault::Timeout, detail))
            }
            Acquired::Refused(_) => {
                let withdrawn = self.withdraw(claim, attempt, Rollback::Undo, deadline);
                match withdrawn.await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(StoreError::unknown(error.fault(), error.detail())),
                }
            }
        }
    }
}

fn may_be_lost() -> StoreError {
    let detail = "the data may have been lost since the lease was granted";
    StoreError::unknown(Fault::Io, detail)
}

fn longest<'a>(leases: impl Iterator<Item = &'a Lease>) -> Option<Duration> {
    leases.map(|lease| lease.ttl.get()).max()
}
