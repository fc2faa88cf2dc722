//! Work that outlives its caller: operations that complete without it, and the clean-up of undelivered grants and abandoned
//! waiters. Clean-up is retried until the store confirms it, or until the TTL makes it unnecessary.
//!
//! Also the periodic checks of the store, and the wait for all of this when the process stops.
//!
//! Rollbacks are by attempt. A release, which is by token, is *not* retried here: its client may have posted the token again
//! since, and hold the lock again. A quorum repeats it at single nodes, for as long as a majority refuses the token.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Fuse, FusedFuture as _, FutureExt as _, join};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::task::TaskTracker;

use super::acquire::Request;
use super::{LockService, ServiceShared};
use crate::backoff::Backoff;
use crate::domain::{Claim, Rollback, SuspendOptions, Suspended};
use crate::limits::{GatePermit, Slot};
use crate::store::StoreError;
use crate::telemetry::traces;

/// The first pause between retries; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Guards a new grant until it is delivered. Dropped before that, it rolls the grant back.
///
/// It rolls back only what this request was granted or took over: any other replay or re-entry belongs to a grant that
/// was delivered before.
#[derive(Debug)]
pub struct UnclaimedLease {
    grant: Option<Box<UndeliveredGrant>>,
}

#[derive(Debug)]
struct UndeliveredGrant {
    request: Request,
    ttl: Duration,
    then: Option<AfterRollback>,
}

/// What follows the rollback of a grant.
pub(super) struct AfterRollback(Box<dyn FnOnce() + Send>);

impl fmt::Debug for AfterRollback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AfterRollback")
    }
}

impl UnclaimedLease {
    /// Guards nothing.
    pub(super) fn nothing() -> Self {
        Self { grant: None }
    }

    /// Guards what this request was granted or took over, which lasts for `ttl`. It occupies no capacity of other
    /// requests, even if the response stays unread for long.
    pub(super) fn grant(request: &Request, ttl: Duration) -> Self {
        request.slot.release();
        Self {
            grant: Some(Box::new(UndeliveredGrant {
                request: request.clone(),
                ttl,
                then: None,
            })),
        }
    }

    /// Calls `then` once the store has rolled the grant back on all of its locks, if it comes to that.
    #[must_use]
    pub fn or_else(mut self, then: impl FnOnce() + Send + 'static) -> Self {
        if let Some(grant) = &mut self.grant {
            grant.then = Some(AfterRollback(Box::new(then)));
        }
        self
    }

    /// The response is on its way: the grant is final.
    pub fn delivered(mut self) {
        self.grant = None;
    }
}

impl Drop for UnclaimedLease {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            let UndeliveredGrant { request, ttl, then } = *grant;
            request.inner.metrics.undelivered();
            request.roll_back_in_background(Rollback::Undo, ttl, then);
        }
    }
}

/// An operation that continues as a background task when this is dropped before its completion.
///
/// A client that disconnects must not cancel a store operation halfway: its outcome would be unknown, and its grant
/// would be lost.
pub(super) struct Detached<T: Send + 'static> {
    /// Terminated once it has completed.
    operation: Fuse<BoxFuture<'static, T>>,
    background: TaskTracker,
    /// Held until the operation completes, here or in the background.
    slot: Slot,
}

impl<T: Send + 'static> Detached<T> {
    pub(super) fn new(
        service: &LockService,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        let operation = match traces::current() {
            // In the background, too, it is part of its request.
            Some(scope) => scope.around(operation).boxed(),
            None => operation.boxed(),
        };
        Self {
            operation: operation.fuse(),
            background: service.inner.background.clone(),
            slot: service.slot.clone(),
        }
    }

    /// The completion of the operation, to wait for.
    pub(super) fn completion(&mut self) -> &mut Fuse<BoxFuture<'static, T>> {
        &mut self.operation
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        // An operation that panicked has ended; polling it again would panic again.
        if self.operation.is_terminated() || std::thread::panicking() {
            return;
        }
        // Outside of a runtime the process is exiting, and the operation cannot continue.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let operation = std::mem::replace(&mut self.operation, Fuse::terminated());
            let slot = std::mem::take(&mut self.slot);
            let operation = async move {
                operation.await;
                drop(slot);
            };
            self.background.spawn_on(operation, &runtime);
        }
    }
}

