//! Claims on locks of several primaries, of which one cannot do its part.

use std::sync::Arc;

use leasehold::domain::{Acquired, LockState};
use leasehold::store::Fault;

use super::{cluster, lasting, locks_on, open};
use crate::faults::Replica;
use crate::support::fixture::{Waiter, claim_on, claim_on_all, deadline, names};
use crate::support::redis_server::RedisServer;

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
