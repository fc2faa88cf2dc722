//! Views name the nodes that show another state of a lock than the majority, but not those that are only late.

use std::time::Duration;

use leasehold::domain::{Claim, LockState, LockView};
use leasehold::store::LockStore;
use tokio::time::Instant;

use super::nodes::{Process, has_granted, stores};
use crate::support::fixture::{Waiter, at_depth, claim, lock_of, rival};
use crate::support::scripted_store::Behavior;

async fn view(process: &Process, claim: &Claim) -> LockView {
    process.fixture.view(lock_of(claim)).await
}

async fn disagreeing(process: &Process, claim: &Claim) -> Vec<String> {
    view(process, claim).await.disagreeing_nodes
}

#[tokio::test(start_paused = true)]
async fn a_view_names_the_node_that_lacks_a_lease_until_a_renewal_puts_it_back() {
    for away in 0..3 {
        let process = Process::alone();
        let claim = claim();
        assert!(disagreeing(&process, &claim).await.is_empty());
        process.without(&[away]);
        process.fixture.granted(&claim).await;
        process.settled().await;
        assert!(disagreeing(&process, &claim).await.is_empty(), "it is down");
        process.without(&[]);
        let node = format!("node {}", away + 1);
        assert_eq!(disagreeing(&process, &claim).await, [node]);
        let mut disagreements = [0; 3];
        disagreements[away] = 1;
        let counted = process.quorum.health().nodes;
        let counted: Vec<_> = counted.iter().map(|node| node.disagreements).collect();
        assert_eq!(counted, disagreements);
        process.fixture.renewed(&claim, None).await;
        process.settled().await;
        assert!(disagreeing(&process, &claim).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_view_names_the_node_that_keeps_a_rest_another_token_another_depth_or_other_waiters() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let process = Process::alone();
    let rest = claim();
    process.leave_at(1, &rest).await;
    let free = view(&process, &rest).await;
    assert_eq!(free.state, LockState::Free);
    assert_eq!(free.disagreeing_nodes, ["node 2"]);

    let process = Process::on(&stores(&[HOUR, Duration::ZERO, Duration::ZERO]));
    let held = claim();
    process.without(&[0]);
    process.fixture.granted(&held).await;
    process.settled().await;
    process.leave_at(0, &held).await;
    process.without(&[]);
    assert_eq!(disagreeing(&process, &held).await, ["node 1"]);

    let process = Process::alone();
    let held = claim();
    process.fixture.granted(&held).await;
    process.settled().await;
    process.without(&[2]);
    assert!(has_granted(process.acquire(&at_depth(&held, 2)).await));
    process.settled().await;
    process.without(&[]);
    assert_eq!(disagreeing(&process, &held).await, ["node 3"]);

    let process = Process::alone();
    let held = claim();
    process.fixture.granted(&held).await;
    process.without(&[2]);
    let mut waiter = Waiter::new(rival(&held));
    process.fixture.still_waits(&mut waiter).await;
    process.settled().await;
    process.without(&[]);
    assert_eq!(disagreeing(&process, &held).await, ["node 3"]);
    process.fixture.still_waits(&mut waiter).await;
    process.settled().await;
    assert!(disagreeing(&process, &held).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_late_or_silent_is_not_named_and_delays_a_view_by_little() {
    let process = Process::alone();
    let claim = claim();
    process.fixture.granted(&claim).await;
    process.behaves(&[2], &Behavior::Delayed(Duration::from_millis(40)));
    process.fixture.freed(&claim).await;
    process.behaves(&[2], &Behavior::Answered);
    let began = Instant::now();
    let free = view(&process, &claim).await;
    assert_eq!(free.state, LockState::Free);
    assert!(free.disagreeing_nodes.is_empty());
    assert!(began.elapsed() < Duration::from_millis(100));

    process.behaves(&[2], &Behavior::Unanswered);
    let began = Instant::now();
    assert!(disagreeing(&process, &claim).await.is_empty());
    assert!(began.elapsed() <= Duration::from_millis(10));
}
