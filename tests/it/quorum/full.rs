//! Nodes that have no room for another claim: the others decide, and an answer says that the store is full only if it is so
//! at as many nodes as keep a majority from granting anything.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Acquired, GrantKind};
use leasehold::store::memory::MemoryStore;
use leasehold::store::state::StoreTime;
use leasehold::store::{Fault, StoreError};

use super::nodes::{Process, is_granted};
use crate::support::fixture::{Waiter, assert_held, claim, rival};
use crate::support::scripted_store::Behavior;

/// A process on three nodes, of which these have room for one claim.
fn with_room_for_one(nodes: &[usize]) -> Process {
    let since_1970 = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
    let store = |node: usize| {
        let locks_max = if nodes.contains(&node) { 1 } else { 10_000 };
        let ahead = Duration::from_micros(node as u64);
        let store = MemoryStore::starting_at(locks_max, StoreTime::at(since_1970 + ahead));
        Arc::new(store)
    };
    Process::on(&[0, 1, 2].map(store))
}

/// A process on three nodes, of which these are full.
async fn with_full(full: &[usize]) -> Process {
    let process = with_room_for_one(full);
    for node in full {
        process.leave_at(*node, &claim()).await;
    }
    process
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_granted_while_one_node_is_full() {
    for full in 0..3 {
        let process = with_full(&[full]).await;
        let claim = claim();
        assert!(is_granted(process.acquire(&claim).await), "{full}");
        assert_held(&process.acquire(&rival(&claim)).await.expect("two answer"));
        let mut waiter = Waiter::new(rival(&claim));
        process.fixture.still_waits(&mut waiter).await;
        process.fixture.freed(&claim).await;
        process.fixture.granted_after_wait(&mut waiter).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_quorum_is_full_if_a_majority_of_its_nodes_is() {
    for with_room in 0..3 {
        let full: Vec<_> = (0..3).filter(|node| *node != with_room).collect();
        for is_silent in [false, true] {
            let process = with_full(&full).await;
            if is_silent {
                process.behaves(&[with_room], &Behavior::Unanswered);
            }
            match process.acquire(&claim()).await {
                Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Limit),
                other => panic!("two nodes have no room, but: {other:?}"),
            }
        }
    }
}

/// Once the others answer, they are a majority.
#[tokio::test(start_paused = true)]
async fn a_quorum_is_not_full_while_a_silent_node_may_have_room() {
    for full in 0..3 {
        for other in (0..3).filter(|node| *node != full) {
            let rest = 3 - full - other;
            for (silent, down) in [
                (vec![other], None),
                (vec![other, rest], None),
                (vec![], Some(other)),
            ] {
                let process = with_full(&[full]).await;
                process.without(&down.into_iter().collect::<Vec<_>>());
                process.behaves(&silent, &Behavior::Unanswered);
                let expected = down.map_or(Fault::Timeout, |_| Fault::Io);
                match process.acquire(&claim()).await {
                    Err(error) => assert_eq!(error.fault(), expected, "{error}"),
                    Ok(answer) => panic!("there is no majority, but: {answer:?}"),
                }
            }
        }
    }
}

/// Another process has asked for the same claim, and another claim has the third node. A full node would repeat the grant of
/// a lease that it has, because that needs no room: so the lease has no majority.
#[tokio::test(start_paused = true)]
async fn a_claim_does_not_hold_because_a_full_node_refuses_it() {
    for full in 0..3 {
        for holding in (0..3).filter(|node| *node != full) {
            let process = with_full(&[full]).await;
            let claim = claim();
            process.leave_at(holding, &claim).await;
            process.leave_at(3 - full - holding, &rival(&claim)).await;
            match process.acquire(&claim).await {
                Ok(answer) => assert_held(&answer),
                Err(error) => panic!("two nodes have room, but: {error}"),
            }
        }
    }
}

/// It is full since it has the lease, and a contender has the third node.
#[tokio::test(start_paused = true)]
async fn a_full_node_repeats_the_grant_of_a_lease_that_it_has() {
    for [full, contended] in [[0, 1], [1, 0], [0, 2], [2, 1]] {
        let process = with_room_for_one(&[full]);
        let claim = claim();
        process.leave_at(contended, &rival(&claim)).await;
        process.fixture.granted(&claim).await;
        process.settled().await;
        match process.acquire(&claim).await {
            Ok(Acquired::Granted(granted)) => assert_eq!(granted.kind, GrantKind::Replayed),
            other => panic!("two nodes have the lease, but: {other:?}"),
        }
    }
}
