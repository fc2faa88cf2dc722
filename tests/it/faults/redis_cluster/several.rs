//! Claims on locks of several primaries, of which one cannot do its part.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Acquired, Claim, LockName, LockState, Refused};
use leasehold::service::AcquireOutcome;
use leasehold::store::Fault;
use tokio::time::Instant;

use super::{TTL, cluster, held_for, is_recovering, lasting, lasting_for, locks_on, open, rival};
use crate::faults::Replica;
use crate::support::cluster::RedisCluster;
use crate::support::fixture::{Fixture, Waiter, claim_on, claim_on_all, deadline, lock_of, names};
use crate::support::redis_server::RedisServer;
use crate::support::{EFFECT_TIMEOUT, eventually};

/// A Redis without memory executes what only reads, and refuses what writes.
async fn fill(node: &RedisServer) {
    node.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
}

async fn empty(node: &RedisServer) {
    node.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
}

/// The wait may last for long, and others want the locks meanwhile.
#[tokio::test]
async fn a_waiting_claim_that_one_primary_cannot_grant_holds_nothing_on_the_others() {
    let cluster = cluster().await;
    let store = open(&cluster.address()).await.expect("the store opens");
    let replica = Replica::on(Arc::clone(&store));
    let locks = locks_on([0, 1], &cluster, &replica).await;
    let waiter = Waiter::new(lasting(claim_on_all(names(&locks))));
    let ask = async || {
        let Waiter {
            claim,
            attempt,
            queue_request,
        } = &waiter;
        let asking = store.acquire(claim, *attempt, Some(queue_request), deadline());
        asking.await
    };
    fill(&cluster.nodes[1]).await;
    let answer = ask().await;
    let fault = answer.expect_err("it needs room").fault();
    assert_eq!(fault, Fault::Full);
    for lock in &locks {
        let view = store.inspect(lock, deadline()).await.expect("it answers");
        assert_eq!(view.state, LockState::Free, "{lock}");
    }
    empty(&cluster.nodes[1]).await;
    let answer = ask().await;
    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
}

/// As one on locks of a single Redis does.
#[tokio::test]
async fn a_claim_that_one_primary_does_not_grant_yet_waits_in_all_queues() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    // A grace is as long as the longest lease.
    let (free, _) = held_for(TTL, 0, &cluster, &replica).await;
    replica.release(&free).await.expect("it answers");
    let (lost, _) = held_for(TTL, 1, &cluster, &replica).await;
    let held_until = Instant::now() + TTL;
    replica.assert_holds(&lost).await;
    let locks = [lock_of(&free), lock_of(&lost)];
    cluster.nodes[1].command(&["FLUSHALL"]).await;
    is_recovering(&replica, &rival(&lost)).await;
    let both = lasting_for(TTL, claim_on_all(names(locks)));
    let waiting = async {
        let answer = replica.acquire_within(&both, TTL * 3).await;
        let is_granted = matches!(answer, Ok(AcquireOutcome::Granted(_)));
        assert!(is_granted, "{answer:?}");
        assert!(Instant::now() >= held_until, "the lost lease has not ended");
    };
    let queued = eventually("it has a place in both queues", async || {
        for lock in locks {
            let view = replica.service.inspect(lock).await.ok()?;
            (view.queue.length == 1).then_some(())?;
        }
        Some(())
    });
    tokio::join!(waiting, queued);
}

/// The retry finds one place only. It must neither be another claim's, nor a new one, behind those that came later.
#[tokio::test]
async fn the_retry_of_a_claim_that_waits_has_its_place_where_a_primary_has_lost_it() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let [lost, kept, third] = locks_on([0, 1, 1], &cluster, &replica).await;
    let held = lasting(claim_on(&kept));
    replica.granted(&held).await;
    let both = lasting(claim_on_all(names([&lost, &kept])));
    let store = open(&cluster.address()).await.expect("the store opens");
    let fixture = Fixture::on(store, None);
    let first = fixture.waiting(&both).await;
    cluster.nodes[0].command(&["FLUSHALL"]).await;
    is_recovering(&replica, &claim_on(&lost)).await;
    let sequence = |waiter: &Waiter| waiter.queue_request.ticket.map(|it| it.sequence);
    let mut retry = first.again();
    fixture.still_waits(&mut retry).await;
    assert_eq!(sequence(&retry), sequence(&first));
    for lock in [&lost, &kept] {
        assert_eq!(fixture.queue(lock).await.length, 1, "{lock}");
    }
    // The token is still that of a claim on these two alone.
    let other = Claim {
        names: names([&lost, &third]),
        ..both
    };
    let answer = replica.acquire(&other).await;
    let is_mismatch = matches!(answer, Ok(AcquireOutcome::Refused(Refused::Mismatched(_))));
    assert!(is_mismatch, "{answer:?}");
}