impl Request {
    /// Rolls back what this request was granted or took over, which lasts for `ttl`. Each attempt has the slot, so that
    /// requests of disconnected clients cannot pile up.
    pub(super) fn roll_back_in_background(
        self,
        rollback: Rollback,
        ttl: Duration,
        then: Option<AfterRollback>,
    ) {
        let inner = Arc::clone(&self.inner);
        inner.in_background(async move {
            let ended = self.roll_back(rollback, ttl).await;
            if let Some(AfterRollback(then)) = then
                && ended == self.claim.names.len()
            {
                then();
            }
            drop(self.slot);
        });
    }

    /// Releases what the closed stream of this request held, unless a later request with the same token has received
    /// the lease. `ttl` is the TTL that the stream reported last, which may differ from the claim's. Returns whether a
    /// lease is known to have been released.
    pub(super) async fn release_on_close(&self, ttl: Duration) -> bool {
        let ended = self.roll_back(Rollback::Close, ttl).await;
        self.inner.queues.recheck(self.claim.token);
        ended > 0
    }

    /// Ends what this request may roll back, with retries until `ttl` is over: by then the lease has expired. Returns how
    /// many leases that is known to have ended.
    pub(super) async fn roll_back(&self, rollback: Rollback, ttl: Duration) -> usize {
        let inner = &self.inner;
        let give_up_at = Instant::now() + ttl + inner.operation_timeout;
        let slot = (rollback != Rollback::Close).then_some(&self.slot);
        let ended = retry_until(give_up_at, slot, || async {
            let _permits = self.admit_rollback(rollback).await;
            let (sent, deadline) = inner.start();
            let withdraw = async {
                let store = &inner.store;
                let withdrawn = store.withdraw(&self.claim, self.attempt, rollback, deadline);
                let answer = withdrawn.await;
                let took = sent.elapsed();
                inner.metrics.store.operation("withdraw", took, &answer);
                answer
            };
            match self.may_be_kept_by_others() {
                // One after the other: a later request that has the lease counts it in any case, so between the two there
                // must be no moment in which it is not counted.
                true => {
                    let answer = withdraw.await;
                    if answer.is_ok() && !self.is_held(deadline).await {
                        Box::pin(self.uncount(rollback, deadline)).await;
                    }
                    answer
                }
                false => {
                    let uncount = Box::pin(self.uncount(rollback, deadline));
                    join(uncount, withdraw).await.1
                }
            }
        })
        .await;
        inner.metrics.withdrawn(ended.is_some());
        ended.unwrap_or_default()
    }

    /// Leaves the queue, with retries until the place has expired by itself. The answer is not used.
    pub(super) async fn leave_queue(&self) {
        let inner = &self.inner;
        let give_up_at = Instant::now() + inner.waiting.place_kept + inner.operation_timeout;
        retry_until(give_up_at, Some(&self.slot), || async {
            if inner.queues.is_attached(&self.claim) {
                // The client is back, and its claim leaves the queue with that request.
                return Ok(());
            }
            let (_, deadline) = inner.start();
            let suspended = inner.suspend(&self.claim, false, deadline).await;
            suspended.map(drop)
        })
        .await;
    }

    /// Waits until the rollback may be sent. What streams release when they close counts in their peer's share; the
    /// rollback of a grant is within the slot of its request.
    async fn admit_rollback(&self, rollback: Rollback) -> [Option<GatePermit>; 2] {
        let of_peer = match (rollback, self.slot.peer()) {
            (Rollback::Close, Some(peer)) => peer.closings.pass_without_deadline(1).await,
            (Rollback::Close, None) | (Rollback::Undo | Rollback::Refuse, _) => None,
        };
        [of_peer, self.inner.rollbacks.pass_without_deadline(1).await]
    }
}

