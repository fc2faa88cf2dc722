//! What goes on after the answer: taking back what nobody received, and stepping out of queues that nobody waits in, until
//! the store has answered, or until it has come about by itself.
//!
//! Everything here goes by attempt. A release, which goes by token, is *not* repeated: its client may have posted the token
//! again since, and be told that it holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ServiceShared;
use super::acquire::Request;
use crate::domain::{Attempt, Claim, Rollback, Suspended};
use crate::store::StoreError;

/// Between two tries; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Request {
    /// Takes back whatever this request was granted or took over, which lasts for `ttl`. Until then it takes up room, so that
    /// requests whose clients are gone cannot pile up.
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
    /// Takes back whatever `attempt` was granted, however often that takes.
    pub(super) async fn withdraw(&self, claim: &Claim, attempt: Attempt) {
        self.roll_back(claim, attempt, Rollback::Undo, claim.ttl.get())
            .await;
    }

    /// Ends whatever `attempt` may roll back, however often that takes. After `ttl` the lease has ended by itself.
    async fn roll_back(&self, claim: &Claim, attempt: Attempt, rollback: Rollback, ttl: Duration) {
        let give_up = Instant::now() + ttl + self.operation_timeout;
        let withdrawn = until(give_up, || async {
            let (_, deadline) = self.start();
            let Some(_turn) = self.rollbacks.pass(1, deadline).await else {
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

    /// Steps out of the queue and keeps the place.
    pub(super) async fn suspend(
        &self,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<Suspended, StoreError> {
        let turn = self.turn_of_several(claim, deadline).await?;
        let sent = Instant::now();
        let parked = self
            .store
            .suspend(claim, self.waiting.place_kept, deadline)
            .await;
        drop(turn);
        self.metrics.suspend(sent.elapsed(), &parked);
        // Whoever has come meanwhile with the same claim was put out of the queue too, and is to stand there again.
        self.queues.recheck(claim.token);
        parked
    }

    /// Steps out of the queue, however often that takes. After a while the place is forgotten by itself.
    pub(super) async fn suspend_until_done(&self, claim: &Claim) {
        let give_up = Instant::now() + self.waiting.place_kept + self.operation_timeout;
        until(give_up, || async {
            let (_, deadline) = self.start();
            self.suspend(claim, deadline).await.is_ok()
        })
        .await;
    }

    /// Gives up what a closed stream held, unless a later request with the same token was told of it. `ttl` is how long
    /// its lease lasted when it was told of it last, which need not be what the claim asks for.
    pub(super) async fn release_on_close(&self, claim: &Claim, attempt: Attempt, ttl: Duration) {
        self.roll_back(claim, attempt, Rollback::Close, ttl).await;
        self.queues.recheck(claim.token);
    }

    pub(super) fn in_background(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        // Outside of a runtime the process is ending; the lease ends with its TTL.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.background.spawn_on(task, &runtime);
        }
    }
}

/// Tries again and again until it worked or `give_up` has come. Says whether it worked.
async fn until<F: Future<Output = bool>>(give_up: Instant, mut attempt: impl FnMut() -> F) -> bool {
    let mut pause = PAUSE_MIN;
    loop {
        if attempt().await {
            return true;
        }
        if Instant::now() + pause >= give_up {
            return false;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
