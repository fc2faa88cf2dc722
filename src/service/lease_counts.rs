//! The leases for which there is a quota, of their principal or of all. The store counts them beside the locks.
//!
//! **No request makes a lease final, or moves its end later, before the lease is counted.**
//!
//! The lease and its count change in separate steps, and requests with one token may be in flight together, in any
//! order:
//!
//! - A new lease is counted before it is reported, and rolled back if there is no room.
//! - A renewal, a step back or a replay counts it, too, and does so first, if there is room. If not, it leaves a lease
//!   that is not final as it is, and a replay is refused: the grant may be about to roll it back.
//! - Once a request is refused its own lease, a young lease passes to no further request: otherwise each would leave it
//!   to the next one, until it is old.
//! - No lease is counted for a shorter time than before, and a lease that two requests have counted is not undone by
//!   either.
//! - Where the count is too slow, a request goes on, and counts a young lease afterwards, if there is room.
//!
//! A lease that has lasted longer than it takes to count a grant is counted even if there is no room, because its count
//! was lost. Only where there is such a quota is this paid for: one or two more requests to the store for each operation
//! and quota.

mod claims;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all, join4};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::ServiceShared;
use crate::domain::{
    Attempt, CountOutcome, CountStep, Lease, LockName, NotHeld, NotHolder, Released, Renewed,
    RollbackRight, Token, Ttl, UNCOUNTED_MAX, UndoneBy,
};
use crate::limits::{LeaseBudget, LeaseCount};
use crate::store::{Fault, StoreError, StoreResult};
pub(super) use claims::WaitStage;

/// How long an operation waits for a step of the count that it can do without.
const OPTIONAL_STEP_MAX: Duration = Duration::from_millis(250);

/// How long an operation waits until its leases are counted before it. A client with a short lease has little time.
const COUNTED_BEFORE_MAX: Duration = Duration::from_millis(50);

/// The share of the remaining time of a lease that its renewal, its replay or its step back may wait for the count.
const COUNTED_WITHIN: u32 = 4;

/// By how much the age of a lease may differ at the nodes of a quorum.
const AGE_DIFFERENCE_MAX: Duration = Duration::from_secs(1);

/// Whether leases were counted before an operation on them.
#[derive(Clone, Copy, Debug)]
pub(super) enum CountedBefore {
    /// They are counted. This attempt undoes the count of those that were not counted before.
    Yes(Attempt),
    /// There is no room for all of them.
    NoRoom,
    /// The store did not answer in time.
    Unknown,
}

impl CountedBefore {
    /// Which attempt may roll the leases back after the operation.
    pub(super) fn rollback_right(self) -> RollbackRight {
        match self {
            Self::Yes(_) => RollbackRight::Never,
            Self::NoRoom => RollbackRight::UnlessYoung,
            Self::Unknown => RollbackRight::AsBefore,
        }
    }
}

impl ServiceShared {
    /// Counts leases before an operation that would make them final, or move their end, if there is room.
    pub(super) async fn count_before(
        &self,
        leases: &LeaseBudget,
        claim: (&[LockName], Token),
    ) -> CountedBefore {
        let by = Attempt::random();
        // How long they last is known after the operation. Until then its outcome may be that nothing has changed, and no
        // later step shortens the time for which they are counted.
        let lasts = UNCOUNTED_MAX.min(2 * self.operation_timeout);
        let deadline = Instant::now() + COUNTED_BEFORE_MAX;
        let step = CountStep::Take { by, lasts };
        match self.try_to_count(leases, step, claim, deadline).await {
            Some(Room::Enough) => CountedBefore::Yes(by),
            Some(Room::Lacking { .. }) => CountedBefore::NoRoom,
            None => CountedBefore::Unknown,
        }
    }

    /// Counts the leases of a renewal for as long as they last now, and those that have ended no longer.
    pub(super) async fn recount_renewed(
        self: &Arc<Self>,
        leases: &LeaseBudget,
        (names, token): (&[LockName], Token),
        before: Option<CountedBefore>,
        renewed: &Renewed,
    ) {
        let found = match renewed {
            Renewed::Extended(renewals) => {
                let renewed = renewals.iter().map(|renewal| &renewal.lease);
                let renewed = renewed.map(AfterOperation::Held);
                names.iter().zip(renewed).collect()
            }
            Renewed::NotHolder(lost) => {
                let found = |name: &LockName| match lost
                    .iter()
                    .find(|lost: &&NotHeld| lost.name == *name)
                {
                    Some(lost) if has_ended(&lost.reason) => AfterOperation::Ended,
                    Some(_) | None => AfterOperation::Unchanged,
                };
                names.iter().map(|name| (name, found(name))).collect()
            }
            Renewed::Mismatched(_) => names
                .iter()
                .map(|name| (name, AfterOperation::Unchanged))
                .collect(),
        };
        self.recount(leases, token, before, found).await;
    }

