//! Streams that hold locks, on several replicas with a real Redis.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use leasehold::domain::{Claim, LockState, NotHolder, Released};
use leasehold::service::{Hold, HoldEvent};

use super::{Replica, durable_redis, forgetful_redis, lasting, lasting_claims};
use crate::support::fixture::{LONG, claim, in_mode, lock_of, permits, rival};
use crate::support::redis_server::RedisServer;
use crate::support::stores::stream_of;
use crate::support::{EFFECT_TIMEOUT, eventually};

/// The next event, which must come sooner than any renewal of a lasting claim.
async fn next(hold: &mut Hold) -> Option<HoldEvent> {
    let event = tokio::time::timeout(EFFECT_TIMEOUT, hold.next()).await;
    event.expect("something happens at once")
}

/// A stream that already holds the lock.
async fn stream(replica: &Replica, claim: &Claim) -> Hold {
    let mut hold = stream_of(&replica.service, Arc::new(claim.clone()), None);
    let event = next(&mut hold).await;
    assert!(
        matches!(event, Some(HoldEvent::Acquired { .. })),
        "{event:?}"
    );
    hold
}

async fn evicted(mut hold: Hold) {
    let event = next(&mut hold).await;
    let is_evicted = matches!(event, Some(HoldEvent::Lost(NotHolder::Evicted { .. })));
    assert!(is_evicted, "{event:?}");
}

async fn both_hear_of(server: &RedisServer, channel: &str) {
    eventually("both replicas have subscribed", async || {
        let heard_by = server.command(&["PUBSUB", "NUMSUB", channel]).await;
        let heard_by = redis::from_redis_value(heard_by);
        let (_, heard_by): (String, u32) = heard_by.expect("a channel and a number");
        (heard_by == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_takes_over_and_closes_within_moments_frees_the_lock() {
    let server = forgetful_redis().await;
    let replicas = [
        Replica::open(&server.database(0)).await,
        Replica::open(&server.database(0)).await,
    ];
    for (number, claim) in lasting_claims("moments", 30).into_iter().enumerate() {
        let former = stream(&replicas[0], &claim).await;
        let new = stream(&replicas[number % 2], &claim).await;
        drop(former);
        // A different delay each time, so that different steps are in flight.
        tokio::time::sleep(Duration::from_micros(100 * number as u64 % 2_000)).await;
        drop(new);
        replicas[0].becomes_free(&claim).await;
    }
}

/// The service detects the dead connection of the first request after the second one holds.
#[tokio::test]
async fn a_dead_connection_does_not_release_what_another_request_holds() {
    let server = forgetful_redis().await;
    let [first, second] = [
        Replica::open(&server.database(0)).await,
        Replica::open(&server.database(0)).await,
    ];
    let ways: [fn(Claim) -> Claim; 2] = [|claim| claim, |claim| in_mode(&claim, permits(1, 3))];
    for in_way in ways {
        let claim = in_way(Claim {
            min_hold: Some(Duration::from_millis(1)),
            ..lasting(claim())
        });
        let former = stream(&first, &claim).await;
        let new = stream(&second, &claim).await;
        drop(former);
        first.service.shut_down(EFFECT_TIMEOUT).await;
        second.assert_holds(&claim).await;
        // A normal renewal took the lease over, so it does not depend on the stream any more.
        drop(new);
        second.service.shut_down(EFFECT_TIMEOUT).await;
        let released = first.release(&claim).await;
        assert!(
            matches!(released, Ok(Released::Freed { .. })),
            "{released:?}"
        );
    }
}

#[tokio::test]
async fn an_eviction_reaches_the_streams_of_all_replicas_at_once() {
    let server = forgetful_redis().await;
    let [first, second] = [
        Replica::open(&server.database(0)).await,
        Replica::open(&server.database(0)).await,
    ];
    both_hear_of(&server, "lh:1:evictions:0").await;
    let claim = in_mode(&lasting(claim()), permits(1, 3));
    let other = Claim {
        token: leasehold::domain::Token::random(),
        ..claim.clone()
    };
    let streams = [stream(&first, &claim).await, stream(&second, &other).await];
    let evict = first
        .service
        .evict(lock_of(&claim).clone(), String::new(), |_| {});
    assert_eq!(evict.await.expect("an answer").holders.total, 2);
    for stream in streams {
        evicted(stream).await;
    }
}

#[tokio::test]
async fn a_release_reaches_the_stream_of_another_replica_at_once() {
    let server = forgetful_redis().await;
    let [first, second] = [
        Replica::open(&server.database(3)).await,
        Replica::open(&server.database(3)).await,
    ];
    both_hear_of(&server, "lh:1:releases:3").await;
    let claim = in_mode(&lasting(claim()), permits(1, 3));
    let mut released = stream(&first, &claim).await;
    let other = Claim {
        token: leasehold::domain::Token::random(),
        ..claim.clone()
    };
    let mut stays = stream(&first, &other).await;
    let answer = second.release(&claim).await;
    assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    let event = next(&mut released).await;
    let is_released = matches!(event, Some(HoldEvent::Lost(NotHolder::Released)));
    assert!(is_released, "{event:?}");
    assert!(released.next().await.is_none());
    assert!(stays.next().now_or_never().is_none());
}

#[tokio::test]
async fn an_eviction_and_a_release_need_no_right_to_channels() {
    let server = forgetful_redis().await;
    server
        .command(&["ACL", "SETUSER", "default", "resetchannels"])
        .await;
    let replica = Replica::open(&server.database(0)).await;
    let claim = lasting(claim());
    let held = stream(&replica, &claim).await;
    let evict = replica
        .service
        .evict(lock_of(&claim).clone(), String::new(), |_| {});
    assert_eq!(evict.await.expect("an answer").holders.total, 1);
    evicted(held).await;
    replica.becomes_free(&claim).await;
    let claim = lasting(rival(&claim));
    let mut held = stream(&replica, &claim).await;
    let answer = replica.release(&claim).await;
    assert!(matches!(answer, Ok(Released::Freed { .. })), "{answer:?}");
    let event = next(&mut held).await;
    let is_released = matches!(event, Some(HoldEvent::Lost(NotHolder::Released)));
    assert!(is_released, "{event:?}");
}

#[tokio::test]
async fn a_full_redis_lets_streams_take_over_and_let_go() {
    let server = durable_redis().await;
    let replica = Replica::open(&server.database(0)).await;
    let claims = [
        lasting(claim()),
        Claim {
            min_hold: Some(LONG),
            ..lasting(claim())
        },
        Claim {
            min_hold: Some(LONG),
            ..in_mode(&lasting(claim()), permits(1, 3))
        },
    ];
    for claim in &claims {
        replica.granted(claim).await;
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1kb"]).await;
    for claim in &claims {
        drop(stream(&replica, claim).await);
    }
    replica.service.shut_down(EFFECT_TIMEOUT).await;
    for claim in &claims {
        let view = replica.service.inspect(lock_of(claim)).await;
        let state = view.expect("an answer").state;
        match claim.min_hold {
            None => assert_eq!(state, LockState::Free),
            Some(_) => assert!(matches!(state, LockState::Cooling { .. }), "{state:?}"),
        }
    }
}
