//! A lease that nodes lose and get back, while streams of its claim come and go.

use leasehold::domain::{Acquired, Attempt, RenewOptions, Renewed, Rollback, RollbackRight};
use leasehold::store::{LockStore, StoreError};

use super::nodes::Process;
use crate::support::fixture::{claim, deadline};

/// Whether an attempt has got the lease, as the first one or not.
fn is_received(answer: Result<Acquired, StoreError>) -> bool {
    matches!(answer, Ok(Acquired::Granted(_)))
}

/// The nodes have lost the lease one after the other, and got it back. A majority of them would keep the lock.
#[tokio::test(start_paused = true)]
async fn a_stream_that_closes_releases_the_lease_also_at_nodes_that_got_it_back() {
    let process = Process::alone();
    let (claim, attempt) = (claim(), Attempt::random());
    assert!(is_received(process.fixture.attempt(&claim, attempt).await));
    process.settled().await;
    let change = RenewOptions {
        rollback_right: RollbackRight::AsBefore,
        ..RenewOptions::default()
    };
    for node in [0, 1] {
        let store = &process.nodes[node].store;
        let lost = store.withdraw(&claim, attempt, Rollback::Close, deadline());
        lost.await.expect("the node answers");
        assert_eq!(process.held_at(&claim).await.len(), 2);
        let renewed = process
            .quorum
            .renew(&claim.names, claim.token, change, deadline());
        let renewed = renewed.await.expect("a majority answers");
        assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
        process.settled().await;
        assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
    }
    process.fixture.close(&claim, attempt).await;
    process.settled().await;
    assert!(process.held_at(&claim).await.is_empty());
}

/// The stream that was taken over renews, too, so it is its renewals that put the lease back.
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_taken_over_does_not_end_a_lease_that_nodes_got_back() {
    let process = Process::alone();
    let (claim, [first, second]) = (claim(), [Attempt::random(), Attempt::random()]);
    for attempt in [first, second] {
        assert!(is_received(process.fixture.attempt(&claim, attempt).await));
        process.settled().await;
    }
    let change = RenewOptions {
        rollback_right: RollbackRight::AsBefore,
        ..RenewOptions::default()
    };
    for node in [0, 1] {
        let store = &process.nodes[node].store;
        let lost = store.withdraw(&claim, second, Rollback::Close, deadline());
        lost.await.expect("the node answers");
        assert_eq!(process.held_at(&claim).await.len(), 2);
        let renewed = process
            .quorum
            .renew(&claim.names, claim.token, change, deadline());
        let renewed = renewed.await.expect("a majority answers");
        assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
        process.settled().await;
        assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
    }
    process.fixture.close(&claim, first).await;
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
    process.fixture.close(&claim, second).await;
    process.settled().await;
    assert!(process.held_at(&claim).await.is_empty());
}

/// One node misses the take-over, and another one loses the lease later.
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_taken_over_without_a_node_leaves_the_lease_to_a_majority() {
    let process = Process::alone();
    let (claim, [first, second]) = (claim(), [Attempt::random(), Attempt::random()]);
    assert!(is_received(process.fixture.attempt(&claim, first).await));
    process.settled().await;
    process.without(&[2]);
    assert!(is_received(process.fixture.attempt(&claim, second).await));
    process.settled().await;
    process.without(&[]);
    let lost = process.nodes[1]
        .store
        .withdraw(&claim, second, Rollback::Close, deadline());
    lost.await.expect("the node answers");
    let change = RenewOptions {
        rollback_right: RollbackRight::AsBefore,
        ..RenewOptions::default()
    };
    let renewed = process
        .quorum
        .renew(&claim.names, claim.token, change, deadline());
    let renewed = renewed.await.expect("a majority answers");
    assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
    process.settled().await;
    process.fixture.close(&claim, first).await;
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0, 1]);
}