    /// No longer counts the leases that a release has ended, or found to have ended. Those that it has kept are counted.
    pub(super) async fn recount_released(
        self: &Arc<Self>,
        leases: &LeaseBudget,
        (names, token): (&[LockName], Token),
        before: Option<CountedBefore>,
        released: &[Released],
    ) {
        let found = released.iter().map(|released| match released {
            Released::SteppedBack(lease) => AfterOperation::Held(lease),
            Released::Freed { .. } | Released::Repeated => AfterOperation::Ended,
            Released::NotHolder(reason) if has_ended(reason) => AfterOperation::Ended,
            Released::NotHolder(_) | Released::LeftQueue => AfterOperation::Unchanged,
        });
        let found = names.iter().zip(found).collect();
        self.recount(leases, token, before, found).await;
    }

    async fn recount(
        self: &Arc<Self>,
        leases: &LeaseBudget,
        token: Token,
        before: Option<CountedBefore>,
        found: Vec<(&LockName, AfterOperation<'_>)>,
    ) {
        let (mut kept, mut left, mut late) = <(ClaimLeases, ClaimLeases, ClaimLeases)>::default();
        let (mut ended, mut unchanged) = (vec![], vec![]);
        for (name, found) in found {
            match found {
                AfterOperation::Held(lease) => match before {
                    Some(CountedBefore::NoRoom) if is_young(lease) => left.push(name, lease),
                    Some(CountedBefore::Unknown) if is_young(lease) => late.push(name, lease),
                    Some(_) | None => kept.push(name, lease),
                },
                AfterOperation::Ended => ended.push(name.clone()),
                AfterOperation::Unchanged => unchanged.push(name.clone()),
            }
        }
        let undone_by = match before {
            Some(CountedBefore::Yes(_) | CountedBefore::NoRoom) => UndoneBy::Nobody,
            // The operation has left the rollback right as it was.
            Some(CountedBefore::Unknown) | None => UndoneBy::AsBefore,
        };
        let lasts = longest(&kept.times);
        let keep = CountStep::Keep { undone_by, lasts };
        let keep = self.count_held(leases, keep, token, kept);
        let lasts = longest(&left.times);
        // Some of them may be counted, although there is no room for all.
        let extend = self.count_held(leases, CountStep::Extend { lasts }, token, left);
        // Their grant may be about to find that there is no room for them.
        let (by, lasts) = (Attempt::random(), longest(&late.times));
        let take = self.count_held(leases, CountStep::Take { by, lasts }, token, late);
        let end = async {
            let end = self.end_counted(leases, CountStep::End, (&ended, token));
            let undo = self.uncount_before(leases, (&unchanged, token), before);
            join(end, undo).await;
        };
        join4(keep, extend, take, end).await;
    }

    /// Counts leases for as long as they last now; if a step finds no room for all, those that are counted already. That
    /// goes on in the background if there is no time to wait for it: how short one of the leases is must not decide
    /// whether the others are counted.
    async fn count_held(
        self: &Arc<Self>,
        leases: &LeaseBudget,
        step: CountStep,
        token: Token,
        ClaimLeases { names, times }: ClaimLeases,
    ) {
        let Some(&shortest) = times.iter().min() else {
            return;
        };
        let step_max = OPTIONAL_STEP_MAX.min(self.operation_timeout);
        let until = Instant::now() + step_max.min(shortest / COUNTED_WITHIN);
        let (inner, leases) = (Arc::clone(self), leases.clone());
        let (counted, is_counted) = oneshot::channel();
        self.in_background(async move {
            let (_, deadline) = inner.start();
            let claim = (&*names, token);
            // Without an answer, they are counted again from the next renewal on, or until they would have run out.
            let outcome = inner.count(&leases, step, claim, deadline).await;
            if let (Ok(Room::Lacking { .. }), CountStep::Take { lasts, .. }) = (outcome, step) {
                let extend = CountStep::Extend { lasts };
                let _ = inner.count(&leases, extend, claim, deadline).await;
            }
            let _ = counted.send(());
        });
        let _ = timeout_at(until, is_counted).await;
    }

    /// Counts what was counted before an operation of which the outcome is not known for as long as it may last.
    pub(super) async fn count_unknown(
        self: &Arc<Self>,
        leases: &LeaseBudget,
        (names, token): (&[LockName], Token),
        ttl: Option<Ttl>,
    ) {
        if let Some(lasts) = ttl.map(Ttl::get) {
            let extend = CountStep::Extend { lasts };
            let held = ClaimLeases {
                names: names.to_vec(),
                times: vec![lasts],
            };
            self.count_held(leases, extend, token, held).await;
        }
    }

    /// No longer counts what was counted before an operation that the store has not done.
    pub(super) async fn uncount_before(
        &self,
        leases: &LeaseBudget,
        claim: (&[LockName], Token),
        before: Option<CountedBefore>,
    ) {
        if let Some(CountedBefore::Yes(by)) = before {
            self.end_counted(leases, CountStep::Undo(by), claim).await;
        }
    }

    /// No longer counts leases.
    async fn end_counted(
        &self,
        leases: &LeaseBudget,
        step: CountStep,
        claim: (&[LockName], Token),
    ) {
        let (_, deadline) = self.start();
        self.try_to_count(leases, step, claim, deadline).await;
    }

    /// A step that the operation can do without. `None` if there was nothing to count, or no answer in time.
    async fn try_to_count<'a>(
        &self,
        leases: &'a LeaseBudget,
        step: CountStep,
        claim: (&[LockName], Token),
        deadline: Instant,
    ) -> Option<Room<'a>> {
        if claim.0.is_empty() {
            return None;
        }
        let step_max = OPTIONAL_STEP_MAX.min(self.operation_timeout);
        let deadline = deadline.min(Instant::now() + step_max);
        self.count(leases, step, claim, deadline).await.ok()
    }

    /// A step in each count. Leases are taken in all of them or in none.
    async fn count<'a>(
        &self,
        leases: &'a LeaseBudget,
        step: CountStep,
        claim: (&[LockName], Token),
        deadline: Instant,
    ) -> StoreResult<Room<'a>> {
        let one = |count, step| self.count_one(count, step, claim, deadline);
        if !matches!(step, CountStep::Check | CountStep::Take { .. }) {
            let counted = join_all(leases.counts().map(|count| one(count, step))).await;
            return counted
                .into_iter()
                .try_for_each(|it| it.map(drop))
                .map(|()| Room::Enough);
        }
        for (taken, count) in leases.counts().enumerate() {
            if let CountOutcome::Full { retry_in } = one(count, step).await? {
                if let CountStep::Take { by, .. } = step {
                    // Without an answer, they are counted for as long as they would have lasted.
                    let before = leases.counts().take(taken);
                    join_all(before.map(|count| one(count, CountStep::Undo(by)))).await;
                }
                return Ok(Room::Lacking { count, retry_in });
            }
        }
        Ok(Room::Enough)
    }

    async fn count_one(
        &self,
        count: &LeaseCount,
        step: CountStep,
        (names, token): (&[LockName], Token),
        deadline: Instant,
    ) -> StoreResult<CountOutcome> {
        let sent = Instant::now();
        let counting = self
            .store
            .count_leases(count.quota(), step, names, token, deadline);
        let counted = timeout_at(deadline, counting).await.unwrap_or_else(|_| {
            let detail = "the count did not answer in time";
            Err(StoreError::unknown(Fault::Timeout, detail))
        });
        self.metrics
            .store
            .operation("count", sent.elapsed(), &counted);
        counted
    }
}

