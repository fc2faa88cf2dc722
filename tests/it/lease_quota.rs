//! The quota of leases: what real processes with one store permit together, and what happens while the store does not
//! count. `contract::counting` has the count itself, `api::rules::quotas` the answers.

mod hostile;
mod kept;
mod twice;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::config::KeyHash;
use leasehold::domain::{Claim, LeaseQuota, LockState, Refused, RenewOptions, Renewed};
use leasehold::limits::{LeaseBudget, Slot};
use leasehold::service::{AcquireOutcome, LockService};
use leasehold::store::{LockStore, StoreError};
use reqwest::{Client, Method, Response};
use tempfile::NamedTempFile;

use crate::config::{KEY, file};
use crate::process::Serving;
use crate::support::cluster::RedisCluster;
use crate::support::eventually;
use crate::support::fixture::{claim, deadline, lock_of};
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore, unavailable};
use crate::support::stores;

const LOCKS_MAX: usize = 5;

/// How many principals attack, one after the other, and how many help them.
const ATTACKS: usize = 8;

/// The key of a principal that attacks or helps.
fn attacking_key(number: usize) -> String {
    format!("the-key-of-the-attacking-principal-{number}")
}

/// Principals with this quota of locks each.
fn keys_file() -> String {
    let attacking = (0..2 * ATTACKS).map(attacking_key);
    let keys = [KEY.to_owned()].into_iter().chain(attacking);
    let principals = keys.enumerate().map(|(number, key)| {
        let hash = KeyHash::of(key.as_bytes());
        format!(
            "[principals.team-{number}]\nkeys = [\"{hash}\"]\n\
             rules = [{{ prefix = \"\", verbs = [\"acquire\", \"list\", \"read\"] }}]\n\
             quota = {{ locks_max = {LOCKS_MAX} }}\n"
        )
    });
    principals.collect()
}

/// Processes with one store.
struct Team {
    processes: Vec<Serving>,
    client: Client,
    tries: AtomicUsize,
    _keys: NamedTempFile,
}

/// The name of a lock, and the token of its lease.
type Held = (String, String);

impl Team {
    fn on(store: &str) -> Self {
        let keys = file(&keys_file());
        let path = keys.path().to_str().unwrap();
        let arguments = [
            "--store",
            store,
            "--auth-keys-file",
            path,
            "--auth-metrics",
            "none",
        ];
        let start = |_| tokio::task::block_in_place(|| Serving::start(&arguments));
        Self {
            processes: (0..3).map(start).collect(),
            client: Client::new(),
            tries: AtomicUsize::new(0),
            _keys: keys,
        }
    }

    async fn send(&self, process: usize, method: Method, path: &str, token: &str) -> Response {
        let url = format!("{}/locks/{path}", self.processes[process].url);
        let request = self.client.request(method, url).bearer_auth(KEY);
        let request = match token {
            "" => request,
            token => request.header("lock-token", token),
        };
        request.send().await.unwrap()
    }

    /// Acquires a lock. The error is the name of a lock that was beyond the quota.
    async fn acquire(&self, process: usize, ttl: &str) -> Result<Held, String> {
        eventually("there is an answer", async || {
            self.try_to_acquire(process, ttl).await
        })
        .await
    }

    /// Each try is for another lock, because what was refused is given back in the background.
    async fn try_to_acquire(&self, process: usize, ttl: &str) -> Option<Result<Held, String>> {
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        let name = format!("job/{number}");
        let path = format!("{name}?ttl={ttl}");
        let answer = self.send(process, Method::POST, &path, "").await;
        let headers = answer.headers();
        match answer.status().as_u16() {
            201 => {
                let token = headers["lock-token"].to_str().unwrap().to_owned();
                Some(Ok((name, token)))
            }
            429 => {
                assert!(headers.contains_key("retry-after"));
                let problem: serde_json::Value = answer.json().await.unwrap();
                assert_eq!(problem["code"], "quota_exceeded", "{problem}");
                assert_eq!(problem["quota"], "locks_max", "{problem}");
                Some(Err(name))
            }
            503 => None,
            _ => panic!("{answer:?}"),
        }
    }

    /// Acquires locks until every process refuses more. Returns a lock that was refused.
    async fn fill(&self, held: &mut Vec<Held>) -> String {
        let processes = self.processes.len();
        let mut refused_by = 0;
        eventually("the quota is used up", async || {
            match self.acquire(refused_by % processes, "60s").await {
                Ok(more) => {
                    held.push(more);
                    refused_by = 0;
                    None
                }
                Err(refused) => {
                    refused_by += 1;
                    (refused_by >= processes && held.len() >= LOCKS_MAX).then_some(refused)
                }
            }
        })
        .await
    }

    async fn refused(&self, process: usize) -> f64 {
        let url = format!("{}/metrics", self.processes[process].url);
        let text = self.client.get(url).send().await.unwrap().text().await;
        let text = text.unwrap();
        let series = "leasehold_refused_total{limit=\"locks_per_principal\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.expect(series).parse().unwrap()
    }
}

/// Fails unless a principal holds as many locks over three processes as its quota permits, and never more than `most`.
async fn assert_counted_together(store: &str, most: usize) {
    let mut team = Team::on(store);
    let acquiring = (0..30).map(|number| team.acquire(number % 3, "60s"));
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
    for number in 0..LOCKS_MAX {
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
    assert_counted_together(&format!("redis://{}", redis.address()), LOCKS_MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_with_a_cluster_count_together() {
    let cluster = RedisCluster::start(3, RedisOptions::forgetful()).await;
    assert_counted_together(&cluster.url(), LOCKS_MAX).await;
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
    assert_counted_together(&store, LOCKS_MAX * 3 / 2).await;
}

/// The service for a principal that may hold this many locks, on a store to which this happens when it counts.
fn service(leases_max: usize, counting: Behavior) -> (LockService, Arc<ScriptedStore>) {
    let store = Arc::new(ScriptedStore::default().with(Operation::CountLeases, counting));
    let service = stores::service(Arc::clone(&store) as Arc<dyn LockStore>);
    (within_quota(&service, leases_max), store)
}

fn within_quota(service: &LockService, leases_max: usize) -> LockService {
    let quota = LeaseQuota {
        principal: "team".into(),
        leases_max,
    };
    service.within(Slot::default().with_quota(None, Some(LeaseBudget::new(quota))))
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
}
