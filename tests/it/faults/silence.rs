//! A Redis that is known to be down: requests are refused at once, and go on once it is back.

use std::sync::Arc;

use leasehold::service::AcquireOutcome;
use leasehold::store::{Fault, StoreError};

use super::{Replica, durable_redis, forgetful_redis, lasting};
use crate::support::fixture::{claim, lock_of, rival};
use crate::support::{EFFECT_TIMEOUT, eventually};

/// As many requests as would take ten times as long as the test may, if each of them waited for Redis.
const REQUESTS: usize = 100;

/// Waits until requests are refused at once.
async fn is_known_to_be_down(replica: &Replica) -> String {
    eventually("it is known to be down", async || {
        let trouble = replica.service.store_health().trouble?;
        trouble.contains("refused at once").then_some(trouble)
    })
    .await
}

#[tokio::test]
async fn a_redis_that_is_known_to_be_silent_is_not_waited_for() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    server.pause();
    is_known_to_be_down(&replica).await;
    let requests = async {
        for _ in 0..REQUESTS {
            match replica.acquire(&lasting(claim())).await {
                Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Timeout),
                other => panic!("it is silent, but: {other:?}"),
            }
            let answer = replica.renew(&held).await;
            assert!(
                matches!(answer, Err(StoreError::Unavailable { .. })),
                "{answer:?}"
            );
        }
    };
    let refused = tokio::time::timeout(EFFECT_TIMEOUT, requests).await;
    refused.expect("none waits for it");
    server.resume();
    eventually("it is used again", async || replica.renew(&held).await.ok()).await;
    replica.assert_holds(&held).await;
}

#[tokio::test]
async fn who_waits_for_a_lock_waits_through_a_silence() {
    let mut server = durable_redis().await;
    let replica = Arc::new(Replica::open(&server.database(0)).await);
    let held = lasting(claim());
    replica.granted(&held).await;
    let waiter = lasting(rival(&held));
    let waiting = {
        let (replica, waiter) = (Arc::clone(&replica), waiter.clone());
        tokio::spawn(async move { replica.acquire_within(&waiter, EFFECT_TIMEOUT * 2).await })
    };
    eventually("it is queued", async || {
        let view = replica.service.inspect(lock_of(&held)).await.ok()?;
        (view.queue.length == 1).then_some(())
    })
    .await;
    server.kill();
    is_known_to_be_down(&replica).await;
    server.restart().await;
    eventually("it is released", async || replica.release(&held).await.ok()).await;
    let granted = waiting.await.expect("whole");
    assert!(
        matches!(granted, Ok(AcquireOutcome::Granted(_))),
        "{granted:?}"
    );
}

#[tokio::test]
async fn a_process_that_starts_without_redis_says_why_and_goes_on_once_it_is_there() {
    let mut server = forgetful_redis().await;
    let address = server.database(0);
    server.kill();
    let replica = Replica::open(&address).await;
    let trouble = is_known_to_be_down(&replica).await;
    assert!(trouble.contains("refused;"), "{trouble}");
    server.restart().await;
    eventually("it grants", async || {
        let answer = replica.acquire(&lasting(claim())).await;
        matches!(answer, Ok(AcquireOutcome::Granted(_))).then_some(())
    })
    .await;
}