/// Whether the quotas of a claim have room for its leases.
#[derive(Clone, Copy, Debug)]
enum Room<'a> {
    /// All of them have, and a step was taken in each.
    Enough,
    /// One of them has none, and nothing is counted in any.
    Lacking {
        /// The count without room.
        count: &'a LeaseCount,
        /// When there is room, if nothing is renewed.
        retry_in: Duration,
    },
}

/// Leases of one claim.
#[derive(Debug, Default)]
struct ClaimLeases {
    names: Vec<LockName>,
    /// How long they last from now on.
    times: Vec<Duration>,
}

impl ClaimLeases {
    fn push(&mut self, name: &LockName, lease: &Lease) {
        self.names.push(name.clone());
        self.times.push(lease.holder.expires_in);
    }
}

/// What an operation has learnt about the lease of a claim.
enum AfterOperation<'a> {
    /// It is held, until then.
    Held(&'a Lease),
    /// It has ended, and the claim cannot hold again.
    Ended,
    /// The operation has changed nothing.
    Unchanged,
}

/// Whether a claim that does not hold cannot hold again. An unknown claim may be granted just now.
fn has_ended(reason: &NotHolder) -> bool {
    match reason {
        NotHolder::Expired | NotHolder::Lost | NotHolder::Evicted { .. } | NotHolder::Released => {
            true
        }
        NotHolder::Unknown => false,
    }
}

/// Whether the lease may be so young that its grant has not counted it yet, by the clock of the store.
fn is_young(lease: &Lease) -> bool {
    let holder = &lease.holder;
    let left_ms = u64::try_from(holder.expires_in.as_millis()).unwrap_or(u64::MAX);
    let now_ms = holder.expires_at.unix_ms().saturating_sub(left_ms);
    let held_ms = now_ms.saturating_sub(holder.acquired_at.unix_ms());
    Duration::from_millis(held_ms) < UNCOUNTED_MAX - AGE_DIFFERENCE_MAX
}

fn longest(times: &[Duration]) -> Duration {
    times.iter().max().copied().unwrap_or_default()
}
