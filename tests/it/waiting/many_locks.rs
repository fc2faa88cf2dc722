//! Claims that wait for many locks, each of which is as much work for the store as many claims.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::Claim;
use leasehold::service::{AcquireOutcome, LockService, QueueFull};
use tokio::time::sleep;

use super::staged::{Fate, Staged};
use super::{LONG_WAIT, Waiting, rivals, settle, takes};
use crate::support::fixture::{claim_on_all, fresh_name, names, rival};

/// A claim on so many locks, which are held.
async fn wanting(service: &LockService, locks: usize) -> Arc<Claim> {
    let locks: Vec<_> = (0..locks).map(|_| fresh_name()).collect();
    let holder = Arc::new(claim_on_all(names(&locks)));
    takes(service, &holder).await;
    Arc::new(rival(&holder))
}

/// An ask of theirs takes the store as many times as long.
#[tokio::test(start_paused = true)]
async fn claims_on_many_locks_ask_as_much_less_often() {
    const CLAIMS: usize = 60;
    const LOCKS: usize = 50;
    let (service, store) = Staged::service();
    let mut waiting = Vec::new();
    for _ in 0..CLAIMS {
        let wanting = wanting(&service, LOCKS).await;
        waiting.push(Waiting::standing(&service, &wanting, LONG_WAIT).await);
    }
    sleep(Duration::from_secs(15)).await;
    let before = store.asks();
    sleep(Duration::from_secs(20)).await;
    let locks_a_second = (store.asks() - before) * LOCKS / 20;
    assert!((200..=1_250).contains(&locks_a_second), "{locks_a_second}");
}

/// Nothing else bounds what claims ask that wait already, or how many begin to at the same time.
#[tokio::test(start_paused = true)]
async fn of_claims_on_very_many_locks_a_few_ask_at_a_time() {
    const TAKES: Duration = Duration::from_millis(100);
    let (service, store) = Staged::service();
    let wanting = wanting(&service, 64).await;
    store.next([Fate::Late(TAKES); 20]);
    let waiting: Vec<_> = rivals(&wanting, 20)
        .iter()
        .map(|claim| Waiting::on(&service, claim, LONG_WAIT))
        .collect();
    for turn in 1..=5 {
        settle().await;
        assert_eq!(store.asks(), 4 * turn, "256 locks at a time");
        sleep(TAKES - Duration::from_millis(1)).await;
    }
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn a_claim_takes_a_place_for_each_of_its_locks() {
    let (service, _) = Staged::service_with(|config| config.waiters_max = 5);
    let wanting = wanting(&service, 3).await;
    let _first = Waiting::standing(&service, &wanting, LONG_WAIT).await;
    let second = Waiting::on(&service, &Arc::new(rival(&wanting)), LONG_WAIT);
    let refused = AcquireOutcome::TooManyWaiters(QueueFull::Process { waiters: 3 });
    assert_eq!(second.outcome().await, refused);
    let on_one = claim_on_all(wanting.names[0].clone().into());
    let _third = Waiting::standing(&service, &Arc::new(on_one), LONG_WAIT).await;
}