impl LockService {
    /// Refreshes the store's health and sweeps the store, as often as the store wants, for ever. Run it as a task.
    pub async fn run_checks(&self) -> Infallible {
        let inner = &*self.inner;
        let every = inner.store.check_interval();
        let checks = async {
            let mut ticks = ticks(every);
            loop {
                ticks.tick().await;
                inner.store.refresh_health().await;
                inner.metrics.store.health(&inner.store.health());
                inner.metrics.acquires.waiters(inner.queues.counts());
            }
        };
        // Two loops, because a long sweep must not delay the detection of data loss.
        let sweeps = async {
            let mut ticks = ticks(every);
            loop {
                ticks.tick().await;
                inner.store.sweep().await;
            }
        };
        tokio::select! {
            never = checks => never,
            never = sweeps => never,
        }
    }

    /// Waits until all background tasks have ended, or `grace` is over, and likewise until the store is closed.
    pub async fn shut_down(&self, grace: Duration) {
        self.inner.background.close();
        let finished = tokio::time::timeout(grace, self.inner.background.wait()).await;
        if finished.is_err() {
            tracing::warn!(
                unfinished = self.inner.background.len(),
                "the store did not answer in time; leases that may be orphaned end with their TTL"
            );
        }
        // A disk may hang for ever.
        let closed = tokio::time::timeout(grace, self.inner.store.close()).await;
        if closed.is_err() {
            tracing::warn!("the store could not write what was left in time");
        }
    }
}

impl ServiceShared {
    /// Leaves the queue and keeps the place.
    pub(super) async fn suspend(
        &self,
        claim: &Claim,
        lists_conflicts: bool,
        deadline: Instant,
    ) -> Result<Suspended, StoreError> {
        let sent = Instant::now();
        let options = SuspendOptions {
            keep: self.waiting.place_kept,
            lists_conflicts,
        };
        let suspended = self.store.suspend(claim, options, deadline).await;
        self.metrics
            .store
            .operation("park", sent.elapsed(), &suspended);
        if let Ok(Suspended { blocked_by, .. }) = &suspended {
            self.listed_holders.conflicts(blocked_by);
        }
        // A newer request for the same claim was removed from the queue too, and must enqueue again.
        self.queues.recheck(claim.token);
        suspended
    }

    /// Runs what the current request leaves behind, as a part of its trace.
    pub(super) fn in_background(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.in_background_untraced(traces::inherit(task));
    }

    /// Runs what lasts much longer than the current request, and would be a trace that does not end.
    pub(super) fn in_background_untraced(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        // Outside of a runtime the process is exiting; the lease ends with its TTL.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.background.spawn_on(task, &runtime);
        }
    }
}

/// Retries with back-off until `attempt` succeeds or `give_up_at` is reached. Returns its answer if it succeeded.
///
/// Each attempt has the slot. Between two of them others have it, because a store that fails may do so for long, and they
/// may need another part of it, such as another primary of a cluster.
async fn retry_until<T, F: Future<Output = Result<T, StoreError>>>(
    give_up_at: Instant,
    slot: Option<&Slot>,
    mut attempt: impl FnMut() -> F,
) -> Option<T> {
    let mut backoff = Backoff::default();
    loop {
        if let Some(slot) = slot {
            slot.retake().await;
        }
        if let Ok(answer) = attempt().await {
            return Some(answer);
        }
        if let Some(slot) = slot {
            slot.release();
        }
        let pause = backoff.next(PAUSE_MIN, PAUSE_MAX);
        if Instant::now() + pause >= give_up_at {
            return None;
        }
        tokio::time::sleep(pause).await;
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
