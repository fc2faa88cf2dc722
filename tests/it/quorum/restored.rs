//! A lease that nodes lose and get back, while streams of its claim come and go.

use std::sync::atomic::Ordering;

use leasehold::domain::{Acquired, Attempt, Claim, GrantKind, Rollback};
use leasehold::store::LockStore;

use super::nodes::Process;
use crate::support::fixture::{SHORT, claim, deadline, lock_of};
use crate::support::scripted_store::Behavior;

/// A stream gets the lease, as the first one or not.
async fn opens(process: &Process, claim: &Claim, stream: Attempt) {
    let answer = process.fixture.attempt(claim, stream).await;
    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
    process.settled().await;
}

async fn closes(process: &Process, claim: &Claim, stream: Attempt) {
    process.fixture.close(claim, stream).await;
    process.settled().await;
}

/// A node loses the lease that the stream has, and the next renewal of a stream finds that out.
async fn loses(process: &Process, node: usize, claim: &Claim, stream: Attempt) {
    let store = &process.nodes[node].store;
    let lost = store.withdraw(claim, stream, Rollback::Close, deadline());
    lost.await.expect("the node answers");
    assert!(!process.held_at(claim).await.contains(&node));
    process.renew_as_before(claim).await;
    process.settled().await;
    assert_eq!(process.held_at(claim).await, [0, 1, 2]);
}

/// The nodes have lost the lease one after the other, and got it back. A majority of them would keep the lock.
#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_releases_the_lease_also_at_nodes_that_got_it_back() {
    let process = Process::alone();
    let (claim, stream) = (claim(), Attempt::random());
    opens(&process, &claim, stream).await;
    for node in [0, 1] {
        loses(&process, node, &claim, stream).await;
    }
    closes(&process, &claim, stream).await;
    assert!(process.held_at(&claim).await.is_empty());
}

/// The node was away at a renewal, which has been repeated there since.
#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_releases_the_lease_also_at_a_node_that_is_back() {
    let process = Process::alone();
    let (claim, stream) = (claim(), Attempt::random());
    opens(&process, &claim, stream).await;
    let is_known_down = &process.nodes[2].is_known_down;
    process.without(&[2]);
    is_known_down.store(true, Ordering::Relaxed);
    process.renew_as_before(&claim).await;
    process.without(&[]);
    is_known_down.store(false, Ordering::Relaxed);
    process.settled().await;
    closes(&process, &claim, stream).await;
    assert!(process.held_at(&claim).await.is_empty());
}

/// The stream that was taken over renews, too, so it is its renewals that put the lease back.
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_taken_over_does_not_end_a_lease_that_nodes_got_back() {
    let process = Process::alone();
    let (claim, [first, second]) = (claim(), [Attempt::random(), Attempt::random()]);
    opens(&process, &claim, first).await;
    opens(&process, &claim, second).await;
    for node in [0, 1] {
        loses(&process, node, &claim, second).await;
    }
    closes(&process, &claim, first).await;
    assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
    closes(&process, &claim, second).await;
    assert!(process.held_at(&claim).await.is_empty());
}

/// One node misses the take-over, and another one loses the lease later.
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_taken_over_without_a_node_leaves_the_lease_to_a_majority() {
    let process = Process::alone();
    let (claim, [first, second]) = (claim(), [Attempt::random(), Attempt::random()]);
    opens(&process, &claim, first).await;
    process.without(&[2]);
    opens(&process, &claim, second).await;
    process.without(&[]);
    loses(&process, 1, &claim, second).await;
    closes(&process, &claim, first).await;
    assert_eq!(process.held_at(&claim).await, [0, 1]);
}

/// Two nodes have got the lease back. Without a majority that knows of the stream, it would learn that at its next renewal.
#[tokio::test(start_paused = true)]
async fn a_stream_is_told_of_the_release_of_a_lease_that_nodes_got_back() {
    let process = Process::alone();
    let (claim, stream) = (
        Claim {
            takes_over: true,
            ..claim()
        },
        Attempt::random(),
    );
    opens(&process, &claim, stream).await;
    for node in [0, 1] {
        loses(&process, node, &claim, stream).await;
    }
    process.fixture.freed(&claim).await;
    process.settled().await;
    let (lock, listener) = (lock_of(&claim), process.fixture.listener());
    assert_eq!(listener.releases_of(lock, claim.token.digest(lock)), 1);
}

/// The node has lost the lease, and another process gets it there before the renewal puts it back.
#[tokio::test(start_paused = true)]
async fn a_stream_keeps_a_lease_that_it_got_at_a_node_before_the_renewal_of_another_one_put_it_back()
 {
    let process = Process::alone();
    let (claim, [first, second]) = (claim(), [Attempt::random(), Attempt::random()]);
    opens(&process, &claim, first).await;
    let store = &process.nodes[2].store;
    let lost = store.withdraw(&claim, first, Rollback::Close, deadline());
    lost.await.expect("the node answers");
    process.behaves(&[2], &Behavior::Late(SHORT));
    process.renew_as_before(&claim).await;
    // The answer of the node is on its way.
    tokio::time::sleep(SHORT / 2).await;
    let granted = store.acquire(&claim, second, None, deadline()).await;
    assert_eq!(
        granted.expect("the node answers").kind(),
        Some(GrantKind::New)
    );
    process.settled().await;
    let closed = store.withdraw(&claim, second, Rollback::Close, deadline());
    assert_eq!(closed.await.expect("the node answers"), 1);
}
