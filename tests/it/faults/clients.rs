//! Clients that disconnect during a request, and scripts that are flushed from Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use leasehold::domain::{GrantKind, Released, Renewed};
use leasehold::store::ListQuery;
use tokio::task::JoinSet;

use super::{Replica, durable_redis, lasting_claims};
use crate::support::proxy::Proxy;
use crate::support::stores::CONNECTIONS_IN_ALL;
use crate::support::{EFFECT_TIMEOUT, eventually};

#[tokio::test]
async fn grants_of_disconnected_clients_are_rolled_back() {
    let server = durable_redis().await;
    let proxy = Proxy::start(server.address()).await;
    let replica = Arc::new(Replica::open(&proxy.database(0)).await);
    // Slow enough for clients to disconnect before, during and after the operation.
    proxy.delay_replies(Duration::from_millis(2));
    let mut clients = JoinSet::new();
    for (number, claim) in (0..).zip(lasting_claims("hung-up", 400)) {
        let replica = Arc::clone(&replica);
        clients.spawn(async move {
            // From a microsecond to four seconds, so that even on a busy machine some requests are answered.
            let timeout = Duration::from_micros(1 << (number % 23));
            let request = replica.service.acquire(Arc::new(claim), Duration::ZERO);
            // Whether it is in time or not, the outcome is never delivered.
            tokio::time::timeout(timeout, request).await.is_ok()
        });
    }
    let in_time: Vec<_> = clients.join_all().await;
    let answered = in_time.iter().filter(|in_time| **in_time).count();
    assert!(
        (1..400).contains(&answered),
        "{answered} of 400 were answered"
    );
    let query = ListQuery {
        prefix: "hung-up/".to_owned(),
        within: None,
        after: None,
        snapshot: None,
        page_size: 1_000,
    };
    eventually("every lock is free", async || {
        let held = replica.service.list(&query).await.ok()?.locks;
        held.is_empty().then_some(())
    })
    .await;
    assert_eq!(replica.service.store_health().response_mismatches, 0);
    let most = CONNECTIONS_IN_ALL;
    // A connection that was too slow under this load may have been replaced.
    eventually("there are no more connections than before", async || {
        (proxy.open() <= most).then_some(())
    })
    .await;
}

#[tokio::test]
async fn flushed_scripts_do_not_affect_clients() {
    let server = durable_redis().await;
    // A long timeout, because a slow disk must not fail this test.
    let replica = Arc::new(Replica::open_within(EFFECT_TIMEOUT, &server.database(0)).await);
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let replica = Arc::clone(&replica);
        clients.spawn(async move {
            for claim in lasting_claims(&format!("flushed/{number}"), 50) {
                let answer = replica.acquire(&claim).await;
                assert!(
                    matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
                    "{answer:?}"
                );
                let answer = replica.renew(&claim).await;
                assert!(matches!(answer, Ok(Renewed::Extended(_))), "{answer:?}");
                let answer = replica.release(&claim).await;
                assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
            }
        });
    }
    let flushing = async {
        let mut flushes = 0;
        while !is_over.load(SeqCst) {
            server.command(&["SCRIPT", "FLUSH"]).await;
            flushes += 1;
        }
        flushes
    };
    let working = async {
        while let Some(ended) = clients.join_next().await {
            ended.expect("every answer is as if nothing happened");
        }
        is_over.store(true, SeqCst);
    };
    let (flushes, ()) = tokio::join!(flushing, working);
    assert!(flushes > 10, "only {flushes} flushes");
}
