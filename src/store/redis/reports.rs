//! What comes before a lease is reported to anybody: that the other processes know how long to wait should Redis lose it, and
//! with it what keeps the lock closed afterwards.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::decode::{ClosedFor, ReleaseReply};
use super::pool::{self, Connection};
use super::scripts::{self, Reply};
use super::{RedisStore, keys};
use crate::domain::{
    Acquired, Attempt, Claim, Holder, Lease, Released, Renewed, Rollback, Ticket, Timestamp,
    Waiting,
};
use crate::store::{Fault, StoreError};

impl RedisStore {
    /// Makes an answer over a connection of this epoch ready to be reported.
    ///
    /// # Errors
    /// It is unknown whether the claim holds, because the store could not be told of a TTL, or lost its data meanwhile.
    pub(super) async fn report_acquired(
        &self,
        mut acquired: Acquired,
        claim: &Claim,
        closed_for: Option<ClosedFor>,
        epoch: u64,
        [asked, deadline]: [Instant; 2],
    ) -> Result<Acquired, StoreError> {
        let longest = match &mut acquired {
            Acquired::Granted(grants) => {
                for (name, grant) in claim.names.iter().zip(&*grants) {
                    let fence = grant.lease.holder.fence;
                    self.recovery.granted(name.bucket(), fence, epoch);
                }
                let longest = longest(grants.iter().map(|grant| &grant.lease));
                // The lock stays closed for longer than the lease lasts.
                let lasts = |ttl| ttl + claim.lock_delay.unwrap_or_default();
                longest.map(lasts).max(claim.min_hold)
            }
            Acquired::Reentered(leases) | Acquired::Replayed(leases) => {
                longest(leases.iter()).max(closed_for)
            }
            Acquired::Waiting(waiting) => {
                waiting.place = self.steady(waiting.place);
                None
            }
            Acquired::Superseded
            | Acquired::Blocked(_)
            | Acquired::Mismatched(_)
            | Acquired::TooManyWaiters { .. }
            | Acquired::WaitExpired
            | Acquired::Ended(_)
            | Acquired::Recovering { .. } => None,
        };
        match &acquired {
            Acquired::Granted(grants) => {
                let leases = grants.iter().map(|grant| &grant.lease);
                self.check_clock(leases, asked, deadline).await?;
            }
            Acquired::Reentered(leases) | Acquired::Replayed(leases) => {
                self.check_clock(leases.iter(), asked, deadline).await?;
            }
            Acquired::Superseded
            | Acquired::Waiting(_)
            | Acquired::Blocked(_)
            | Acquired::Mismatched(_)
            | Acquired::TooManyWaiters { .. }
            | Acquired::WaitExpired
            | Acquired::Ended(_)
            | Acquired::Recovering { .. } => {}
        }
        self.report(longest, epoch, deadline).await?;
        Ok(acquired)
    }

    /// The answer to a request of which an earlier try may still arrive. What the claim was granted it keeps; a claim that
    /// waits is rolled back when its wait is over; but after any other answer nothing may be granted any more.
    pub(super) async fn unless_late(
        &self,
        acquired: Acquired,
        claim: &Claim,
        attempt: Attempt,
        deadline: Instant,
    ) -> Result<Acquired, StoreError> {
        match acquired {
            Acquired::Waiting(waiting) => Ok(Acquired::Waiting(Waiting {
                is_unsure: true,
                ..waiting
            })),
            Acquired::Granted(_)
            | Acquired::Reentered(_)
            | Acquired::Replayed(_)
            | Acquired::Superseded
            | Acquired::WaitExpired => Ok(acquired),
            Acquired::Ended(lost) if lost.reason.ran_out() => {
                let detail = "an earlier try may have been granted, and its lease have run out";
                Err(StoreError::unknown(Fault::Timeout, detail))
            }
            Acquired::Blocked(_)
            | Acquired::Mismatched(_)
            | Acquired::TooManyWaiters { .. }
            | Acquired::Ended(_)
            | Acquired::Recovering { .. } => {
                let withdrawn = self.withdraw(claim, attempt, Rollback::Undo, deadline);
                match withdrawn.await {
                    Ok(()) => Ok(acquired),
                    Err(error) => Err(StoreError::unknown(error.fault(), error.detail())),
                }
            }
        }
    }

    /// The same for a renewal.
    pub(super) async fn report_renewed(
        &self,
        renewed: Renewed,
        closed_for: Option<ClosedFor>,
        epoch: u64,
        [asked, deadline]: [Instant; 2],
    ) -> Result<Renewed, StoreError> {
        if let Renewed::Extended(renewals) = &renewed {
            let leases = renewals.iter().map(|renewal| &renewal.lease);
            self.check_clock(leases, asked, deadline).await?;
        }
        let longest = match &renewed {
            Renewed::Extended(renewals) => {
                longest(renewals.iter().map(|renewal| &renewal.lease)).max(closed_for)
            }
            Renewed::NotHolder(_) | Renewed::Contradicts(_) => None,
        };
        self.report(longest, epoch, deadline).await?;
        Ok(renewed)
    }

