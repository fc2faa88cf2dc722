//! A watching process, or another one, loses its connection to Redis: after the `reset`, every event is delivered.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::config::{RedisConfig, Secret};
use leasehold::domain::{Claim, EventKind};
use leasehold::service::{Scope, Watch, WatchEvent};

use super::{Replica, durable_redis, lasting_claims};
use crate::support::proxy::Proxy;
use crate::support::recording_listener::RecordingListener;
use crate::support::redis_server::RedisServer;
use crate::support::{EFFECT_TIMEOUT, eventually, stores};

/// The number of grants whose events must arrive. Together they take longer than any message is in flight.
const GRANTS: usize = 30;

async fn watch(replica: &Replica) -> Watch {
    let everything = Scope::Prefix(String::new());
    replica.service.watch(everything, None).await
}

async fn next(watch: &mut Watch) -> WatchEvent {
    let next = tokio::time::timeout(EFFECT_TIMEOUT, watch.next()).await;
    next.expect("something happens").expect("the process lives")
}

/// Makes the replica grant many locks, and asserts that the watcher gets an event for each.
async fn assert_events_of_grants(watch: &mut Watch, by: &Replica, prefix: &str) {
    let claims = lasting_claims(prefix, GRANTS);
    for claim in &claims {
        by.granted(claim).await;
    }
    let name = |claim: &Claim| super::lock_of(claim).clone();
    let mut missing: HashSet<_> = claims.iter().map(name).collect();
    while !missing.is_empty() {
        let next = tokio::time::timeout(Duration::from_secs(3), watch.next()).await;
        let Ok(Some(event)) = next else {
            panic!(
                "{} of {GRANTS} grants have no event: {missing:?}",
                missing.len()
            );
        };
        match event {
            WatchEvent::Event(event) if event.kind == EventKind::Acquired => {
                missing.remove(&event.name);
            }
            other => panic!("only grants happen, but: {other:?}"),
        }
    }
}

async fn subscribers(server: &RedisServer) -> i64 {
    let channels = server.command(&["PUBSUB", "NUMSUB", "lh:1:events:0"]).await;
    let (_, count): (String, i64) = redis::from_redis_value(channels).expect("a count");
    count
}

/// Waits until Redis has counted enough checks for every process to have checked it several times.
async fn several_checks(server: &RedisServer) {
    let checks = async || {
        let line = server.info("commandstats", "cmdstat_config|get").await;
        let calls = line
            .strip_prefix("calls=")
            .and_then(|line| line.split(',').next());
        calls
            .and_then(|calls| calls.parse::<u64>().ok())
            .expect("a count")
    };
    let before = checks().await;
    eventually("further checks", async || {
        (checks().await >= before + 6).then_some(())
    })
    .await;
}

#[tokio::test]
async fn after_a_reset_all_processes_send_all_events() {
    let server = durable_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let watcher = Replica::open(&proxy.database(0)).await;
    let other = Replica::open(&server.database(0)).await;
    let mut watch = watch(&watcher).await;
    assert_events_of_grants(&mut watch, &other, "before").await;

    // This test is only about the pub/sub connection.
    watcher.checks.abort();
    proxy.refuse(true);
    proxy.cut();
    eventually("the watcher is cut off", async || {
        (subscribers(&server).await == 0).then_some(())
    })
    .await;
    // A process that does not know of the watcher.
    let newcomer = Replica::open(&server.database(0)).await;
    several_checks(&server).await;
    newcomer.checks.abort();
    proxy.refuse(false);
    while next(&mut watch).await != WatchEvent::Reset {}
    assert_events_of_grants(&mut watch, &newcomer, "newcomer").await;
    assert_events_of_grants(&mut watch, &other, "other").await;
}

/// It does not learn of the watcher by its checks either.
#[tokio::test]
async fn a_process_that_is_cut_off_from_messages_sends_events() {
    let server = durable_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let deaf = Replica::open(&proxy.database(0)).await;
    deaf.checks.abort();
    let watcher = Replica::open(&server.database(0)).await;
    for claim in lasting_claims("warm", 1) {
        deaf.granted(&claim).await;
    }
    proxy.refuse(true);
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    let mut watch = watch(&watcher).await;
    assert_events_of_grants(&mut watch, &deaf, "deaf").await;
}

