//! The clock of Redis is set.

use std::sync::Arc;
use std::time::Duration;

use leasehold::service::Outcome;
use tokio::time::Instant;

use super::{Replica, lasting, lasting_for};
use crate::support::bench::{claim, lock_of, only, rival};
use crate::support::eventually;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// Longer than the least time that new grants wait after a loss, and short enough to be waited out.
const TTL: Duration = Duration::from_secs(5);

const AN_HOUR: Duration = Duration::from_secs(3600);

async fn redis_with_a_movable_clock() -> RedisServer {
    RedisServer::start(RedisOptions {
        has_movable_clock: true,
        ..RedisOptions::default()
    })
    .await
}

/// By one process that finds out by its own request, and by another one that finds out when it looks.
#[tokio::test]
async fn a_clock_that_jumps_forward_ends_no_lease_for_anybody_else() {
    let server = redis_with_a_movable_clock().await;
    let holding = Replica::open(&server.database(0)).await;
    let other = Replica::open(&server.database(0)).await;
    other.surveys.abort();
    let held = lasting_for(TTL, claim());
    let lease = holding.lease(&held).await;
    let held_until = Instant::now() + lease.holder.expires_in;
    server.move_clock(AN_HOUR);
    let (next, elsewhere) = (rival(&held), claim());
    let (granted, _) = tokio::join!(
        other.granted_not_before(&next, held_until),
        holding.granted_not_before(&elsewhere, held_until),
    );
    assert!(granted.holder.fence > lease.holder.fence);
    // And it is over: nobody waits for a jump that is over.
    other.granted(&lasting(claim())).await;
}

#[tokio::test]
async fn whoever_waits_while_the_clock_jumps_forward_waits_on_and_keeps_the_order() {
    let server = redis_with_a_movable_clock().await;
    let replicas = [
        Arc::new(Replica::open(&server.database(0)).await),
        Arc::new(Replica::open(&server.database(0)).await),
    ];
    let held = lasting_for(TTL, claim());
    let lease = replicas[0].lease(&held).await;
    let held_until = Instant::now() + lease.holder.expires_in;
    let mut waiting = Vec::new();
    for length in 1..=4 {
        let replica = Arc::clone(&replicas[length % 2]);
        let waiter = lasting(rival(&held));
        waiting.push(tokio::spawn(async move {
            let answer = replica.acquire_within(&waiter, TTL * 4).await;
            let Ok(Outcome::Granted(leases)) = answer else {
                panic!("it waits on, but: {answer:?}");
            };
            let granted = Instant::now();
            replica.release(&waiter).await.expect("the store answers");
            (only(leases).holder.fence, granted)
        }));
        let replica = &replicas[0];
        eventually("it is queued", async || {
            let view = replica.service.inspect(lock_of(&held)).await.ok()?;
            (view.queue.length == length as u64).then_some(())
        })
        .await;
    }
    server.move_clock(AN_HOUR);
    let mut last = None;
    for waiter in waiting {
        let (fence, granted) = waiter.await.expect("it was granted");
        assert!(granted >= held_until, "granted while the lease is alive");
        assert!(last < Some(fence), "{fence} after {last:?}");
        last = Some(fence);
    }
}

/// The process stood still, not the clock: nothing has been lost.
#[tokio::test]
async fn a_redis_that_answers_late_has_not_jumped() {
    let server = redis_with_a_movable_clock().await;
    let replica = Replica::open(&server.database(0)).await;
    replica.granted(&lasting(claim())).await;
    server.pause();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    server.resume();
    let answer = eventually("Redis answers", async || {
        replica.acquire(&lasting(claim())).await.ok()
    })
    .await;
    assert!(matches!(answer, Outcome::Granted(_)), "{answer:?}");
}
