//! Waiting in the service: which waiter polls the store and when, that no wake-up is lost, and how waits end. The clock
//! is stopped and the store is scripted, so every test is exact to the millisecond.

mod endings;
mod holding;
mod late;
mod many_locks;
mod queueing;
mod repeated;
mod rollback;
mod shares;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Claim, GrantKind, LockState, LockView};
use leasehold::service::{AcquireAnswer, AcquireOutcome, LockService, NotGranted};
use leasehold::store::StoreError;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::fixture::{claim, lock_of, rival};

/// A wait longer than any test.
const LONG_WAIT: Duration = Duration::from_secs(50);
/// The time for a few task switches; shorter than any timer of a second.
const AT_ONCE: Duration = Duration::from_millis(30);

type Answer = Result<AcquireAnswer, StoreError>;

/// A request that waits in a task of its own.
struct Waiting {
    claim: Arc<Claim>,
    answer: JoinHandle<Answer>,
}

impl Waiting {
    fn on(service: &LockService, claim: &Arc<Claim>, wait: Duration) -> Self {
        let (service, claim) = (service.clone(), Arc::clone(claim));
        let asked = Arc::clone(&claim);
        let answer = tokio::spawn(async move { Ok(service.acquire(asked, wait).await?) });
        Self { claim, answer }
    }

    /// Starts to wait, and returns when the claim is in the queue.
    async fn queued(service: &LockService, claim: &Arc<Claim>, wait: Duration) -> Self {
        let waiting = Self::on(service, claim, wait);
        settle().await;
        assert!(!waiting.answer.is_finished(), "it has to wait");
        waiting
    }

    async fn answer(self) -> Answer {
        self.answer.await.unwrap()
    }

    async fn outcome(self) -> AcquireOutcome {
        let answer = self.answer().await.unwrap();
        answer.unclaimed.delivered();
        answer.outcome
    }

    async fn granted(self) {
        let outcome = self.outcome().await;
        assert_eq!(outcome.kind(), Some(GrantKind::New), "{outcome:?}");
    }

    async fn timed_out(self) -> NotGranted {
        match self.outcome().await {
            AcquireOutcome::TimedOut(not_granted) => not_granted,
            other => panic!("{other:?}"),
        }
    }

    /// Disconnects the client.
    async fn hangs_up(self) {
        self.answer.abort();
        assert!(self.answer.await.is_err(), "it has no answer yet");
    }
}

/// Lets all tasks become idle, in less time than any timer needs.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// A lock that is held, and the claim that holds it.
async fn held(service: &LockService) -> Arc<Claim> {
    let holder = Arc::new(claim());
    takes(service, &holder).await;
    holder
}

async fn takes(service: &LockService, claim: &Arc<Claim>) {
    let answer = service.acquire(Arc::clone(claim), Duration::ZERO).await;
    let answer = answer.unwrap();
    assert_eq!(answer.outcome.kind(), Some(GrantKind::New), "{answer:?}");
    answer.unclaimed.delivered();
}

async fn releases(service: &LockService, claim: &Claim) {
    let released = service.release(claim.names.clone(), claim.token, None, |_| {});
    released.await.unwrap();
}

async fn view(service: &LockService, claim: &Claim) -> LockView {
    service.inspect(lock_of(claim)).await.unwrap()
}

/// Asserts that the lock is free and has no waiters.
async fn assert_idle(service: &LockService, claim: &Claim) {
    let view = view(service, claim).await;
    assert_eq!((view.state, view.queue.length), (LockState::Free, 0));
}

fn rivals(holder: &Claim, count: usize) -> Vec<Arc<Claim>> {
    (0..count).map(|_| Arc::new(rival(holder))).collect()
}

fn assert_at_once(since: Instant) {
    assert!(since.elapsed() <= AT_ONCE, "{:?}", since.elapsed());
}
