//! What goes on after the answer: taking back what nobody received, until the store has answered, or until the lease has
//! run out by itself.
//!
//! A release that may not have arrived is *not* repeated here: its client may have posted the token again since, and be
//! told that it holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Inner;
use crate::domain::{Attempt, Claim};

/// Between two tries; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Inner {
    /// Takes back whatever `attempt` was granted.
    pub(super) fn withdraw_in_background(self: &Arc<Self>, claim: Arc<Claim>, attempt: Attempt) {
        let inner = Arc::clone(self);
        self.in_background(async move {
            let give_up = Instant::now() + claim.ttl.get() + inner.operation_timeout;
            let withdrawn = until(give_up, || async {
                let (sent, deadline) = inner.start();
                let answer = inner.store.withdraw(&claim, attempt, deadline).await;
                inner.metrics.withdraw(sent.elapsed(), &answer);
                answer.is_ok()
            })
            .await;
            inner.metrics.withdrawn(withdrawn);
        });
    }

    fn in_background(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
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
