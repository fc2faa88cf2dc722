//! Leases that end early at one node, as by a step of its clock forward, or one back that is undone: the others keep them.

use std::time::Duration;

use leasehold::domain::{Claim, LockState, NotHolder, RenewOptions};
use leasehold::store::LockStore;

use super::nodes::{Process, is_granted};
use crate::support::fixture::{LONG, SHORT, claim, deadline, lock_of, not_holder, rival, ttl};

/// For how long a node remembers that a lease ran out there.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The shortest time that a node keeps a lease.
const AT_ONCE: Duration = Duration::from_millis(1);

impl Process {
    /// Has the lease of the claim end early at one node. A process that notices the step has the node grant nothing until
    /// the leases that may have ended are over.
    async fn ends_early_at(&self, node: usize, claim: &Claim) {
        let change = RenewOptions {
            ttl: Some(ttl(SHORT)),
            ..RenewOptions::default()
        };
        let store = &self.nodes[node].store;
        let renewed = store.renew(&claim.names, claim.token, change, deadline());
        renewed.await.expect("the node answers");
        self.fixture.outlast(SHORT).await;
        self.nodes[node].recovers(true);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_ended_early_at_one_node_goes_on_and_is_back_there_after_a_minute() {
    for early in 0..3 {
        let process = Process::alone();
        let claim = claim();
        process.fixture.granted(&claim).await;
        process.settled().await;
        process.ends_early_at(early, &claim).await;
        process.nodes[early].recovers(false);
        let others: Vec<_> = (0..3).filter(|node| *node != early).collect();
        for is_over in [false, false, true] {
            process.fixture.renewed(&claim, None).await;
            process.settled().await;
            let held = process.held_at(&claim).await;
            match is_over {
                false => assert_eq!(held, others),
                true => assert_eq!(held, [0, 1, 2]),
            }
            assert!(!is_granted(process.acquire(&rival(&claim)).await));
            process.fixture.advance(REMEMBERED / 2 + SHORT).await;
        }
        assert!(REMEMBERED / 2 + SHORT < LONG, "or it would not be renewed");
    }
}

/// Then it rests on one node, which is no majority. Its holder has to stop, and nobody else gets the lock.
#[tokio::test(start_paused = true)]
async fn a_lease_that_has_ended_early_at_one_node_and_is_missing_at_another_is_lost_and_not_granted_again()
 {
    for early in [0, 1] {
        let process = Process::alone();
        process.without(&[2]);
        let claim = claim();
        process.fixture.granted(&claim).await;
        process.settled().await;
        process.without(&[]);
        process.ends_early_at(early, &claim).await;
        for _ in 0..2 {
            assert!(!is_granted(process.acquire(&rival(&claim)).await));
            let lost = not_holder(&claim, NotHolder::Expired);
            assert_eq!(process.fixture.renew(&claim).await, lost);
        }
    }
}

/// The third node has the lease for longer than the others, so it extends what is not held any more.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_comes_too_late_for_a_majority_leaves_no_rest() {
    let process = Process::alone();
    let claim = claim();
    process.fixture.granted(&claim).await;
    process.settled().await;
    for early in [0, 1] {
        process.ends_early_at(early, &claim).await;
    }
    assert_eq!(process.held_at(&claim).await, [2]);
    let lost = not_holder(&claim, NotHolder::Expired);
    for _ in 0..2 {
        assert_eq!(process.fixture.renew(&claim).await, lost);
        process.settled().await;
        process.fixture.outlast(AT_ONCE).await;
        assert!(process.held_at(&claim).await.is_empty());
    }
    // Nobody has released it, which the node would tell at the next renewal.
    let (store, change) = (&process.nodes[2].store, RenewOptions::default());
    let renewed = store.renew(&claim.names, claim.token, change, deadline());
    assert_eq!(renewed.await.expect("the node answers"), lost);
}

/// What another process has left at a node may be released there.
#[tokio::test(start_paused = true)]
async fn a_lease_that_has_run_out_at_a_majority_was_not_released() {
    for released in 0..3 {
        let process = Process::alone();
        let claim = claim();
        process.fixture.granted(&claim).await;
        process.settled().await;
        process.fixture.advance(LONG - SHORT).await;
        let store = &process.nodes[released].store;
        let answer = store.release(&claim.names, claim.token, None, deadline());
        answer.await.expect("the node answers");
        process.fixture.outlast(SHORT).await;
        let lost = not_holder(&claim, NotHolder::Expired);
        assert_eq!(process.fixture.renew(&claim).await, lost);
    }
}

/// One node has missed the release and extends the lease. If that ended by running out, its `lock_delay` would close the lock.
#[tokio::test(start_paused = true)]
async fn what_a_node_extends_of_a_released_lease_is_released_there() {
    for extending in 0..3 {
        let process = Process::alone();
        let claim = Claim {
            lock_delay: Some(LONG),
            ..claim()
        };
        process.fixture.granted(&claim).await;
        process.settled().await;
        for node in (0..3).filter(|node| *node != extending) {
            let store = &process.nodes[node].store;
            let released = store.release(&claim.names, claim.token, None, deadline());
            released.await.expect("the node answers");
        }
        let lost = not_holder(&claim, NotHolder::Released);
        assert_eq!(process.fixture.renew(&claim).await, lost);
        process.settled().await;
        process.fixture.outlast(AT_ONCE).await;
        let store = &process.nodes[extending].store;
        let view = store.inspect(lock_of(&claim), deadline()).await;
        assert_eq!(view.expect("the node answers").state, LockState::Free);
    }
}
