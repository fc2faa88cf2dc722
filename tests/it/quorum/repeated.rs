//! A client that repeats its request at another process while the first one is being granted there: the token that it is told
//! is the one that the lease has.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Claim, Fence, LockState, Mode, Released, RenewOptions, Renewed, RollbackRight,
};
use leasehold::store::{LockStore, StoreError};
use tokio::time::sleep;

use super::nodes::{Process, has_granted, stores, unreachable};
use crate::support::fixture::{at_depth, claim, deadline, in_mode, lock_of, only, permits, rival};
use crate::support::scripted_store::Behavior;

/// By how much the clocks of the nodes differ.
const AHEAD: Duration = Duration::from_secs(3_600);

/// Less than a view waits until it is taken again.
const STEP: Duration = Duration::from_millis(1);

/// An exclusive claim, and one of which the nodes also say who takes permits.
fn claims() -> [Claim; 2] {
    [claim(), in_mode(&claim(), permits(2, 3))]
}

fn told(answer: Result<Acquired, StoreError>) -> Fence {
    match answer.expect("a majority answers") {
        Acquired::Granted(granted) => only(granted.leases).holder.fence,
        other => panic!("nobody else wants the lock, but: {other:?}"),
    }
}

async fn shown(process: &Process, claim: &Claim) -> Fence {
    let view = process.quorum.view(lock_of(claim), deadline()).await;
    match view.expect("a majority answers").state {
        LockState::Held(holders) => only(holders.listed).fence,
        other => panic!("the claim holds the lock, but: {other:?}"),
    }
}

/// Follows what the first process does meanwhile.
async fn stays(process: &Process, claim: &Claim, fence: Fence) {
    for _ in 0..100 {
        sleep(STEP).await;
        assert_eq!(shown(process, claim).await, fence);
    }
}

/// The first process decides without the third node, whose proposal is larger. The second one has that proposal recorded, and
/// then the first one hears of it.
#[tokio::test(start_paused = true)]
async fn a_node_that_follows_an_earlier_grant_keeps_the_token_of_a_repeated_request() {
    // After a renewal, no attempt may roll the lease back.
    for (claim, renews) in claims()
        .into_iter()
        .flat_map(|claim| [(claim.clone(), false), (claim, true)])
    {
        let shared = stores(&[Duration::ZERO, AHEAD, AHEAD * 2]);
        let [first, second] = [Process::on(&shared), Process::on(&shared)];
        first.behaves(&[2], &Behavior::Late(STEP * 30));
        for node in &first.nodes[..2] {
            node.next_assignments([Behavior::Delayed(STEP * 10)]);
        }
        for node in &second.nodes {
            node.next_assignments([Behavior::Delayed(STEP * 20)]);
        }
        let repeated = async {
            sleep(STEP).await;
            first.behaves(&[2], &Behavior::Answered);
            let repeated = told(second.acquire(&claim).await);
            if renews {
                second.fixture.renewed(&claim, None).await;
            }
            stays(&second, &claim, repeated).await;
        };
        let (earlier, ()) = tokio::join!(first.acquire(&claim), repeated);
        assert!(has_granted(earlier));
    }
}

/// The first process brings the third node to its grant as soon as nothing is in the way there, and the second one has got the
/// lease there meanwhile.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_taken_keeps_the_token_of_a_repeated_request() {
    for claim in claims() {
        let shared = stores(&[Duration::ZERO, AHEAD, AHEAD * 2]);
        let [first, second] = [Process::on(&shared), Process::on(&shared)];
        let in_the_way = in_mode(&rival(&claim), Mode::Exclusive);
        first.leave_at(2, &in_the_way).await;
        let earlier = told(first.acquire(&claim).await);
        let freed = shared[2].release(&in_the_way.names, in_the_way.token, None, deadline());
        freed.await.expect("the node answers");
        second.without(&[1]);
        let repeated = told(second.acquire(&claim).await);
        assert!(earlier < repeated, "the node that was taken proposes it");
        stays(&first, &claim, repeated).await;
    }
}

/// The second process hears nothing of the node with the largest proposal, on which the first one has decided.
#[tokio::test(start_paused = true)]
async fn an_earlier_request_does_not_change_the_token_of_a_repeated_one() {
    for claim in claims() {
        let shared = stores(&[AHEAD, AHEAD * 2, Duration::ZERO]);
        let [first, second] = [Process::on(&shared), Process::on(&shared)];
        first.behaves(&[2], &Behavior::Late(STEP * 30));
        for node in &first.nodes[..2] {
            node.next_assignments([Behavior::Delayed(STEP * 20)]);
        }
        let repeated = async {
            sleep(STEP).await;
            first.behaves(&[2], &Behavior::Answered);
            second.without(&[1]);
            let repeated = told(second.acquire(&claim).await);
            second.without(&[]);
            repeated
        };
        let (earlier, repeated) = tokio::join!(first.acquire(&claim), repeated);
        assert_eq!(told(earlier), repeated);
        assert_eq!(shown(&second, &claim).await, repeated);
    }
}

/// The third node has kept its own token, which the renewal changes late. Meanwhile the second process decides on it.
#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_change_the_token_of_a_repeated_request() {
    for (claim, right) in claims()
        .into_iter()
        .zip([RollbackRight::Never, RollbackRight::AsBefore])
    {
        let shared = stores(&[Duration::ZERO, STEP, AHEAD]);
        let [first, second] = [Process::on(&shared), Process::on(&shared)];
        first.behaves(&[2], &Behavior::Late(STEP * 30));
        first.nodes[2].next_assignments([unreachable(), unreachable(), unreachable()]);
        let earlier = told(first.acquire(&claim).await);
        first.settled().await;
        first.behaves(&[2], &Behavior::Answered);
        first.nodes[2].next_assignments([Behavior::Delayed(STEP * 20)]);
        let change = RenewOptions {
            rollback_right: right,
            ..RenewOptions::default()
        };
        let renewed = first
            .quorum
            .renew(&claim.names, claim.token, change, deadline());
        assert!(matches!(renewed.await, Ok(Renewed::Extended(_))));
        second.without(&[0]);
        let repeated = told(second.acquire(&claim).await);
        assert!(earlier < repeated, "the third node proposes it");
        stays(&first, &claim, repeated).await;
        first.settled().await;
    }
}

/// Nodes have the lease with different tokens until the first process has decided.
#[tokio::test(start_paused = true)]
async fn a_step_back_waits_for_the_token_that_is_being_decided() {
    let shared = stores(&[Duration::ZERO, AHEAD, AHEAD * 2]);
    let [first, second] = [Process::on(&shared), Process::on(&shared)];
    for node in &first.nodes {
        node.next_assignments([Behavior::Delayed(STEP * 20)]);
    }
    let claim = claim();
    let deep = at_depth(&claim, 3);
    let stepping_back = async {
        sleep(STEP).await;
        second.fixture.step_back(&claim, 2).await
    };
    let (granted, stepped_back) = tokio::join!(first.acquire(&deep), stepping_back);
    let granted = told(granted);
    match stepped_back {
        Released::SteppedBack(lease) => assert_eq!(lease.holder.fence, granted),
        other => panic!("it holds the lock, but: {other:?}"),
    }
}
