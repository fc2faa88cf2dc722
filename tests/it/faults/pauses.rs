//! Redis is paused: its connections stay open, but it does not reply.

use std::time::Duration;

use leasehold::domain::{Claim, GrantKind, Released, Renewed};
use leasehold::store::{Fault, StoreError};
use tokio::time::Instant;

use super::{Replica, durable_redis, lasting, lasting_claims};
use crate::support::eventually;
use crate::support::fixture::{claim, only, rival};
use crate::support::redis_server::RedisServer;
use crate::support::stores::OPERATION_TIMEOUT;

/// How late an outcome may be after its deadline on a busy machine.
const LATE: Duration = Duration::from_secs(3);

/// A release that Redis does not answer.
async fn release_while_paused(server: &RedisServer, replica: &Replica, held: &Claim) {
    server.pause();
    let answer = replica.release(held).await;
    server.resume();
    assert!(answer.is_err(), "a paused Redis answered {answer:?}");
}

#[tokio::test]
async fn a_paused_redis_leaves_the_outcome_unknown_in_time_and_no_orphan_behind() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let claims = lasting_claims("paused", 20);
    // Opens the connections.
    replica.granted(&lasting(claim())).await;

    server.pause();
    let asked = Instant::now();
    let requests = claims.iter().map(|claim| replica.acquire(claim));
    let answers = futures_util::future::join_all(requests).await;
    let took = asked.elapsed();
    server.resume();

    assert!(took < OPERATION_TIMEOUT + LATE, "answered after {took:?}");
    let mut unknown = 0;
    for answer in answers {
        match answer {
            Err(StoreError::Unknown { fault, .. }) => {
                assert_eq!(fault, Fault::Timeout);
                unknown += 1;
            }
            // There was no connection, so nothing was sent.
            Err(StoreError::Unavailable { .. }) => {}
            Ok(other) => panic!("a paused Redis answered {other:?}"),
        }
    }
    assert!(unknown > 0, "the pause met no request");
    for claim in &claims {
        // Granted to another claim long before the lease could end, so it was rolled back or never granted.
        let next = lasting(rival(claim));
        eventually("the lock is granted to another", async || {
            replica
                .acquire(&next)
                .await
                .ok()
                .filter(|answer| answer.kind() == Some(GrantKind::New))
        })
        .await;
    }
    replica
        .service
        .shut_down(crate::support::EFFECT_TIMEOUT)
        .await;
    for claim in &claims {
        replica.assert_unknown(claim).await;
    }
}

#[tokio::test]
async fn a_release_that_a_paused_redis_did_not_answer_can_be_retried() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    release_while_paused(&server, &replica, &held).await;
    let released = eventually("Redis answers again", async || {
        replica.release(&held).await.ok()
    })
    .await;
    // The first request may have been executed or not; both outcomes of the second one are correct.
    assert!(
        matches!(released, Released::Freed { .. } | Released::Repeated),
        "{released:?}"
    );
    replica.becomes_free(&held).await;
}

/// The service must not repeat a release by itself: the client may have posted its token again since.
#[tokio::test]
async fn a_release_of_unknown_outcome_is_not_repeated_by_the_service() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting(claim());
    replica.granted(&held).await;
    // Redis does not have the release script yet, so the request that it reads after the pause is not executed.
    release_while_paused(&server, &replica, &held).await;
    let again = eventually("Redis answers again", async || {
        replica.acquire(&held).await.ok()
    })
    .await;
    assert_eq!(again.kind(), Some(GrantKind::Replayed), "{again:?}");
    replica.service.shut_down(Duration::from_secs(5)).await;
    assert!(
        matches!(&replica.acquire(&held).await, Ok(granted) if granted.kind() == Some(GrantKind::Replayed))
    );
}

#[tokio::test]
async fn a_pause_ends_no_lease_that_is_longer() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let held = lasting(claim());
    let fence = replica.granted(&held).await;
    server.pause();
    let answer = replica.renew(&held).await;
    server.resume();
    assert!(answer.is_err(), "a paused Redis answered {answer:?}");
    let renewed = eventually("Redis answers again", async || {
        replica.renew(&held).await.ok()
    })
    .await;
    match renewed {
        Renewed::Extended(renewals) => {
            assert_eq!(only(renewals).lease.holder.fence.get(), fence);
        }
        other => panic!("the lease is alive, but: {other:?}"),
    }
}
