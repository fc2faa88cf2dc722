//! Two requests with the same token at the same moment, which make a lease final before it is counted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold::domain::{Claim, Refused, RenewOptions, Renewed, UNCOUNTED_MAX};
use leasehold::service::AcquireOutcome;
use leasehold::store::LockStore;
use leasehold::store::memory::MemoryStore;
use reqwest::Method;
use tokio::time::Instant;

use super::team::{OF_PRINCIPAL, Team};
use super::{hold, is_free, within_quota};
use crate::support::fixture::{claim, deadline, lock_of, ttl};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};
use crate::support::{eventually, stores};

const LOCKS: usize = 40;
const WAITERS: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_quota_is_not_exceeded_by_two_requests_with_one_token() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let team = Team::on(&format!("redis://{}", redis.address()), OF_PRINCIPAL);
    let mut held = Vec::new();
    team.fill(&mut held).await;
    for second in [Method::POST, Method::PUT] {
        for number in 0..LOCKS {
            let token = uuid::Uuid::new_v4().to_string();
            let path = format!("{second}/{number}?ttl=60s");
            let processes = [number % 3, (number + 1) % 3];
            let first = team.send(processes[0], Method::POST, &path, &token);
            let second = team.send(processes[1], second.clone(), &path, &token);
            let (first, second) = join(first, second).await;
            assert_eq!(first.status(), 429, "lock {number}");
            assert!(
                second.status().is_client_error(),
                "lock {number}: {second:?}"
            );
        }
    }
}

/// Only when a claim's turn comes, its grant is counted. A lock that nobody holds but that is still closed lets it wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_quota_is_not_exceeded_by_renewals_of_claims_that_wait() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let team = Team::on(&format!("redis://{}", redis.address()), OF_PRINCIPAL);
    for number in 0..WAITERS {
        let token = uuid::Uuid::new_v4().to_string();
        let path = format!("closed/{number}?ttl=60s&min_hold=4s");
        let acquired = team.send(0, Method::POST, &path, &token).await;
        assert_eq!(acquired.status(), 201);
        let path = format!("closed/{number}");
        let released = team.send(0, Method::DELETE, &path, &token).await;
        assert_eq!(released.status(), 204);
    }
    let mut held = Vec::new();
    team.fill(&mut held).await;
    let waiting = (0..WAITERS).map(async |number| {
        let token = uuid::Uuid::new_v4().to_string();
        let waits = format!("closed/{number}?ttl=60s&wait=20s");
        let waiting = team.send(number % 3, Method::POST, &waits, &token);
        let path = format!("closed/{number}");
        let renewing = async {
            loop {
                let process = (number + 1) % 3;
                drop(team.send(process, Method::PUT, &path, &token).await);
            }
        };
        let refused = tokio::select! {
            refused = waiting => refused,
            () = renewing => unreachable!("it goes on"),
        };
        assert_eq!(refused.status(), 429, "lock {number}");
        eventually("it is rolled back", async || {
            let renewed = team.send(0, Method::PUT, &path, &token).await;
            (!renewed.status().is_success()).then_some(())
        })
        .await;
    });
    join_all(waiting).await;
}

/// A store whose count is this much late.
fn counting_after(memory: &Arc<MemoryStore>, delay: Duration) -> Arc<ScriptedStore> {
    let store = ScriptedStore::on(Arc::clone(memory));
    Arc::new(store.with(Operation::CountLeases, Behavior::Delayed(delay)))
}

#[tokio::test(start_paused = true)]
async fn a_renewal_before_the_grant_is_counted_does_not_keep_it() {
    assert_is_not_kept_by_a_renewal(Duration::ZERO).await;
}

/// The renewal does not wait for so long.
#[tokio::test(start_paused = true)]
async fn a_renewal_whose_count_is_late_does_not_keep_what_is_not_counted() {
    assert_is_not_kept_by_a_renewal(Duration::from_millis(100)).await;
}

/// The grant is counted so late at one process that a renewal at another one certainly comes before.
async fn assert_is_not_kept_by_a_renewal(counted_after: Duration) {
    let memory = Arc::new(MemoryStore::new(100_000));
    let others = stores::service(Arc::clone(&memory) as Arc<dyn LockStore>);
    let store = counting_after(&memory, counted_after);
    let here = within_quota(&stores::service(store as Arc<dyn LockStore>), 1);
    let store = counting_after(&memory, Duration::from_millis(500));
    let there = within_quota(
        &stores::service(Arc::clone(&store) as Arc<dyn LockStore>),
        1,
    );

    let held = claim();
    assert!(hold(&others, &held).await);
    assert!(hold(&here, &claim()).await, "the quota has room for one");
    let names = held.names.clone();
    let waiting = Claim { names, ..claim() };
    let acquiring = there.acquire(Arc::new(waiting.clone()), Duration::from_secs(30));
    let renewing = async {
        eventually("it waits", async || {
            let view = store.store.inspect(lock_of(&held), deadline()).await;
            (view.unwrap().queue.length == 1).then_some(())
        })
        .await;
        let released = others
            .release(held.names.clone(), held.token, None, |_| {})
            .await;
        released.expect("the store answers");
        eventually("a renewal finds it granted", async || {
            let options = RenewOptions::default();
            let renewed = here.renew(waiting.names.clone(), waiting.token, options);
            matches!(renewed.await, Ok(Renewed::Extended(_))).then_some(())
        })
        .await;
    };
    let (refused, ()) = join(acquiring, renewing).await;
    let refused = refused.expect("the store answers").outcome;
    assert!(
        matches!(
            refused,
            AcquireOutcome::Refused(Refused::TooManyLeases { .. })
        ),
        "{refused:?}"
    );
    eventually("it is rolled back", async || {
        is_free(&store, &waiting).await.then_some(())
    })
    .await;
}

/// Each request finds the lease of the former one, which is about to be rolled back. Passed on until it is old, the lease
/// would be kept, and then counted although there is no room.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_sent_again_and_again_is_refused_for_as_long_as_there_is_no_room() {
    let memory = Arc::new(MemoryStore::new(100_000));
    let late = Behavior::Delayed(Duration::from_millis(120));
    let store = ScriptedStore::on(memory).with(Operation::Withdraw, late);
    let store = Arc::new(store);
    let service = stores::service(Arc::clone(&store) as Arc<dyn LockStore>);
    let service = within_quota(&service, 1);
    let lasting = |claim: Claim| Claim {
        ttl: ttl(Duration::from_secs(600)),
        ..claim
    };
    assert!(hold(&service, &lasting(claim())).await);
    let repeated = lasting(claim());
    let until = Instant::now() + UNCOUNTED_MAX * 2;
    while Instant::now() < until {
        assert!(!hold(&service, &repeated).await, "there is no room");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually("it is rolled back", async || {
        is_free(&store, &repeated).await.then_some(())
    })
    .await;
}