    /// The same for a release, over a connection of this epoch if it was a step back, which leaves something to wait for.
    pub(super) async fn report_released(
        &self,
        reply: ReleaseReply,
        epoch: Option<u64>,
        [asked, deadline]: [Instant; 2],
    ) -> Result<Vec<Released>, StoreError> {
        let leases = reply.released.iter().filter_map(|released| match released {
            Released::SteppedBack(lease) => Some(lease),
            Released::Freed { .. }
            | Released::LeftQueue
            | Released::Repeated
            | Released::NotHolder(_) => None,
        });
        self.check_clock(leases, asked, deadline).await?;
        if let Some(epoch) = epoch {
            self.report(reply.closed_for, epoch, deadline).await?;
        }
        Ok(reply.released)
    }

    /// What is left of these leases counts from Redis's time just now.
    async fn check_clock<'a>(
        &self,
        mut leases: impl Iterator<Item = &'a Lease>,
        asked: Instant,
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
        self.check_time(now_ms, asked, deadline).await
    }

    /// It was this time in Redis just now. When its clock was set back, what counts from then would end early should it be set
    /// right: all processes must know of the step before anybody relies on it, so that each of them notices the next one.
    pub(super) async fn check_time(
        &self,
        now_ms: u64,
        asked: Instant,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        // Rounded up, as Redis counts in milliseconds here.
        let redis_us = (now_ms + 1) * 1_000;
        match self.recovery.is_behind(redis_us, asked) {
            true => Box::pin(self.tell_of_step_back(deadline)).await,
            false => Ok(()),
        }
    }

    async fn tell_of_step_back(&self, deadline: Instant) -> Result<(), StoreError> {
        tracing::warn!("the clock of the store was set back");
        let looked = self.pool.connect(deadline).await;
        let mut connection = looked.map_err(|failure| failure.into_error(true))?;
        let telling = async {
            let verify = redis::cmd("PUBLISH")
                .arg(self.messages.recovery_channel())
                .arg("verify")
                .to_owned();
            // Redis may answer a moment before it sends what it was told to publish; then it answers the next command later.
            for command in [verify, redis::cmd("PING")] {
                connection.socket().send_packed_command(&command).await?;
            }
            redis::RedisResult::Ok(())
        };
        match timeout_at(deadline, telling).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(may_be_lost()),
        }
    }

    /// Leases are about to be reported, the longest of which lasts for `ttl`.
    async fn report(
        &self,
        ttl: Option<Duration>,
        epoch: u64,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let Some(ttl) = ttl else { return Ok(()) };
        if !self.recovery.use_ttl(ttl) {
            // Rare, and not to make every request larger.
            Box::pin(self.share(ttl, deadline)).await?;
        }
        // Those who noticed a loss since may have learnt of this TTL only later, and do not wait for so long.
        if epoch != self.recovery.epoch() {
            return Err(may_be_lost());
        }
        Ok(())
    }

    /// Makes sure that all processes know that leases last so long. Of many requests one tells them.
    async fn share(&self, ttl: Duration, deadline: Instant) -> Result<(), StoreError> {
        let Ok(_announcing) = timeout_at(deadline, self.announcing.lock()).await else {
            let detail = "the other processes could not be told in time";
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

    /// Tells all processes that leases last so long. Says whether the data are those that this process knows.
    async fn announce(&self, ttl: Duration, deadline: Instant) -> Result<bool, StoreError> {
        let epoch = self.recovery.data_epoch();
        let tell = async |channel| {
            let (script, request) = (&scripts::ANNOUNCE, pool::request_id());
            let command = || {
                let mut command = pool::call(script, &[keys::NODE, keys::LONGEST_TTL], request);
                command.arg(epoch).arg(ttl.as_millis() as u64).arg(channel);
                command
            };
            let read = |mut reply: Reply, _: &Connection| Ok(reply.number()? == 1);
            self.run(script, request, deadline, command, read).await
        };
        // Redis may answer a moment before it sends what it was told to publish, and be killed between the two. When it
        // answers the next command, the messages are on their way.
        Ok(tell(self.messages.recovery_channel()).await? && tell("").await?)
    }

    /// A place whose end does not depend on how often the clock of Redis is set.
    fn steady(&self, place: Ticket) -> Ticket {
        let shift_ms = self.recovery.clock_shift_ms();
        let until = place.until.map(|until| {
            let until_ms = until.unix_ms();
            Timestamp::from_unix_ms(until_ms.saturating_add_signed(-shift_ms))
        });
        Ticket { until, ..place }
    }
}

fn may_be_lost() -> StoreError {
    let detail = "the data may have been lost since the lease was granted";
    StoreError::unknown(Fault::Io, detail)
}

fn longest<'a>(leases: impl Iterator<Item = &'a Lease>) -> Option<Duration> {
    leases.map(|lease| lease.ttl.get()).max()
}
