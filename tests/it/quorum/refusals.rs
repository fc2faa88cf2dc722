//! Refusals: what one node alone answers does not stand for all of them.

use leasehold::domain::{Claim, NotHolder};
use leasehold::store::LockStore;

use super::nodes::Process;
use crate::support::fixture::{SHORT, assert_held, claim, deadline, ended, for_short, rival};

async fn release_at(process: &Process, node: usize, claim: &Claim) {
    let store = &process.nodes[node].store;
    let released = store.release(&claim.names, claim.token, None, deadline());
    released.await.expect("the node answers");
}

#[tokio::test(start_paused = true)]
async fn a_held_lock_is_blocked_whichever_node_recovers() {
    for recovering in 0..3 {
        let process = Process::alone();
        let held = claim();
        process.fixture.granted(&held).await;
        process.nodes[recovering].recovers(true);
        assert_held(&process.fixture.acquire(&rival(&held)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_blocked_if_one_node_recovers_and_contenders_have_the_others() {
    for recovering in 0..3 {
        let process = Process::alone();
        let contender = claim();
        process.leave_at((recovering + 1) % 3, &contender).await;
        process.nodes[recovering].recovers(true);
        assert_held(&process.fixture.acquire(&rival(&contender)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_lease_ran_out_at_one_node_alone_has_not_ended() {
    for expired in 0..3 {
        let process = Process::alone();
        let claim = claim();
        let (contender, other) = (rival(&claim), (expired + 1) % 3);
        process.leave_at(expired, &for_short(&claim)).await;
        process.fixture.outlast(SHORT).await;
        process.leave_at(other, &contender).await;
        assert_held(&process.fixture.acquire(&claim).await);
        process.settled().await;
        release_at(&process, other, &contender).await;
        process.fixture.granted(&claim).await;
    }
}

/// Otherwise a claim could be granted after its release, if it was requested twice.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_released_at_one_node_has_ended() {
    for index in 0..3 {
        let process = Process::alone();
        let claim = claim();
        process.leave_at(index, &claim).await;
        release_at(&process, index, &claim).await;
        process.leave_at((index + 1) % 3, &rival(&claim)).await;
        let answer = process.fixture.acquire(&claim).await;
        assert_eq!(answer, ended(&claim, NotHolder::Released));
    }
}
