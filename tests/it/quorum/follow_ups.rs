//! What a node is asked to do after a majority has decided, and how much of that it may have left.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{Claim, Rollback};
use leasehold::store::LockStore;

use super::nodes::{Process, is_granted, stores, unreachable};
use crate::support::fixture::{SHORT, claim, deadline, only};
use crate::support::scripted_store::Behavior;

/// More than half of what a node may have left to follow.
const MANY: usize = 2_500;

/// Each operation has one permit for what follows at a node that is down, so all of these have room at once.
#[tokio::test(start_paused = true)]
async fn an_operation_takes_the_room_of_one_at_a_node_that_is_down() {
    let process = Process::alone();
    process.behaves(&[1], &unreachable());
    let claims: Vec<Claim> = std::iter::repeat_with(claim).take(MANY).collect();
    let granted = join_all(claims.iter().map(|claim| process.acquire(claim))).await;
    assert!(granted.into_iter().all(is_granted));
    assert!(process.quorum.in_progress() >= MANY, "all of them follow");
    process.settled().await;
    let health = process.quorum.health();
    assert_eq!(health.nodes[1].dropped_follow_ups, 0);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_have_proposed_the_token_of_the_grant_are_asked_no_more() {
    let process = Process::on(&stores(&[Duration::ZERO; 3]));
    let claim = claim();
    let lease = process.fixture.granted(&claim).await;
    process.settled().await;
    let fence = lease.holder.fence.get();
    assert_eq!(process.fences_at_nodes(&claim).await, [fence; 3]);
    let assignments = process.nodes.iter().map(|node| node.assignments());
    assert_eq!(assignments.collect::<Vec<_>>(), [0; 3]);
}

/// The third node was away, and proposes another token.
#[tokio::test(start_paused = true)]
async fn a_node_that_follows_with_another_token_is_asked_once() {
    let process = Process::on(&stores(&[Duration::ZERO; 3]));
    process.without(&[2]);
    let claim = claim();
    let lease = process.fixture.granted(&claim).await;
    process.without(&[]);
    process.settled().await;
    let fence = lease.holder.fence.get();
    assert_eq!(process.fences_at_nodes(&claim).await, [fence; 3]);
    let assignments = process.nodes.iter().map(|node| node.assignments());
    assert_eq!(assignments.collect::<Vec<_>>(), [0, 0, 1]);
}

/// It proposes a token of its own, and lacks the lease when the decided one arrives.
#[tokio::test(start_paused = true)]
async fn a_node_that_loses_the_lease_before_it_records_the_token_gets_both() {
    let process = Process::alone();
    let (claim, node) = (claim(), &process.nodes[0]);
    node.records_operations();
    node.next_assignments([Behavior::Delayed(SHORT)]);
    let lease = process.fixture.granted(&claim).await;
    let attempt = only(node.take_executed())
        .attempt
        .expect("it is an acquire");
    let lost = node
        .store
        .withdraw(&claim, attempt, Rollback::Undo, deadline());
    assert_eq!(lost.await.expect("the node answers"), 1);
    process.settled().await;
    let fence = lease.holder.fence.get();
    assert_eq!(process.fences_at_nodes(&claim).await, [fence; 3]);
}
