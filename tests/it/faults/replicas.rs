//! Replicas that have to confirm what is reported (`redis.wait_replicas`): what they do not have is not reported.

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::{RedisConfig, Secret};
use leasehold::domain::{
    Acquired, Claim, GrantKind, HoldCount, LockState, Released, RenewOptions, Renewed,
};
use leasehold::service::AcquireOutcome;
use leasehold::store::{Fault, Finding, LockStore, StoreError};

use super::{Replica, forgetful_redis, lasting};
use crate::support::fixture::{
    Waiter, at_depth, claim, deadline, deadlines, hold_count, lock_of, rival,
};
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{EFFECT_TIMEOUT, eventually, stores};

/// How late a replica gets everything, where a test makes it late.
const LATE: Duration = Duration::from_millis(30);

/// How long a replica may take, also on a busy machine. A health check has to find out within its time that one takes longer.
const WAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// A Redis and its only replica.
async fn pair() -> [RedisServer; 2] {
    let primary = forgetful_redis().await;
    let replica = primary.replica(RedisOptions::forgetful()).await;
    [primary, replica]
}

fn config() -> RedisConfig {
    RedisConfig {
        wait_timeout: WAIT_TIMEOUT,
        ..stores::confirmed_by(1)
    }
}

/// A store whose reports wait for a replica.
async fn store(primary: &RedisServer) -> Arc<dyn LockStore> {
    let store = stores::redis_store(&primary.database(0), &config()).await;
    store.expect("the store opens")
}

async fn process(primary: &RedisServer) -> Replica {
    Replica::within(WAIT_TIMEOUT * 5, store(primary).await)
}

fn finding(process: &Replica) -> Option<Finding> {
    let findings = process.service.store_health().findings.into_iter();
    findings
        .into_iter()
        .find(|finding| finding.topic == "replicas")
}

/// Waits until claims are refused at once.
async fn is_noticed(process: &Replica) -> String {
    eventually("it is noticed", async || {
        let finding = finding(process)?;
        (!finding.is_fine).then_some(finding.detail)
    })
    .await
}

#[track_caller]
fn is_unconfirmed<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    match answer {
        Err(StoreError::Unknown { fault, .. }) => assert_eq!(fault, Fault::Unreplicated),
        other => panic!("no replica has it, but: {other:?}"),
    }
}

async fn acquire(store: &dyn LockStore, of: &Waiter) -> Result<Acquired, StoreError> {
    store.acquire(&of.claim, of.attempt, None, deadline()).await
}

async fn renew(store: &dyn LockStore, claim: &Claim) -> Result<Renewed, StoreError> {
    let options = RenewOptions::default();
    store
        .renew(&claim.names, claim.token, options, deadline())
        .await
}

async fn release(
    store: &dyn LockStore,
    claim: &Claim,
    to: Option<HoldCount>,
) -> Result<Vec<Released>, StoreError> {
    store
        .release(&claim.names, claim.token, to.map(Into::into), deadline())
        .await
}

#[tokio::test]
async fn what_the_replica_does_not_have_is_not_reported() {
    let [primary, replica] = pair().await;
    let store = store(&primary).await;
    let [held, deep, other] = [
        lasting(claim()),
        lasting(at_depth(&claim(), 2)),
        lasting(claim()),
    ];
    for claim in [&held, &deep, &other] {
        let granted = acquire(&*store, &Waiter::new(claim.clone())).await;
        assert_eq!(
            granted.expect("it is confirmed").kind(),
            Some(GrantKind::New)
        );
    }
    // It answers nothing, and Redis counts it as connected.
    replica.pause();
    let unseen = Waiter::new(lasting(claim()));
    is_unconfirmed(acquire(&*store, &unseen).await);
    is_unconfirmed(renew(&*store, &held).await);
    is_unconfirmed(release(&*store, &deep, Some(hold_count(1))).await);
    is_unconfirmed(store.evict(lock_of(&other), "", deadlines()).await);
    // Repeated: it finds no holder, but no replica knows that.
    is_unconfirmed(store.evict(lock_of(&other), "", deadlines()).await);

    replica.resume();
    let renewed = eventually("it is renewed", async || renew(&*store, &held).await.ok()).await;
    assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
    // The same request once more.
    let granted = eventually("the grant is reported", async || {
        acquire(&*store, &unseen).await.ok()
    })
    .await;
    assert_eq!(granted.kind(), Some(GrantKind::New));
}

