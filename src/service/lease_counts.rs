//! The leases of principals that have a quota of them, which the store counts beside the locks.
//!
//! A new lease is counted before anybody learns of it, and rolled back if there is no room. Until then nothing may make it
//! final, whoever knows its token: a renewal leaves the right to roll it back where it is, and a replay is refused. What is
//! counted already is counted on in any case, and what ends is no longer counted. Only principals with such a quota pay for
//! this: one or two more requests to the store for each operation.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::{Instant, timeout_at};

use super::ServiceShared;
use super::acquire::Request;
use crate::domain::{
    Acquired, CountOutcome, CountStep, GrantKind, Granted, Lease, LockName, LockState, NotHeld,
    NotHolder, Refused, Released, RenewOptions, Renewed, Rollback, RollbackRight, Token, Ttl,
    UndoneBy,
};
use crate::limits::LeaseBudget;
use crate::store::{StoreError, StoreResult};

/// How long an operation waits for a step of the count without which it goes on. Without it, a lease is counted again
/// from its next renewal on, or until it would have run out.
const OPTIONAL_STEP_MAX: Duration = Duration::from_millis(250);

/// How long a renewal waits to learn whether its leases are counted. Without an answer, it goes on as if they were.
const RENEWAL_CHECK_MAX: Duration = Duration::from_millis(50);

/// The share of the remaining time of a lease that its replay may spend on that, and of the new TTL its renewal.
const CHECKED_WITHIN: u32 = 8;

/// A lease that was granted longer ago than this was counted or rolled back, as far as its store permitted. If it is not
/// counted now, the count was lost, or began later.
const UNCOUNTED_MAX: Duration = Duration::from_secs(10);

/// The share of the remaining time of a lease that its renewal, its replay or its step back may spend on the count.
const COUNTED_WITHIN: u32 = 4;

impl Request {
    /// Refuses a claim that would have to give back what it is granted. It must not be granted for a moment: meanwhile
    /// others are refused, and a request with the same token that comes then makes the lease final.
    pub(super) async fn over_quota(
        &self,
        leases: &LeaseBudget,
        waits: bool,
        deadline: Instant,
    ) -> Option<Acquired> {
        let (inner, names, token) = (&self.inner, &self.claim.names, self.claim.token);
        let check = inner.try_to_count(leases, CountStep::Check, (names, token), deadline);
        // Without an answer, the count after the grant decides.
        let checked = check.await?;
        let is_full = matches!(checked, CountOutcome::Full { .. });
        if is_full && !self.claim.has_new_token && self.may_take_nothing(waits, deadline).await {
            return None;
        }
        self.refusal(leases, checked)
    }

    /// Whether the claim may be one to which the store grants nothing new: it holds its locks, without being counted, or has
    /// to wait for one of them. What it is granted all the same is counted then.
    async fn may_take_nothing(&self, waits: bool, deadline: Instant) -> bool {
        let claim = &self.claim;
        // A claim holds all of its locks or none.
        let Some(name) = claim.names.first() else {
            return true;
        };
        let deadline = deadline.min(Instant::now() + OPTIONAL_STEP_MAX);
        let sent = Instant::now();
        let inspected = self.inner.store.inspect(name, deadline).await;
        let metrics = &self.inner.metrics.store;
        metrics.operation("inspect", sent.elapsed(), &inspected);
        match inspected.map(|view| (view.state, view.queue.length)) {
            Ok((LockState::Held(holders), _)) => {
                let digest = claim.token.digest(name);
                let is_whole = holders.listed.len() as u64 == holders.total;
                let mut listed = holders.listed.iter();
                waits || !is_whole || listed.any(|holder| holder.claim == digest)
            }
            Ok((LockState::Cooling { .. }, _)) => waits,
            Ok((LockState::Free, queued)) => waits && (queued > 0 || claim.names.len() > 1),
            Err(_) => true,
        }
    }

