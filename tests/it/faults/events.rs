//! Who watches is cut off from Redis, or somebody else is: after the `reset` that tells of it, every event is delivered.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::domain::{Claim, EventKind};
use leasehold::service::{Scope, Watch, WatchEvent};

use super::{Replica, durable_redis, lasting_claims};
use crate::support::proxy::Proxy;
use crate::support::recording_listener::RecordingListener;
use crate::support::redis_server::RedisServer;
use crate::support::{PATIENCE, eventually, stores};

/// How many grants have to be told of. They take longer than all messages are on their way.
const GRANTS: usize = 30;

async fn watch(replica: &Replica) -> Watch {
    let everything = Scope::Prefix(String::new());
    replica.service.watch(everything, None).await
}

async fn next(watch: &mut Watch) -> WatchEvent {
    let next = tokio::time::timeout(PATIENCE, watch.next()).await;
    next.expect("something happens").expect("the process lives")
}

/// Lets the replica grant many locks, and fails unless the watcher is told of all of them.
async fn assert_told_of_grants(watch: &mut Watch, by: &Replica, prefix: &str) {
    let claims = lasting_claims(prefix, GRANTS);
    for claim in &claims {
        by.granted(claim).await;
    }
    let name = |claim: &Claim| super::lock_of(claim).clone();
    let mut untold: HashSet<_> = claims.iter().map(name).collect();
    while !untold.is_empty() {
        let told = tokio::time::timeout(Duration::from_secs(3), watch.next()).await;
        let Ok(Some(event)) = told else {
            panic!(
                "{} of {GRANTS} grants were not told: {untold:?}",
                untold.len()
            );
        };
        match event {
            WatchEvent::Happened(event) if event.kind == EventKind::Acquired => {
                untold.remove(&event.name);
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

/// Waits until a process that looked at Redis from now on has looked several times.
async fn several_surveys(server: &RedisServer) {
    let looks = async || {
        let line = server.info("commandstats", "cmdstat_config|get").await;
        let calls = line
            .strip_prefix("calls=")
            .and_then(|line| line.split(',').next());
        calls
            .and_then(|calls| calls.parse::<u64>().ok())
            .expect("a count")
    };
    let before = looks().await;
    eventually("surveys go on", async || {
        (looks().await >= before + 6).then_some(())
    })
    .await;
}

#[tokio::test]
async fn after_a_reset_everything_is_told_by_everybody() {
    let server = durable_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let watcher = Replica::open(&proxy.database(0)).await;
    let other = Replica::open(&server.database(0)).await;
    let mut watch = watch(&watcher).await;
    assert_told_of_grants(&mut watch, &other, "before").await;

    // What is looked at here is what the connection for messages does by itself.
    watcher.surveys.abort();
    proxy.refuse(true);
    proxy.cut();
    eventually("the watcher is cut off", async || {
        (subscribers(&server).await == 0).then_some(())
    })
    .await;
    // It has never heard of a watcher.
    let newcomer = Replica::open(&server.database(0)).await;
    several_surveys(&server).await;
    newcomer.surveys.abort();
    proxy.refuse(false);
    while next(&mut watch).await != WatchEvent::Reset {}
    assert_told_of_grants(&mut watch, &newcomer, "newcomer").await;
    assert_told_of_grants(&mut watch, &other, "other").await;
}

/// It does not learn of the watcher by a survey either.
#[tokio::test]
async fn who_cannot_hear_that_somebody_watches_tells_events() {
    let server = durable_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let deaf = Replica::open(&proxy.database(0)).await;
    deaf.surveys.abort();
    let watcher = Replica::open(&server.database(0)).await;
    for claim in lasting_claims("warm", 1) {
        deaf.granted(&claim).await;
    }
    proxy.refuse(true);
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    let mut watch = watch(&watcher).await;
    assert_told_of_grants(&mut watch, &deaf, "deaf").await;
}

/// Whoever comes to watch while messages do not arrive is told of the gap once they do, and not before everybody knows.
#[tokio::test]
async fn who_began_to_watch_while_cut_off_is_told_of_the_gap() {
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
    several_surveys(&server).await;
    newcomer.surveys.abort();
    store.set_event_delivery(true).await;
    assert_eq!(ear.missed_events(), 0);
    proxy.refuse(false);
    eventually("it is told of the gap", async || {
        (ear.missed_events() > 0).then_some(())
    })
    .await;
    for claim in lasting_claims("after", GRANTS) {
        newcomer.granted(&claim).await;
        eventually("it is told", async || {
            let told = ear.kinds_of(super::lock_of(&claim));
            (told == [EventKind::Acquired]).then_some(())
        })
        .await;
    }
    assert_eq!(ear.missed_events(), 1, "there is one gap");
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
        assert!(matches!(next(watch).await, WatchEvent::Happened(_)));
    }
    server.command(&["FLUSHALL"]).await;
    for watch in [&mut at_finder, &mut at_other] {
        assert_eq!(next(watch).await, WatchEvent::Reset {});
    }
}