/// A repeat writes nothing itself, and comes over another connection than the grant.
#[tokio::test]
async fn a_repeat_of_a_grant_that_the_replica_does_not_have_is_not_reported() {
    let [primary, replica] = pair().await;
    let stores = [store(&primary).await, store(&primary).await];
    replica.pause();
    let held = Waiter::new(lasting(claim()));
    for store in &stores {
        is_unconfirmed(acquire(&**store, &held).await);
    }
    let again = Waiter::new(held.claim);
    for store in &stores {
        // By now it is refused before anything is sent, unless the claim may wait.
        let waiting = store.acquire(
            &again.claim,
            again.attempt,
            Some(&again.queue_request),
            deadline(),
        );
        is_unconfirmed(waiting.await);
    }
}

#[tokio::test]
async fn what_is_reported_is_on_the_replica() {
    let primary = forgetful_redis().await;
    let late = Proxy::start(primary.address()).await;
    let replica = forgetful_redis().await;
    replica.follow(late.address().port()).await;
    primary.is_in_step_with(&replica).await;
    primary.is_confirmed_by(1).await;
    let store = store(&primary).await;
    late.delay_replies(LATE);
    let (mut confirmed, mut tries) = (0, 0);
    while confirmed < 10 {
        tries += 1;
        assert!(tries < 30, "{confirmed} of {tries} are confirmed");
        let held = lasting(claim());
        let bucket = lock_of(&held).bucket().index();
        let record = async |server: &RedisServer| {
            let key = format!("lh:1:{{{bucket}}}:l:{}", lock_of(&held).as_str());
            server.command(&["DUMP", &key]).await
        };
        // On a machine that stands still for a second, nothing is confirmed in time, and nothing is reported.
        let granted = acquire(&*store, &Waiter::new(held.clone())).await;
        let seen = record(&replica).await;
        if granted.is_err() {
            is_unconfirmed(granted);
            continue;
        }
        assert_ne!(seen, redis::Value::Nil);
        let renewed = renew(&*store, &held).await;
        let (seen, written) = (record(&replica).await, record(&primary).await);
        if renewed.is_err() {
            is_unconfirmed(renewed);
            continue;
        }
        assert_eq!(seen, written);
        confirmed += 1;
    }
}

#[tokio::test]
async fn while_the_replica_is_away_claims_are_refused_at_once_and_releases_go_on() {
    let [primary, replica] = pair().await;
    let process = process(&primary).await;
    let [held, released] = [lasting(claim()), lasting(claim())];
    process.granted(&held).await;
    process.granted(&released).await;
    replica.pause();
    let unseen = lasting(claim());
    is_unconfirmed(process.acquire(&unseen).await.map(|it| format!("{it:?}")));
    let detail = is_noticed(&process).await;
    assert!(
        detail.starts_with("0 of 1 replicas have confirmed a write within 1s"),
        "{detail}"
    );
    match process.acquire(&lasting(claim())).await {
        Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Unreplicated),
        other => panic!("it must be refused: {other:?}"),
    }
    is_unconfirmed(process.renew(&held).await);
    let answer = process.release(&released).await;
    assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    // What may have been granted is rolled back.
    process.becomes_free(&unseen).await;

    replica.resume();
    let next = lasting(claim());
    eventually("it grants", async || {
        let answer = process.acquire(&next).await;
        matches!(answer, Ok(AcquireOutcome::Granted(_))).then_some(())
    })
    .await;
    process.assert_holds(&held).await;
    assert!(finding(&process).is_some_and(|it| it.is_fine));
}

