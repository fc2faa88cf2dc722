//! The quota of leases: what real processes with one store permit together, and what happens while the store does not
//! count. `contract::counting` has the count itself, `api::rules::quotas` the answers.

mod both;
mod ended;
mod hostile;
mod kept;
mod team;
mod twice;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{Claim, LeaseQuota, LeasesOf, LockState, Refused, RenewOptions, Renewed};
use leasehold::limits::{LeaseBudget, LeaseCount, Slot};
use leasehold::service::{AcquireOutcome, LockService};
use leasehold::store::{LockStore, StoreError};
use reqwest::Method;
use tokio::time::Instant;

use self::team::{LOCKS_MAX, LOCKS_MAX_OF_ALL, OF_ALL, OF_PRINCIPAL, Team, Tested};
use crate::support::cluster::RedisCluster;
use crate::support::eventually;
use crate::support::fixture::{claim, deadline, lock_of};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore, unavailable};
use crate::support::stores;

/// Fails unless as many locks are held over three processes as the quota permits, and never more than `most`.
async fn assert_counted_together(store: &str, tested: Tested, most: usize) {
    let mut team = Team::on(store, tested);
    let acquiring = (0..tested.locks_max + 25).map(|number| team.acquire(number % 3, "60s"));
    let mut held: Vec<_> = join_all(acquiring).await.into_iter().flatten().collect();
    let refused = team.fill(&mut held).await;
    assert!(held.len() <= most, "{} at once", held.len());
    for process in 0..3 {
        assert!(team.refused(process).await > 0.0);
    }
    eventually("what was refused is free", async || {
        let state = team.send(0, Method::GET, &refused, "").await;
        let state: serde_json::Value = state.json().await.unwrap();
        (state["state"] == "free").then_some(())
    })
    .await;

    // Whichever process does it, what is held is kept, and what is released makes room.
    for (number, (name, token)) in held.iter().enumerate() {
        let renewed = team.send(number % 3, Method::PUT, name, token).await;
        assert_eq!(renewed.status(), 200);
    }
    for (number, (name, token)) in held.iter().enumerate() {
        let released = team.send(number % 3, Method::DELETE, name, token).await;
        assert_eq!(released.status(), 204);
    }
    for number in 0..tested.locks_max {
        let acquiring = async || team.acquire(number % 3, "2s").await.ok();
        eventually("there is room", acquiring).await;
    }

    // A process that is killed leaves nothing behind but leases, which run out.
    team.processes.pop();
    let mut held = Vec::new();
    team.fill(&mut held).await;
    assert!(held.len() <= most, "{} at once", held.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_one_redis_count_together() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    assert_counted_together(&store, OF_PRINCIPAL, LOCKS_MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_one_redis_count_the_locks_of_all_together() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    assert_counted_together(&store, OF_ALL, LOCKS_MAX_OF_ALL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_a_cluster_count_together() {
    let cluster = RedisCluster::start(3, RedisOptions::forgetful()).await;
    assert_counted_together(&cluster.url(), OF_PRINCIPAL, LOCKS_MAX).await;
    assert_counted_together(&cluster.url(), OF_ALL, LOCKS_MAX_OF_ALL).await;
}

/// Of three nodes, each lease is counted by two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_a_quorum_count_together() {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(RedisServer::start(RedisOptions::forgetful()).await);
    }
    let urls: Vec<_> = nodes
        .iter()
        .map(|node| format!("redis://{}", node.address()))
        .collect();
    let store = format!("quorum:{}", urls.join(","));
    assert_counted_together(&store, OF_PRINCIPAL, LOCKS_MAX * 3 / 2).await;
}

/// The service for a principal that may hold this many locks, on a store to which this happens when it counts.
fn service(leases_max: usize, counting: Behavior) -> (LockService, Arc<ScriptedStore>) {
    let store = Arc::new(ScriptedStore::default().with(Operation::CountLeases, counting));
    let service = stores::service(Arc::clone(&store) as Arc<dyn LockStore>);
    (within_quota(&service, leases_max), store)
}

fn within_quota(service: &LockService, leases_max: usize) -> LockService {
    let quota = LeaseQuota {
        of: LeasesOf::Principal("team".into()),
        leases_max,
    };
    within(service, Some(quota), None)
}

/// The service for requests to which these quotas apply.
fn within(
    service: &LockService,
    of_principal: Option<LeaseQuota>,
    of_all: Option<LeaseQuota>,
) -> LockService {
    let [of_principal, of_all] = [of_principal, of_all].map(|quota| quota.map(LeaseCount::new));
    let leases = LeaseBudget::of(of_principal.as_ref(), of_all.as_ref());
    service.within(Slot::default().with_quota(None, leases))
}

async fn is_free(store: &ScriptedStore, claim: &Claim) -> bool {
    let view = store.store.inspect(lock_of(claim), deadline()).await;
    view.unwrap().state == LockState::Free
}

async fn hold(service: &LockService, claim: &Claim) -> bool {
    let answer = service
        .acquire(Arc::new(claim.clone()), Duration::ZERO)
        .await;
    let answer = answer.expect("the store answers");
    let is_granted = matches!(answer.outcome, AcquireOutcome::Granted(_));
    answer.unclaimed.delivered();
    is_granted
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_counted_is_not_granted() {
    let (service, store) = service(1, Behavior::Fails(unavailable()));
    let claim = claim();
    let answer = service
        .acquire(Arc::new(claim.clone()), Duration::ZERO)
        .await;
    let error = answer.expect_err("it may be beyond the quota").error;
    assert!(matches!(error, StoreError::Unknown { .. }), "{error:?}");
    eventually("it is rolled back", async || {
        is_free(&store, &claim).await.then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn renewals_and_releases_do_not_depend_on_the_count() {
    let (counting, store) = service(1, Behavior::Unanswered);
    let claim = claim();
    // Another principal without a quota acquires it.
    let service = stores::service(Arc::clone(&store) as Arc<dyn LockStore>);
    assert!(hold(&service, &claim).await);
    let (names, token) = (claim.names.clone(), claim.token);
    let renewed = counting
        .renew(names.clone(), token, RenewOptions::default())
        .await;
    assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
    let released = counting.release(names, token, None, |_| {}).await;
    assert!(released.is_ok(), "{released:?}");
    assert!(is_free(&store, &claim).await);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_beyond_the_quota_is_refused_when_its_turn_comes_and_the_next_one_is_granted() {
    let (team, store) = service(1, Behavior::Answered);
    let others = stores::service(Arc::clone(&store) as Arc<dyn LockStore>);
    let held = claim();
    assert!(hold(&others, &held).await);
    let wait = |service: &LockService| {
        let (service, claim) = (
            service.clone(),
            Claim {
                names: held.names.clone(),
                ..claim()
            },
        );
        let acquiring = async move {
            service
                .acquire(Arc::new(claim), Duration::from_secs(30))
                .await
        };
        tokio::spawn(acquiring)
    };
    let queued = async |count| {
        eventually("it waits", async || {
            let view = store
                .store
                .inspect(lock_of(&held), deadline())
                .await
                .unwrap();
            (view.queue.length == count).then_some(())
        })
        .await;
    };
    let first = wait(&team);
    queued(1).await;
    let second = wait(&others);
    queued(2).await;
    assert!(hold(&team, &claim()).await, "a waiter is not counted");
    others
        .release(held.names.clone(), held.token, None, |_| {})
        .await
        .unwrap();
    let refused = first.await.unwrap().unwrap().outcome;
    assert!(
        matches!(
            refused,
            AcquireOutcome::Refused(Refused::TooManyLeases { .. })
        ),
        "{refused:?}"
    );
    let granted = second.await.unwrap().unwrap();
    assert!(
        matches!(granted.outcome, AcquireOutcome::Granted(_)),
        "{granted:?}"
    );
    granted.unclaimed.delivered();
}

/// Clients that are gone must not use up the quota.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_rolled_back_is_not_counted() {
    let (service, store) = service(1, Behavior::Answered);
    for _ in 0..5 {
        let claim = claim();
        let answer = service
            .acquire(Arc::new(claim.clone()), Duration::ZERO)
            .await;
        let answer = answer.expect("the store answers");
        assert!(
            matches!(answer.outcome, AcquireOutcome::Granted(_)),
            "{answer:?}"
        );
        drop(answer);
        eventually("it is rolled back", async || {
            is_free(&store, &claim).await.then_some(())
        })
        .await;
    }
    let inspects = store.operations().contains(&Operation::Inspect);
    assert!(!inspects, "nobody may have counted what is so young");
}

/// Whoever has the answer can rely on it that the lease is counted, unless that takes too long.
#[tokio::test(start_paused = true)]
async fn a_renewal_is_answered_when_its_lease_is_counted() {
    let late = Duration::from_millis(40);
    let (service, _) = service(1, Behavior::Late(late));
    let claim = claim();
    assert!(hold(&service, &claim).await);
    let began = Instant::now();
    let renewed = service.renew(claim.names.clone(), claim.token, RenewOptions::default());
    assert!(matches!(renewed.await, Ok(Renewed::Extended(_))));
    assert_eq!(
        began.elapsed(),
        late * 2,
        "before the renewal, and after it"
    );
}
