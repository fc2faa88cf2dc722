//! Primaries that are unfit, or that join.

use std::sync::Arc;

use leasehold::store::{Fault, LockStore};

use super::{cluster, held_on, lasting, locks_on, open, replica, rival};
use crate::support::eventually;
use crate::support::fixture::{Fixture, claim, claim_on, lock_of};
use crate::support::redis_server::{RedisOptions, RedisServer};

async fn set_policy(node: &RedisServer, policy: &str) {
    let words = ["CONFIG", "SET", "maxmemory-policy", policy];
    node.command(&words).await;
}

#[tokio::test]
async fn a_primary_that_becomes_unfit_is_named_and_grants_nothing_while_the_others_do() {
    let cluster = cluster().await;
    let replica = replica(&cluster).await;
    let (unfit, _) = held_on(1, &cluster, &replica).await;
    let (fit, _) = held_on(0, &cluster, &replica).await;
    set_policy(&cluster.nodes[1], "allkeys-lru").await;
    let place = cluster.nodes[1].address();
    eventually("the unfit node is named", async || {
        let health = replica.service.store_health();
        let mut findings = health.findings.iter();
        let is_it =
            |topic: &str, detail: &str| topic == "maxmemory-policy" && detail.contains(&place);
        findings
            .any(|found| !found.is_fine && is_it(found.topic, &found.detail))
            .then_some(())
    })
    .await;
    let health = replica.service.store_health();
    assert!(health.up && health.refused.is_none(), "{health:?}");
    replica.release(&unfit).await.expect("it answers");
    // The finding is of one part of the primary. The others may have read its settings a moment before they changed.
    eventually("it grants nothing", async || {
        let next = rival(&unfit);
        let is_refused = replica.acquire(&next).await.is_err();
        if !is_refused {
            replica.release(&next).await.expect("it answers");
        }
        is_refused.then_some(())
    })
    .await;
    replica.release(&fit).await.expect("it answers");
    replica.granted(&rival(&fit)).await;
    set_policy(&cluster.nodes[1], "noeviction").await;
    eventually("it grants again", async || {
        replica.acquire(&lasting(rival(&unfit))).await.ok()?.kind()
    })
    .await;
}

/// Renewals and releases need no room there.
#[tokio::test]
async fn beside_a_full_primary_locks_of_the_others_are_granted() {
    let cluster = cluster().await;
    let replica = replica(&cluster).await;
    let (held, _) = held_on(1, &cluster, &replica).await;
    let on_full = locks_on([1], &cluster, &replica).await;
    let elsewhere = locks_on([0, 2], &cluster, &replica).await;
    let set_limit = async |bytes: &str| {
        let words = ["CONFIG", "SET", "maxmemory", bytes];
        cluster.nodes[1].command(&words).await;
    };
    set_limit("1").await;
    let of_full = lasting(claim_on(&on_full[0]));
    let refused = replica.acquire(&of_full).await;
    let fault = refused.expect_err("it needs room").fault();
    assert_eq!(fault, Fault::Full);
    for lock in &elsewhere {
        replica.granted(&lasting(claim_on(lock))).await;
    }
    replica.assert_holds(&held).await;
    replica.release(&held).await.expect("it answers");
    set_limit("0").await;
    eventually("it grants again", async || {
        replica.acquire(&of_full).await.ok()?.kind()
    })
    .await;
}

#[tokio::test]
async fn a_process_does_not_start_on_a_cluster_with_an_unfit_primary() {
    let cluster = cluster().await;
    set_policy(&cluster.nodes[2], "allkeys-lru").await;
    let refusal = open(&cluster.address()).await.err();
    let error = refusal.expect("it is refused");
    assert!(error.detail().contains("maxmemory-policy"), "{error}");
}

/// It may not have passed on messages from its beginning.
#[tokio::test]
async fn who_watches_is_told_that_events_may_be_missing_when_a_primary_joins() {
    let mut cluster = cluster().await;
    let store: Arc<dyn LockStore> = open(&cluster.address()).await.expect("the store opens");
    let fixture = Fixture::on(Arc::clone(&store), None);
    let listener = fixture.listener();
    store.set_event_delivery(true).await;
    eventually("events arrive", async || {
        let released = claim();
        fixture.granted(&released).await;
        fixture.freed(&released).await;
        let events = listener.events_of(lock_of(&released));
        (!events.is_empty()).then_some(())
    })
    .await;
    store.refresh_health().await;
    let before = listener.missed_events();
    cluster.join(RedisOptions::forgetful()).await;
    eventually("it is told", async || {
        store.refresh_health().await;
        (listener.missed_events() > before).then_some(())
    })
    .await;
}