#[tokio::test]
async fn who_waits_for_a_lock_keeps_the_place_while_the_replica_is_away() {
    let [primary, replica] = pair().await;
    let process = Arc::new(process(&primary).await);
    let held = lasting(claim());
    process.granted(&held).await;
    let waiting = async |process: &Arc<Replica>, place: u64| {
        let (process, waiter) = (Arc::clone(process), lasting(rival(&held)));
        let waiting = {
            let (process, waiter) = (Arc::clone(&process), waiter.clone());
            tokio::spawn(async move { process.acquire_within(&waiter, EFFECT_TIMEOUT * 2).await })
        };
        eventually("it is queued", async || {
            let view = process.service.inspect(lock_of(&held)).await.ok()?;
            (view.queue.length == place).then_some(())
        })
        .await;
        (waiter, waiting)
    };
    let (first, first_waiting) = waiting(&process, 1).await;
    replica.pause();
    is_noticed(&process).await;
    // Who comes now is queued, too.
    let (_, second_waiting) = waiting(&process, 2).await;
    let released = process.release(&held).await;
    assert!(
        matches!(released, Ok(Released::Freed { .. })),
        "{released:?}"
    );
    // Not a synchronisation: several of their polls find the lock free meanwhile.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let view = process
        .service
        .inspect(lock_of(&held))
        .await
        .expect("it answers");
    assert!(matches!(view.state, LockState::Free), "{view:?}");
    assert_eq!(view.queue.length, 2);
    replica.resume();
    let granted = first_waiting.await.expect("whole");
    assert!(
        matches!(granted, Ok(AcquireOutcome::Granted(_))),
        "{granted:?}"
    );
    process.release(&first).await.expect("it is released");
    let granted = second_waiting.await.expect("whole");
    assert!(
        matches!(granted, Ok(AcquireOutcome::Granted(_))),
        "{granted:?}"
    );
}

#[tokio::test]
async fn a_replica_that_comes_later_is_waited_for() {
    let primary = forgetful_redis().await;
    let process = process(&primary).await;
    let detail = is_noticed(&process).await;
    assert!(detail.contains("nothing is granted"), "{detail}");
    let refused = process.acquire(&lasting(claim())).await;
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { .. })),
        "{refused:?}"
    );
    let _replica = primary.replica(RedisOptions::forgetful()).await;
    eventually("it grants", async || {
        let answer = process.acquire(&lasting(claim())).await;
        matches!(answer, Ok(AcquireOutcome::Granted(_))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_user_who_may_not_wait_for_replicas_is_refused_at_the_start() {
    let [primary, _replica] = pair().await;
    for missing in ["-wait", "-publish"] {
        let rights = ["ACL", "SETUSER", "leasehold", "reset", "on", ">few-rights"];
        let rights = rights.into_iter().chain(["~*", "&*", "+@all", missing]);
        primary.command(&rights.collect::<Vec<_>>()).await;
        let config = RedisConfig {
            username: Some("leasehold".to_owned()),
            password: Some(Secret::new("few-rights")),
            ..config()
        };
        match stores::redis_store(&primary.database(0), &config).await {
            Err(error) => assert_eq!(error.fault(), Fault::Permission, "{error}"),
            Ok(store) => panic!("it must be refused: {:?}", store.health()),
        }
    }
}

/// The address leads to another Redis, and a process that is still connected to the former one asks there.
#[tokio::test]
async fn replicas_of_another_redis_confirm_nothing() {
    let [[former, its_replica], [latter, _other_replica]] = [pair().await, pair().await];
    let proxy = Proxy::start(former.address()).await;
    let config = RedisConfig {
        check_interval: Duration::from_secs(600),
        ..config()
    };
    let store = stores::redis_store(&proxy.database(0), &config).await;
    let store = store.expect("the store opens");
    let granted = acquire(&*store, &Waiter::new(lasting(claim()))).await;
    granted.expect("it is confirmed");
    its_replica.pause();
    proxy.redirect(latter.address());
    let clients = former.command(&["CLIENT", "LIST"]).await;
    let clients: String = redis::from_redis_value(clients).expect("a text");
    let mut killed = 0;
    for client in clients.lines().filter(|line| line.contains(" cmd=wait ")) {
        let id = client
            .split(' ')
            .find_map(|field| field.strip_prefix("id="));
        let id = id.expect("each client has an id");
        former.command(&["CLIENT", "KILL", "ID", id]).await;
        killed += 1;
    }
    assert_eq!(killed, 1, "{clients}");
    let unseen = Waiter::new(lasting(claim()));
    match acquire(&*store, &unseen).await {
        Err(StoreError::Unknown { .. }) => {}
        other => panic!("its replica does not have it: {other:?}"),
    }
    let bucket = lock_of(&unseen.claim).bucket().index();
    let key = format!("lh:1:{{{bucket}}}:l:{}", lock_of(&unseen.claim).as_str());
    assert_eq!(former.integer(0, &["EXISTS", &key]).await, 1);
}
