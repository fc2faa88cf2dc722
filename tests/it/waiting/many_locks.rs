//! Claims that wait for many locks, each of which is as much load for the store as many claims.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::Claim;
use leasehold::limits::{Gate, Limit, Slot};
use leasehold::service::{AcquireOutcome, LockService, QueueFull};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{LONG_WAIT, Waiting, rivals, settle, takes};
use crate::support::fixture::{claim_on_all, fresh_name, names, rival};
use crate::support::scripted_store::{Behavior, ScriptedStore};

/// A claim on this many locks, which are held by another claim.
async fn wanting(service: &LockService, locks: usize) -> Arc<Claim> {
    let locks: Vec<_> = (0..locks).map(|_| fresh_name()).collect();
    let holder = Arc::new(claim_on_all(names(&locks)));
    takes(service, &holder).await;
    Arc::new(rival(&holder))
}

/// A poll of n locks keeps the store busy n times as long.
#[tokio::test(start_paused = true)]
async fn claims_on_many_locks_poll_proportionally_less_often() {
    const CLAIMS: usize = 60;
    const LOCKS: usize = 50;
    let (service, store) = ScriptedStore::service();
    let mut waiting = Vec::new();
    for _ in 0..CLAIMS {
        let wanting = wanting(&service, LOCKS).await;
        waiting.push(Waiting::queued(&service, &wanting, LONG_WAIT).await);
    }
    sleep(Duration::from_secs(15)).await;
    let before = store.polls();
    sleep(Duration::from_secs(20)).await;
    let locks_a_second = (store.polls() - before) * LOCKS / 20;
    assert!((200..=1_250).contains(&locks_a_second), "{locks_a_second}");
}

/// Each of them counts for all of its locks.
#[tokio::test(start_paused = true)]
async fn only_a_few_claims_on_very_many_locks_poll_at_a_time() {
    const TAKES: Duration = Duration::from_millis(100);
    // Operations as heavy as these share three quarters of it: 1,050, in which four of them find room.
    let gate = Gate::new(1_400);
    let (service, store) = ScriptedStore::service();
    let wanting = wanting(&service, 64).await;
    store.next(std::iter::repeat_n(Behavior::Late(TAKES), 20));
    let mut waiting = Vec::new();
    for claim in rivals(&wanting, 20) {
        let (service, gate) = (service.clone(), gate.clone());
        waiting.push(tokio::spawn(async move {
            let deadline = Instant::now() + LONG_WAIT;
            let slot = Slot::take((&gate, Limit::Operations), None, None, || 256, deadline);
            let service = service.within(slot.await.expect("in time"));
            service.acquire(claim, LONG_WAIT).await
        }));
    }
    for round in 1..=5 {
        settle().await;
        assert_eq!(store.polls(), 4 * round, "256 locks at a time");
        sleep(TAKES - Duration::from_millis(1)).await;
    }
    waiting.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_claim_takes_a_place_for_each_of_its_locks() {
    let (service, _) = ScriptedStore::service_with(|config| config.waiters_max = 5);
    let wanting = wanting(&service, 3).await;
    let _first = Waiting::queued(&service, &wanting, LONG_WAIT).await;
    let second = Waiting::on(&service, &Arc::new(rival(&wanting)), LONG_WAIT);
    let refused = AcquireOutcome::TooManyWaiters(QueueFull::Process { waiters: 3 });
    assert_eq!(second.outcome().await, refused);
    let on_one = claim_on_all(wanting.names[0].clone().into());
    let _third = Waiting::queued(&service, &Arc::new(on_one), LONG_WAIT).await;
}
