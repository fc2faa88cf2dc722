//! What a node is asked to do after a majority has decided, and how much of that it may have left.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{Claim, Rollback};
use leasehold::store::LockStore;
use tokio::time::Instant;

use super::nodes::{Process, has_granted, is_granted, stores, unreachable};
use crate::support::fixture::{SHORT, claim, deadline, only, rival};
use crate::support::scripted_store::Behavior;

/// How long a node takes that is slow, but not as slow as a node that is given up.
const SLOW: Duration = Duration::from_millis(400);

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

/// It answers within the time that a follow-up has, and may miss one try to record the token.
#[tokio::test(start_paused = true)]
async fn a_node_that_follows_slowly_gets_the_lease_and_its_token() {
    for misses in 0..2 {
        let process = Process::on(&stores(&[Duration::ZERO; 3]));
        process.without(&[2]);
        let claim = claim();
        let lease = process.fixture.granted(&claim).await;
        process.behaves(&[2], &Behavior::Delayed(SLOW));
        process.nodes[2].next_assignments(std::iter::repeat_n(unreachable(), misses));
        process.settled().await;
        let fence = lease.holder.fence.get();
        assert_eq!(process.fences_at_nodes(&claim).await, [fence; 3]);
    }
}

/// The others hold the lock already.
#[tokio::test(start_paused = true)]
async fn a_node_that_follows_slowly_takes_back_what_it_has_granted() {
    let process = Process::alone();
    let holding = claim();
    let rival = rival(&holding);
    process.without(&[0]);
    process.fixture.granted(&holding).await;
    process.settled().await;
    process.behaves(&[0], &Behavior::Delayed(SLOW));
    let began = Instant::now();
    assert!(!has_granted(process.acquire(&rival).await));
    process.settled().await;
    assert!(began.elapsed() < SLOW * 3, "it is asked twice");
    assert_eq!(process.held_at(&rival).await, [1, 2]);
}

/// It was away when the lease was granted, and is slow when a renewal brings it what it lacks.
#[tokio::test(start_paused = true)]
async fn a_node_that_follows_slowly_gets_what_was_renewed() {
    let process = Process::on(&stores(&[Duration::ZERO; 3]));
    process.without(&[2]);
    let claim = claim();
    let lease = process.fixture.granted(&claim).await;
    process.settled().await;
    process.behaves(&[2], &Behavior::Delayed(SLOW));
    process.fixture.renewed(&claim, None).await;
    process.settled().await;
    let fence = lease.holder.fence.get();
    assert_eq!(process.fences_at_nodes(&claim).await, [fence; 3]);
}