/// A place in one of its queues alone would keep others waiting, and would be that of another claim at the next attempt.
#[tokio::test]
async fn a_claim_that_one_primary_cannot_queue_has_a_place_nowhere() {
    let cluster = cluster().await;
    let store = open(&cluster.address()).await.expect("the store opens");
    let replica = Replica::on(Arc::clone(&store));
    let locks = locks_on([0, 1], &cluster, &replica).await;
    let held = lasting(claim_on(&locks[0]));
    replica.granted(&held).await;
    let waiter = Waiter::new(lasting(claim_on_all(names(&locks))));
    let ask = async |waiter: &Waiter| {
        let request = Some(&waiter.queue_request);
        let asking = store.acquire(&waiter.claim, waiter.attempt, request, deadline());
        asking.await
    };
    fill(&cluster.nodes[1]).await;
    let answer = ask(&waiter).await;
    let fault = answer.expect_err("it needs room").fault();
    assert_eq!(fault, Fault::Full);
    for lock in &locks {
        let view = store.inspect(lock, deadline()).await.expect("it answers");
        assert_eq!(view.queue.length, 0, "{lock}");
    }
    empty(&cluster.nodes[1]).await;
    let answer = ask(&waiter.again()).await;
    assert!(matches!(answer, Ok(Acquired::Waiting(_))), "{answer:?}");
}

/// It must not be told that its token belongs to another claim, because one primary has forgotten it.
#[tokio::test]
async fn the_retry_of_a_claim_that_holds_is_recovering_where_a_primary_has_lost_its_lease() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let (both, _) = held_on_both(&cluster, &replica).await;
    cluster.nodes[1].command(&["FLUSHALL"]).await;
    // No other request and no check of the store may be needed to notice it.
    retry_is_recovering(&replica, &both).await;
}

/// The lock is free there, but another claim is first in its queue.
#[tokio::test]
async fn the_retry_of_a_claim_that_holds_is_recovering_where_another_one_waits_for_what_is_lost() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let store = open(&cluster.address()).await.expect("the store opens");
    let fixture = Fixture::on(store, None);
    let (both, _) = held_on_both(&cluster, &replica).await;
    let mut waiter = fixture.waiting(&rival(&both)).await;
    cluster.nodes[1].command(&["FLUSHALL"]).await;
    // It has its place again, without having found out that data are lost.
    fixture.still_waits(&mut waiter).await;
    retry_is_recovering(&replica, &both).await;
}

#[tokio::test]
async fn the_retry_of_a_claim_that_holds_is_recovering_where_others_wait_for_the_grace() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let store = open(&cluster.address()).await.expect("the store opens");
    let fixture = Fixture::on(store, None);
    let (both, lost) = held_on_both(&cluster, &replica).await;
    let mut waiter = fixture.waiting(&lasting(claim_on(&lost))).await;
    cluster.nodes[1].command(&["FLUSHALL"]).await;
    fixture.still_waits(&mut waiter).await;
    eventually("the process knows that grants wait", async || {
        replica.service.store_health().recovering_for
    })
    .await;
    retry_is_recovering(&replica, &both).await;
}

/// A claim that holds a lock of each of two primaries, and the one of the second.
async fn held_on_both(cluster: &RedisCluster, replica: &Replica) -> (Claim, LockName) {
    let [first, second] = locks_on([0, 1], cluster, replica).await;
    let both = lasting(claim_on_all(names([&first, &second])));
    eventually("both are granted", async || {
        replica.acquire(&both).await.ok()?.kind()
    })
    .await;
    (both, second)
}

async fn retry_is_recovering(replica: &Replica, claim: &Claim) {
    for wait in [Duration::ZERO, EFFECT_TIMEOUT] {
        // While connections are opened anew, a request may end without an answer.
        eventually("new grants wait", async || {
            match replica.acquire_within(claim, wait).await {
                Ok(AcquireOutcome::Refused(Refused::Recovering { .. })) => Some(()),
                Err(_) => None,
                other => panic!("a part of its locks may be lost, but: {other:?}"),
            }
        })
        .await;
    }
}

/// One Redis names what is in the way, too, while it recovers.
#[tokio::test]
async fn a_claim_that_does_not_wait_names_what_holds_a_lock_beside_one_that_recovers() {
    let cluster = cluster().await;
    let replica = super::replica(&cluster).await;
    let [kept, lost] = locks_on([0, 1], &cluster, &replica).await;
    let held = lasting(claim_on(&kept));
    replica.granted(&held).await;
    cluster.nodes[1].command(&["FLUSHALL"]).await;
    is_recovering(&replica, &claim_on(&lost)).await;
    let both = lasting(claim_on_all(names([&kept, &lost])));
    let answer = replica.acquire(&both).await;
    let Ok(AcquireOutcome::Refused(Refused::Blocked(conflicts))) = answer else {
        panic!("a lock is held, but: {answer:?}");
    };
    let blocked: Vec<_> = conflicts.iter().map(|conflict| &conflict.name).collect();
    assert_eq!(blocked, [&kept]);
    replica.release(&held).await.expect("it answers");
    is_recovering(&replica, &both).await;
}