/// A watcher that starts while messages are lost gets a `reset` once they arrive again, and not before all processes
/// know of the watcher. From then on it is told when they are lost again.
#[tokio::test]
async fn a_watcher_that_starts_while_cut_off_gets_a_reset() {
    let server = durable_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let config = stores::redis_config();
    let store = stores::redis_store(&proxy.database(0), &config).await;
    let (store, ear) = (
        store.expect("the store opens"),
        Arc::new(RecordingListener::default()),
    );
    store.set_listener(Arc::clone(&ear) as _);
    eventually("it listens", async || (ear.missed() > 0).then_some(())).await;
    proxy.refuse(true);
    proxy.cut();
    eventually("it is cut off", async || (proxy.open() == 0).then_some(())).await;
    let newcomer = Replica::open(&server.database(0)).await;
    several_checks(&server).await;
    newcomer.checks.abort();
    store.set_event_delivery(true).await;
    assert_eq!(ear.missed_events(), 0);
    proxy.refuse(false);
    eventually("it gets a reset", async || {
        (ear.missed_events() > 0).then_some(())
    })
    .await;
    for claim in lasting_claims("after", GRANTS) {
        newcomer.granted(&claim).await;
        eventually("it gets the event", async || {
            let kinds = ear.kinds_of(super::lock_of(&claim));
            (kinds == [EventKind::Acquired]).then_some(())
        })
        .await;
    }
    assert!(
        ear.missed_events() <= 2,
        "one gap, or two if the newcomer learned late"
    );
    assert_eq!(
        ear.interruptions(),
        0,
        "it was not sure of any event before"
    );
    proxy.cut();
    eventually("it is told at once", async || {
        (ear.interruptions() == 1).then_some(())
    })
    .await;
}

/// The watcher may not announce itself, so the other process learns of it at its next check, and has sent nothing until then.
#[tokio::test]
async fn a_process_that_learns_late_of_a_watcher_causes_a_reset() {
    let server = durable_redis().await;
    let other = Replica::open(&server.database(0)).await;
    several_checks(&server).await;
    let rights = ["on", ">secret", "~*", "&*", "+@all", "-publish"];
    let user = ["ACL", "SETUSER", "watcher"].into_iter().chain(rights);
    server.command(&user.collect::<Vec<_>>()).await;
    let config = RedisConfig {
        username: Some("watcher".to_owned()),
        password: Some(Secret::new("secret")),
        ..stores::redis_config()
    };
    let store = stores::redis_store(&server.database(0), &config).await;
    let (store, ear) = (
        store.expect("it opens"),
        Arc::new(RecordingListener::default()),
    );
    store.set_listener(Arc::clone(&ear) as _);
    store.set_event_delivery(true).await;
    eventually("it is told to look again", async || {
        (ear.missed_events() > 0).then_some(())
    })
    .await;
    let claim = &lasting_claims("after", 1)[0];
    other.granted(claim).await;
    eventually("it gets the event", async || {
        (ear.kinds_of(super::lock_of(claim)) == [EventKind::Acquired]).then_some(())
    })
    .await;
}

/// No connection breaks, so nothing else shows that leases have ended.
#[tokio::test]
async fn after_a_loss_of_data_a_watcher_is_told_to_look_again() {
    let server = durable_redis().await;
    let (finder, other) = (
        Replica::open(&server.database(0)).await,
        Replica::open(&server.database(0)).await,
    );
    let (mut at_finder, mut at_other) = (watch(&finder).await, watch(&other).await);
    finder.granted(&lasting_claims("lost", 1)[0]).await;
    for watch in [&mut at_finder, &mut at_other] {
        assert!(matches!(next(watch).await, WatchEvent::Event(_)));
    }
    server.command(&["FLUSHALL"]).await;
    for watch in [&mut at_finder, &mut at_other] {
        assert_eq!(next(watch).await, WatchEvent::Reset {});
    }
}