    /// Counts the leases that the store has granted. New ones beyond the quota are rolled back.
    pub(super) async fn counted(
        &self,
        leases: &LeaseBudget,
        reply: StoreResult<Acquired>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let Ok(Acquired::Granted(granted)) = &reply else {
            return reply;
        };
        if granted.kind != GrantKind::New {
            let may_be_uncounted = granted.leases.iter().any(is_young);
            if may_be_uncounted && let Some(refusal) = self.replay_refusal(leases, granted).await {
                self.clone().withdraw_in_background(self.claim.ttl.get());
                return Ok(refusal);
            }
            self.keep_counted(leases, granted).await;
            return reply;
        }
        let step = CountStep::Take {
            by: self.attempt,
            lasts: longest(times_of(granted)),
        };
        let claim = (&*self.claim.names, self.claim.token);
        let counted = self.inner.count(leases, step, claim, deadline).await;
        // Whoever gets this error rolls the grant back, or repeats the request.
        let counted = counted.map_err(|it| StoreError::unknown(it.fault(), it.detail()))?;
        let Some(refusal) = self.refusal(leases, counted) else {
            leases.note(false);
            return reply;
        };
        self.clone().withdraw_in_background(self.claim.ttl.get());
        Ok(refusal)
    }

    /// Refuses to replay leases that are not counted yet, if there is no room for them: the attempt that was granted them
    /// is going to roll them back.
    async fn replay_refusal(&self, leases: &LeaseBudget, granted: &Granted) -> Option<Acquired> {
        let claim = (&*self.claim.names, self.claim.token);
        let shortest = times_of(granted).min().unwrap_or_default();
        let deadline = Instant::now() + shortest / CHECKED_WITHIN;
        let check = self
            .inner
            .try_to_count(leases, CountStep::Check, claim, deadline);
        self.refusal(leases, check.await?)
    }

    /// Counts leases that the claim had before.
    async fn keep_counted(&self, leases: &LeaseBudget, granted: &Granted) {
        let undone_by = match self.claim.takes_over {
            true => UndoneBy::Attempt(self.attempt),
            false => UndoneBy::Nobody,
        };
        if self.claim.takes_over {
            self.took_over.store(true, Ordering::Relaxed);
        }
        let claim = (&*self.claim.names, self.claim.token);
        self.inner
            .keep_counted(leases, claim, undone_by, times_of(granted))
            .await;
    }

    /// Stops counting what this rollback ends.
    pub(super) async fn uncount(&self, rollback: Rollback, deadline: Instant) {
        let keeps_leases = rollback == Rollback::Undo && self.took_over.load(Ordering::Relaxed);
        if let (Some(leases), false) = (self.slot.leases(), keeps_leases) {
            let (names, token) = (&self.claim.names, self.claim.token);
            let step = CountStep::Undo(self.attempt);
            let undo = self
                .inner
                .try_to_count(leases, step, (names, token), deadline);
            // Without an answer, it is counted for as long as it would have lasted.
            undo.await;
        }
    }

    fn refusal(&self, leases: &LeaseBudget, counted: CountOutcome) -> Option<Acquired> {
        let CountOutcome::Full { retry_in } = counted else {
            return None;
        };
        leases.note(true);
        self.inner.metrics.too_many_leases();
        Some(Acquired::Refused(Refused::TooManyLeases { retry_in }))
    }
}

impl ServiceShared {
    /// Whether a renewal may make these leases final: they are counted, or there is room for them.
    pub(super) async fn may_be_final(
        &self,
        leases: &LeaseBudget,
        claim: (&[LockName], Token),
        options: RenewOptions,
    ) -> bool {
        let ttl = options.ttl.map(Ttl::get);
        let check_max = ttl.map(|ttl| ttl / CHECKED_WITHIN);
        let check_max = check_max
            .unwrap_or(RENEWAL_CHECK_MAX)
            .min(RENEWAL_CHECK_MAX);
        let deadline = Instant::now() + check_max;
        let check = self.try_to_count(leases, CountStep::Check, claim, deadline);
        !matches!(check.await, Some(CountOutcome::Full { .. }))
    }

    /// Counts the leases of a renewal for as long as they last now, and those that have ended no longer.
    pub(super) async fn recount_renewed(
        &self,
        leases: &LeaseBudget,
        (names, token): (&[LockName], Token),
        options: RenewOptions,
        renewed: &Renewed,
    ) {
        match renewed {
            Renewed::Extended(renewals) => {
                let times = renewals.iter().map(|it| it.lease.holder.expires_in);
                let undone_by = match options.rollback_right {
                    RollbackRight::Never => UndoneBy::Nobody,
                    RollbackRight::AsBefore => UndoneBy::AsBefore,
                };
                self.keep_counted(leases, (names, token), undone_by, times)
                    .await;
            }
            Renewed::NotHolder(lost) => {
                let lost = lost.iter().filter(|lost| has_ended(&lost.reason));
                let names: Vec<_> = lost.map(|lost: &NotHeld| lost.name.clone()).collect();
                self.end_counted(leases, (&names, token)).await;
            }
            Renewed::Mismatched(_) => {}
        }
    }

