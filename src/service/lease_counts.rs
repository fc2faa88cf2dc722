//! The leases of principals that have a quota of them, which the store counts beside the locks.
//!
//! A new lease is counted before anybody learns of it, and rolled back if there is no room. What is renewed or replayed
//! is counted in any case, and what ends is no longer counted. Only principals with such a quota pay for this: one more
//! request to the store for each operation.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::ServiceShared;
use super::acquire::Request;
use crate::domain::{
    Acquired, CountOutcome, CountStep, GrantKind, Granted, LockName, NotHeld, NotHolder, Refused,
    Released, RenewOptions, Renewed, RollbackRight, Token, UndoneBy,
};
use crate::limits::LeaseBudget;
use crate::store::{StoreError, StoreResult};

/// How long a renewal or a release that is done waits for the count. Without it, a lease is counted again from its next
/// renewal on, or until it would have run out.
const FOLLOW_UP_MAX: Duration = Duration::from_millis(250);

impl Request {
    /// Refuses a claim that would have to give back what it is granted.
    pub(super) async fn over_quota(&self, leases: &LeaseBudget) -> Option<Acquired> {
        let counted = self.count(leases, CountStep::Check).await;
        // Without an answer, the count after the grant decides.
        self.refusal(leases, counted.ok()?)
    }

    /// Counts the leases that the store has granted. New ones beyond the quota are rolled back.
    pub(super) async fn counted(
        &self,
        leases: &LeaseBudget,
        reply: StoreResult<Acquired>,
    ) -> StoreResult<Acquired> {
        let Ok(Acquired::Granted(granted)) = &reply else {
            return reply;
        };
        let counted = match self.count(leases, self.step_of(granted)).await {
            Ok(counted) => counted,
            Err(_) if granted.kind != GrantKind::New => return reply,
            // Whoever gets this rolls the grant back, or repeats the request.
            Err(error) => return Err(StoreError::unknown(error.fault(), error.detail())),
        };
        let Some(refusal) = self.refusal(leases, counted) else {
            if granted.kind == GrantKind::New {
                leases.note(false);
            }
            return reply;
        };
        self.clone().withdraw_in_background(self.claim.ttl.get());
        Ok(refusal)
    }

    /// Stops counting what the request is about to roll back. Later, the claim might hold by another request.
    pub(super) async fn uncount(&self) {
        if let Some(leases) = self.slot.leases() {
            // Without an answer, it is counted for as long as it would have lasted.
            let _ = self.count(leases, CountStep::Undo(self.attempt)).await;
        }
    }

    fn step_of(&self, granted: &Granted) -> CountStep {
        let lasts = longest(granted.leases.iter().map(|lease| lease.holder.expires_in));
        match granted.kind {
            GrantKind::New => CountStep::Take {
                by: self.attempt,
                lasts,
            },
            GrantKind::Reentered | GrantKind::Replayed => CountStep::Keep {
                undone_by: match self.claim.takes_over {
                    true => UndoneBy::Attempt(self.attempt),
                    false => UndoneBy::Nobody,
                },
                lasts,
            },
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

    async fn count(&self, leases: &LeaseBudget, step: CountStep) -> StoreResult<CountOutcome> {
        let (_, deadline) = self.inner.start();
        let names = &self.claim.names;
        let token = self.claim.token;
        self.inner.count(leases, step, names, token, deadline).await
    }
}

impl ServiceShared {
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
                let lasts = longest(renewals.iter().map(|it| it.lease.holder.expires_in));
                let undone_by = match options.rollback_right {
                    RollbackRight::Never => UndoneBy::Nobody,
                    RollbackRight::AsBefore => UndoneBy::AsBefore,
                };
                let step = CountStep::Keep { undone_by, lasts };
                self.follow_up(leases, step, names, token).await;
            }
            Renewed::NotHolder(lost) => {
                let lost = lost.iter().filter(|lost| has_ended(&lost.reason));
                let names: Vec<_> = lost.map(|lost: &NotHeld| lost.name.clone()).collect();
                self.follow_up(leases, CountStep::End, &names, token).await;
            }
            Renewed::Mismatched(_) => {}
        }
    }

    /// No longer counts the leases that a release has ended, or found to have ended.
    pub(super) async fn recount_released(
        &self,
        leases: &LeaseBudget,
        (names, token): (&[LockName], Token),
        released: &[Released],
    ) {
        let is_over = |released: &Released| match released {
            Released::Freed { .. } | Released::Repeated => true,
            Released::NotHolder(reason) => has_ended(reason),
            Released::SteppedBack(_) | Released::LeftQueue => false,
        };
        let ended = names.iter().zip(released).filter(|(_, it)| is_over(it));
        let names: Vec<_> = ended.map(|(name, _)| name.clone()).collect();
        self.follow_up(leases, CountStep::End, &names, token).await;
    }

    /// A step after an operation that is done, whose outcome changes nothing.
    async fn follow_up(
        &self,
        leases: &LeaseBudget,
        step: CountStep,
        names: &[LockName],
        token: Token,
    ) {
        if !names.is_empty() {
            let deadline = Instant::now() + FOLLOW_UP_MAX.min(self.operation_timeout);
            let counting = self.count(leases, step, names, token, deadline);
            let _ = timeout_at(deadline, counting).await;
        }
    }

    async fn count(
        &self,
        leases: &LeaseBudget,
        step: CountStep,
        names: &[LockName],
        token: Token,
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
