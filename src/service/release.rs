//! Releases and evictions. Both complete, and report what they did, even if their caller has disconnected.

use std::sync::Arc;

use super::LockService;
use super::acquire::subtract_elapsed;
use super::background::Detached;
use super::lease_counts::CountedBefore;
use crate::domain::{
    Evicted, HoldCount, LockName, LockNames, Released, RollbackRight, StepBack, Token,
};
use crate::store::StoreError;
use crate::telemetry::traces;

impl LockService {
    /// Ends a claim on each of these locks, or reduces its hold count. A waiting claim leaves the queue. `then` gets what
    /// the store did as soon as that is known, even if the caller has gone.
    ///
    /// # Errors
    /// The store failed. If the outcome is unknown, the claim may or may not hold until the release is repeated. `then` is
    /// not called, unless only the answer came too late.
    ///
    /// # Cancel safety
    /// If the future is dropped, the operation still completes, and `then` is called.
    pub async fn release(
        &self,
        names: LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        then: impl FnOnce(&[Released]) + Send + 'static,
    ) -> Result<Vec<Released>, StoreError> {
        let (inner, leases) = (Arc::clone(&self.inner), self.slot.leases().cloned());
        Detached::new(self, async move {
            let (sent, deadline) = inner.start();
            if let Some(scope) = traces::current() {
                inner.queues.releasing(&names, scope.context());
            }
            let claim = (&*names, token);
            let mut counted_before = None;
            if let (Some(leases), Some(_)) = (&leases, hold_count) {
                let before = Box::pin(inner.count_before(leases, claim)).await;
                counted_before = Some(before);
            }
            let step_back = hold_count.map(|hold_count| StepBack {
                hold_count,
                rollback_right: counted_before
                    .map_or(RollbackRight::Never, CountedBefore::rollback_right),
            });
            let answer = inner
                .store
                .release(&names, token, step_back, deadline)
                .await;
            inner.metrics.release(sent.elapsed(), &answer);
            if let Some(scope) = traces::current().filter(|_| !may_have_freed(&answer)) {
                inner.queues.not_released(&names, scope.context());
            }
            inner.queues.recheck(token);
            if let (Some(leases), Err(StoreError::Unavailable { .. })) = (&leases, &answer) {
                Box::pin(inner.uncount_before(leases, claim, counted_before)).await;
            }
            let mut released = answer?;
            then(&released);
            if let Some(leases) = &leases {
                Box::pin(inner.recount_released(leases, claim, counted_before, &released)).await;
            }
            let held = released.iter_mut().filter_map(|released| match released {
                Released::SteppedBack(lease) => Some(lease),
                Released::Freed { .. }
                | Released::LeftQueue
                | Released::Repeated
                | Released::NotHolder(_) => None,
            });
            subtract_elapsed(held, sent)?;
            Ok(released)
        })
        .completion()
        .await
    }

    /// Evicts all holders of the lock and returns them. `then` gets them as soon as they are known, even if the caller has
    /// gone.
    ///
    /// # Errors
    /// The store failed, and no holder is known to have been evicted. `then` is not called.
    ///
    /// # Cancel safety
    /// If the future is dropped, the operation still completes, and `then` is called.
    pub async fn evict(
        &self,
        name: LockName,
        reason: String,
        then: impl FnOnce(&Evicted) + Send + 'static,
    ) -> Result<Evicted, StoreError> {
        let inner = Arc::clone(&self.inner);
        Detached::new(self, async move {
            let (sent, deadlines) = inner.start_long();
            if let Some(scope) = traces::current() {
                let names = std::slice::from_ref(&name);
                inner.queues.releasing(names, scope.context());
            }
            let answer = inner.store.evict(&name, &reason, deadlines).await;
            inner.metrics.evict(sent.elapsed(), &answer);
            if let Some(scope) = traces::current().filter(|_| !may_have_evicted(&answer)) {
                let names = std::slice::from_ref(&name);
                inner.queues.not_released(names, scope.context());
            }
            if let Ok(evicted) = &answer {
                then(evicted);
            }
            answer
        })
        .completion()
        .await
    }
}

/// Whether a lock may be free now that was not.
fn may_have_freed(answer: &Result<Vec<Released>, StoreError>) -> bool {
    match answer {
        Ok(released) => released
            .iter()
            .any(|released| matches!(released, Released::Freed { .. })),
        Err(error) => matches!(error, StoreError::Unknown { .. }),
    }
}

fn may_have_evicted(answer: &Result<Evicted, StoreError>) -> bool {
    match answer {
        Ok(evicted) => evicted.holders.total > 0 || !evicted.is_complete,
        Err(error) => matches!(error, StoreError::Unknown { .. }),
    }
}
