//! Background clean-up: rolls back undelivered grants and dequeues abandoned waiters, retrying until the store confirms
//! or the TTL makes it moot.
//!
//! Rollbacks are by attempt. A release, which is by token, is *not* retried: its client may have posted the token again
//! since, and hold the lock again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ServiceShared;
use super::acquire::Request;
use crate::domain::{Attempt, Claim, Rollback, Suspended};
use crate::store::StoreError;

/// The first pause between retries; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Request {
    /// Rolls back what this request was granted or took over, which lasts for `ttl`. Keeps the slot until done, so that
    /// requests of disconnected clients cannot pile up.
    pub(super) fn withdraw_in_background(self, ttl: Duration) {
        let inner = Arc::clone(&self.inner);
        inner.in_background(async move {
            let (claim, attempt) = (&self.claim, self.attempt);
            let undo = self.inner.roll_back(claim, attempt, Rollback::Undo, ttl);
            undo.await;
            drop(self.slot);
        });
    }
}

impl ServiceShared {
    /// Rolls back what `attempt` was granted, with retries.
    pub(super) async fn withdraw(&self, claim: &Claim, attempt: Attempt) {
        self.roll_back(claim, attempt, Rollback::Undo, claim.ttl.get())
            .await;
    }

    /// Ends what `attempt` may roll back, with retries until `ttl` is over: by then the lease has expired.
    async fn roll_back(&self, claim: &Claim, attempt: Attempt, rollback: Rollback, ttl: Duration) {
        let give_up_at = Instant::now() + ttl + self.operation_timeout;
        let withdrawn = retry_until(give_up_at, || async {
            let (_, deadline) = self.start();
            let Some(_permit) = self.rollbacks.pass(1, deadline).await else {
                return false;
            };
            let sent = Instant::now();
            let withdrawn = self.store.withdraw(claim, attempt, rollback, deadline);
            let answer = withdrawn.await;
            self.metrics.withdraw(sent.elapsed(), &answer);
            answer.is_ok()
        })
        .await;
        self.metrics.withdrawn(withdrawn);
    }

    /// Leaves the queue and keeps the place.
    pub(super) async fn suspend(
        &self,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<Suspended, StoreError> {
        let permit = self.admit_several(claim, deadline).await?;
        let sent = Instant::now();
        let suspended = self
            .store
            .suspend(claim, self.waiting.place_kept, deadline)
            .await;
        drop(permit);
        self.metrics.suspend(sent.elapsed(), &suspended);
        // A newer request for the same claim was removed from the queue too, and must enqueue again.
        self.queues.recheck(claim.token);
        suspended
    }

    /// Leaves the queue, with retries until the place has expired by itself.
    pub(super) async fn suspend_until_done(&self, claim: &Claim) {
        let give_up_at = Instant::now() + self.waiting.place_kept + self.operation_timeout;
        retry_until(give_up_at, || async {
            let (_, deadline) = self.start();
            self.suspend(claim, deadline).await.is_ok()
        })
        .await;
    }

    /// Releases what a closed stream held, unless a later request with the same token has received the lease. `ttl` is
    /// the TTL that the stream reported last, which may differ from the claim's.
    pub(super) async fn release_on_close(&self, claim: &Claim, attempt: Attempt, ttl: Duration) {
        self.roll_back(claim, attempt, Rollback::Close, ttl).await;
        self.queues.recheck(claim.token);
    }

    pub(super) fn in_background(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        // Outside of a runtime the process is exiting; the lease ends with its TTL.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.background.spawn_on(task, &runtime);
        }
    }
}

/// Retries with back-off until `attempt` succeeds or `give_up_at` is reached. Returns whether it succeeded.
async fn retry_until<F: Future<Output = bool>>(
    give_up_at: Instant,
    mut attempt: impl FnMut() -> F,
) -> bool {
    let mut pause = PAUSE_MIN;
    loop {
        if attempt().await {
            return true;
        }
        if Instant::now() + pause >= give_up_at {
            return false;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