    /// No longer counts the leases that a release has ended, or found to have ended. Those that it has kept are final.
    pub(super) async fn recount_released(
        &self,
        leases: &LeaseBudget,
        (names, token): (&[LockName], Token),
        released: &[Released],
    ) {
        let (mut ended, mut kept, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for (name, released) in names.iter().zip(released) {
            match released {
                Released::Freed { .. } | Released::Repeated => ended.push(name.clone()),
                Released::NotHolder(reason) if has_ended(reason) => ended.push(name.clone()),
                Released::SteppedBack(lease) => {
                    kept.push(name.clone());
                    times.push(lease.holder.expires_in);
                }
                Released::NotHolder(_) | Released::LeftQueue => {}
            }
        }
        let (kept, times) = ((&*kept, token), times.into_iter());
        let keep = self.keep_counted(leases, kept, UndoneBy::Nobody, times);
        let end = self.end_counted(leases, (&ended, token));
        join(keep, end).await;
    }

    /// Counts leases for as long as they last now.
    async fn keep_counted(
        &self,
        leases: &LeaseBudget,
        claim: (&[LockName], Token),
        undone_by: UndoneBy,
        times: impl Iterator<Item = Duration> + Clone,
    ) {
        let shortest = times.clone().min().unwrap_or_default();
        let lasts = longest(times);
        let step = CountStep::Keep { undone_by, lasts };
        let deadline = Instant::now() + shortest / COUNTED_WITHIN;
        self.try_to_count(leases, step, claim, deadline).await;
    }

    /// No longer counts leases.
    async fn end_counted(&self, leases: &LeaseBudget, claim: (&[LockName], Token)) {
        let (_, deadline) = self.start();
        let step = CountStep::End;
        self.try_to_count(leases, step, claim, deadline).await;
    }

    /// A step without which the operation goes on. `None` if there was nothing to count, or no answer in time.
    async fn try_to_count(
        &self,
        leases: &LeaseBudget,
        step: CountStep,
        claim: (&[LockName], Token),
        deadline: Instant,
    ) -> Option<CountOutcome> {
        if claim.0.is_empty() {
            return None;
        }
        let step_max = OPTIONAL_STEP_MAX.min(self.operation_timeout);
        let deadline = deadline.min(Instant::now() + step_max);
        let counting = self.count(leases, step, claim, deadline);
        timeout_at(deadline, counting).await.ok()?.ok()
    }

    async fn count(
        &self,
        leases: &LeaseBudget,
        step: CountStep,
        (names, token): (&[LockName], Token),
        deadline: Instant,
    ) -> StoreResult<CountOutcome> {
        let sent = Instant::now();
        let counting = self
            .store
            .count_leases(leases.quota(), step, names, token, deadline);
        let counted = counting.await;
        self.metrics
            .store
            .operation("count", sent.elapsed(), &counted);
        counted
    }
}

/// The remaining times of leases.
fn times_of(granted: &Granted) -> impl Iterator<Item = Duration> + Clone {
    granted.leases.iter().map(|lease| lease.holder.expires_in)
}

/// Whether a renewal has extended leases that their grants may not have counted yet.
pub(super) fn is_recent(renewed: &Renewed) -> bool {
    match renewed {
        Renewed::Extended(renewals) => renewals.iter().any(|it| is_young(&it.lease)),
        Renewed::NotHolder(_) | Renewed::Mismatched(_) => false,
    }
}

/// Whether it may be a lease that its grant has not counted yet. By the clock of the store.
fn is_young(lease: &Lease) -> bool {
    let holder = &lease.holder;
    let left_ms = u64::try_from(holder.expires_in.as_millis()).unwrap_or(u64::MAX);
    let now_ms = holder.expires_at.unix_ms().saturating_sub(left_ms);
    let held_ms = now_ms.saturating_sub(holder.acquired_at.unix_ms());
    Duration::from_millis(held_ms) < UNCOUNTED_MAX
}

fn longest(times: impl Iterator<Item = Duration>) -> Duration {
    times.max().unwrap_or_default()
}

/// Whether a claim that does not hold cannot hold again. That of an unknown one may be granted just now.
fn has_ended(reason: &NotHolder) -> bool {
    match reason {
        NotHolder::Expired | NotHolder::Lost | NotHolder::Evicted { .. } | NotHolder::Released => {
            true
        }
        NotHolder::Unknown => false,
    }
}
