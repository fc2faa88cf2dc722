//! A change of a lease that one node alone has carried out, as an unclear outcome leaves it: whichever nodes answer first,
//! the claim and all others are told what most nodes have, and nothing is granted anew.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, HoldCount, Lease, LockState, Mode, Released, RenewOptions, Renewed,
};
use leasehold::store::LockStore;

use super::nodes::{Process, has_granted};
use super::tokens::replayed;
use crate::support::fixture::{
    READ, at_depth, claim, deadline, hold_count, in_mode, lock_of, only, upgrade_mismatch,
};
use crate::support::scripted_store::Behavior;

/// Less than an operation waits for the rest of the nodes.
const SLOW: Duration = Duration::from_millis(20);

/// Each node carries out a change alone of a lease at depth 3, and each node is the last one to answer.
async fn after_a_change_at_one_node(
    change: impl AsyncFn(&Process, usize, &Claim),
    check: impl AsyncFn(&Process, &Claim),
) {
    for changed in 0..3 {
        for slow in 0..3 {
            let process = Process::alone();
            let claim = claim();
            process.fixture.granted(&at_depth(&claim, 3)).await;
            process.settled().await;
            change(&process, changed, &claim).await;
            process.behaves(&[slow], &Behavior::Late(SLOW));
            check(&process, &claim).await;
        }
    }
}

/// The lease, by a repeat of the request.
pub(super) async fn repeated(process: &Process, claim: &Claim) -> Lease {
    match process.fixture.acquire(claim).await {
        Acquired::Granted(granted) => only(granted.leases),
        other => panic!("it holds the lock, but: {other:?}"),
    }
}

async fn is_told(process: &Process, claim: &Claim, expected: (HoldCount, Mode)) {
    for _ in 0..2 {
        let lease = repeated(process, claim).await;
        assert_eq!((lease.holder.hold_count, lease.holder.mode), expected);
        process.settled().await;
        let shown = only(process.fixture.holders(lock_of(claim)).await);
        assert_eq!((shown.hold_count, shown.mode), expected);
    }
    let renewed = process.fixture.renewed(claim, None).await.lease;
    assert_eq!((renewed.holder.hold_count, renewed.holder.mode), expected);
}

async fn share_at(process: &Process, node: usize, claim: &Claim) {
    let shared = RenewOptions {
        mode: Some(READ),
        ..RenewOptions::default()
    };
    let store = &process.nodes[node].store;
    let renewed = store.renew(&claim.names, claim.token, shared, deadline());
    assert!(matches!(renewed.await, Ok(Renewed::Extended(_))));
}

#[tokio::test(start_paused = true)]
async fn a_re_entry_at_one_node_is_told_by_none() {
    let enter = async |process: &Process, node: usize, claim: &Claim| {
        let (store, deeper) = (&process.nodes[node].store, at_depth(claim, 9));
        let entered = store.acquire(&deeper, Attempt::random(), None, deadline());
        assert!(has_granted(entered.await));
    };
    after_a_change_at_one_node(enter, async |process, claim| {
        is_told(process, claim, (hold_count(3), Mode::Exclusive)).await;
    })
    .await;
}

async fn step_back_at(process: &Process, node: usize, claim: &Claim) {
    let (store, step_back) = (&process.nodes[node].store, Some(hold_count(1).into()));
    let released = store.release(&claim.names, claim.token, step_back, deadline());
    let released = only(released.await.expect("it answers"));
    assert!(matches!(released, Released::SteppedBack(_)));
}

#[tokio::test(start_paused = true)]
async fn a_step_back_at_one_node_is_told_by_none() {
    after_a_change_at_one_node(step_back_at, async |process, claim| {
        is_told(process, claim, (hold_count(3), Mode::Exclusive)).await;
    })
    .await;
}

/// The first node has carried it out when the renewal asks it, and the others soon after.
#[tokio::test(start_paused = true)]
async fn a_renewal_takes_no_step_back_back_that_reaches_the_nodes_meanwhile() {
    for first in 0..3 {
        let process = Process::alone();
        let claim = claim();
        process.fixture.granted(&at_depth(&claim, 3)).await;
        process.settled().await;
        step_back_at(&process, first, &claim).await;
        process.behaves(&[first], &Behavior::Late(SLOW));
        let renewed = process.fixture.renewed(&claim, None).await.lease;
        assert_eq!(renewed.holder.hold_count, hold_count(3));
        for other in (0..3).filter(|node| *node != first) {
            step_back_at(&process, other, &claim).await;
        }
        process.settled().await;
        for node in &process.nodes {
            let view = node.store.inspect(lock_of(&claim), deadline()).await;
            let LockState::Held(holders) = view.expect("it answers").state else {
                panic!("it is held");
            };
            assert_eq!(only(holders.listed).hold_count, hold_count(1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_to_shared_at_one_node_is_told_by_none() {
    after_a_change_at_one_node(share_at, async |process, claim| {
        is_told(process, claim, (hold_count(3), Mode::Exclusive)).await;
    })
    .await;
}

/// The third node has it exclusively: with the one that has it shared it is the majority that holds.
#[tokio::test(start_paused = true)]
async fn a_lease_that_one_node_has_shared_and_another_one_lacks_is_not_granted_anew() {
    for [shared, lacking] in [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]] {
        let process = Process::alone();
        let claim = claim();
        process.without(&[lacking]);
        let fence = process.fixture.granted(&claim).await.holder.fence;
        process.settled().await;
        process.without(&[]);
        share_at(&process, shared, &claim).await;
        for _ in 0..2 {
            let repeated = process.fixture.acquire(&claim).await;
            assert_eq!(repeated, upgrade_mismatch(lock_of(&claim)));
            process.settled().await;
            let shown = only(process.fixture.holders(lock_of(&claim)).await);
            assert_eq!((shown.fence, shown.mode), (fence, READ));
        }
        // The request whose outcome was unclear, again.
        let renewed = process.fixture.renew_in_mode(&claim, READ).await;
        assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
        process.settled().await;
        assert_eq!(process.fences_at_nodes(&claim).await, [fence.get(); 3]);
        let repeated = process.fixture.acquire(&in_mode(&claim, READ)).await;
        assert_eq!(replayed(repeated), fence);
    }
}
