//! Fencing tokens: they grow over all grants of a lock, whichever majority made them and whatever clocks show.

use std::sync::Arc;
use std::time::Duration;

use leasehold::domain::{Acquired, Claim, Fence, GrantKind, Released, RenewOptions, Renewed};
use leasehold::store::LockStore;
use leasehold::store::memory::MemoryStore;
use tokio::time::{Instant, sleep};

use super::nodes::{Process, is_granted, stores, unreachable};
use crate::support::fixture::{
    SHORT, assert_held, at_depth, claim, claim_on, deadline, for_short, hold_count, lock_of, name,
    only, reader, rival,
};
use crate::support::scripted_store::Behavior;

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn tokens_grow_whichever_majority_grants() {
    // Clocks differ by more than the test lasts.
    let process = Process::on(&stores(&[HOUR, HOUR / 2, Duration::ZERO]));
    let name = lock_of(&claim()).clone();
    let mut last = 0;
    for down in [2, 0, 1, 0, 0, 2, 1, 2] {
        process.without(&[down]);
        let fence = process.fence_of_next(&claim_on(&name)).await;
        assert!(last < fence, "{last} then {fence} without node {down}");
        last = fence;
        // The node is away for so long that it does not learn of the grant.
        sleep(HOUR / 60).await;
        process.without(&[]);
        process.settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn processes_may_have_the_nodes_in_another_order() {
    let mut shared = stores(&[HOUR, HOUR / 2, Duration::ZERO]);
    let one = Process::on(&shared);
    shared.reverse();
    let other = Process::on(&shared);
    let held = claim();
    let fence = one.fixture.granted(&held).await.holder.fence;
    one.settled().await;
    assert_held(&other.fixture.acquire(&rival(&held)).await);
    let renewal = other.fixture.renewed(&held, None).await;
    assert_eq!(renewal.lease.holder.fence, fence);
    other.fixture.freed(&held).await;
    let mut last = fence.get();
    for down in 0..3 {
        for process in [&one, &other] {
            process.without(&[down]);
            let fence = process.fence_of_next(&rival(&held)).await;
            assert!(last < fence, "{last} then {fence} without node {down}");
            last = fence;
            process.without(&[]);
            process.settled().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_replay_has_the_token_of_the_grant_whichever_majority_answers() {
    let process = Process::on(&stores(&[Duration::ZERO, HOUR, HOUR * 2]));
    let claim = claim();
    let fence = process.fixture.granted(&claim).await.holder.fence;
    for down in 0..3 {
        process.without(&[down]);
        assert_eq!(replayed(process.fixture.acquire(&claim).await), fence);
    }
}

/// A process with three nodes, of which the clock of the first is a century ahead.
fn with_a_clock_ahead() -> Process {
    Process::on(&stores(&[HOUR * 24 * 365 * 100, HOUR, Duration::ZERO]))
}

fn assert_not_used_up(fence: u64) {
    let since_1970 = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
    let most = u64::try_from((since_1970 + HOUR * 2).as_micros()).expect("it is not that late");
    assert!(fence < most, "{fence}");
}

/// Renews the claim, by whichever nodes are there. It reports no token of the clock that is ahead, and they do not take it
/// over.
async fn is_renewed_without_that_clock(process: &Process, claim: &Claim) {
    let change = RenewOptions::default();
    let quorum = &process.quorum;
    let renewed = quorum.renew(&claim.names, claim.token, change, deadline());
    if let Ok(Renewed::Extended(renewals)) = renewed.await {
        assert_not_used_up(only(renewals).lease.holder.fence.get());
    }
    process.settled().await;
    process.without(&[]);
    process.fixture.release(claim).await;
    assert_not_used_up(process.fence_of_next(&rival(claim)).await);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_clock_is_years_ahead_does_not_use_up_the_tokens() {
    let process = with_a_clock_ahead();
    let name = lock_of(&claim()).clone();
    for _ in 0..3 {
        assert_not_used_up(process.fence_of_next(&claim_on(&name)).await);
    }
    // It has no vote, as operators see, so the two others are needed, and it keeps nothing.
    let votes = process.quorum.health().nodes.into_iter();
    let votes: Vec<_> = votes.map(|node| node.votes).collect();
    assert_eq!(votes, [false, true, true]);
    process.without(&[1]);
    let refused = claim_on(&name);
    assert!(!is_granted(process.acquire(&refused).await));
    process.settled().await;
    assert!(process.held_at(&refused).await.is_empty());
}

/// The node is asked to take part again, and fails before it has the decided token.
#[tokio::test(start_paused = true)]
async fn a_renewal_puts_no_lease_back_at_a_node_whose_clock_is_years_ahead() {
    let process = with_a_clock_ahead();
    let claim = claim();
    process.fixture.granted(&claim).await;
    process.settled().await;
    process.nodes[0].next_assignments([unreachable()]);
    process.fixture.renewed(&claim, None).await;
    process.settled().await;
    assert_eq!(process.fences_at_nodes(&claim).await[0], 0);
    process.without(&[1]);
    is_renewed_without_that_clock(&process, &claim).await;
}

/// As a process leaves it that takes the node's time for right.
#[tokio::test(start_paused = true)]
async fn a_renewal_takes_over_no_token_of_a_node_whose_clock_is_years_ahead() {
    let process = with_a_clock_ahead();
    let claim = claim();
    for node in [0, 2] {
        process.leave_at(node, &claim).await;
    }
    process.without(&[1]);
    is_renewed_without_that_clock(&process, &claim).await;
}

/// Each node has the lease with a token of its own.
#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_wait_for_a_slow_node_to_record_its_token() {
    let process = Process::on(&stores(&[HOUR, HOUR / 2, Duration::ZERO]));
    let claim = claim();
    for node in 0..3 {
        process.leave_at(node, &claim).await;
    }
    process.nodes[2].next_assignments([Behavior::Late(SHORT)]);
    let began = Instant::now();
    process.fixture.renewed(&claim, None).await;
    assert!(began.elapsed() < SHORT / 10);
}

/// The hole of a second phase that does not depend on the lease: A has the larger proposal, and is delayed until B holds.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_delayed_past_its_lease_does_not_get_a_larger_token_than_its_successor() {
    let shared = stores(&[HOUR, Duration::ZERO, Duration::from_micros(1)]);
    let [first, second] = [Process::on(&shared), Process::on(&shared)];
    let late = for_short(&claim());
    first.without(&[2]);
    for node in &first.nodes {
        node.next_assignments([Behavior::Delayed(SHORT * 3)]);
    }
    second.without(&[0]);
    let successor = async {
        sleep(SHORT * 2).await;
        second.fixture.granted(&rival(&late)).await
    };
    let (late_answer, lease) = tokio::join!(first.acquire(&late), successor);
    assert!(!is_granted(late_answer), "its lease ended long ago");
    let fence = lease.holder.fence.get();
    let fences = first.fences_at_nodes(&late).await;
    assert_eq!(fences[1..], [fence; 2], "the successor's stays");
}

/// The tokens of two claims at once. One node's clock is ahead and it is away, so that the others propose what follows the
/// last token. Each is reached first by another of the claims, and the second proposal of both is the same.
async fn crossed_fences(shared: &[Arc<MemoryStore>], claims: [&Claim; 2]) -> [u64; 2] {
    let contenders = [[0, 2], [2, 0]].map(|delays_ms| {
        let process = Process::on(shared);
        process.without(&[0]);
        for (node, delay_ms) in process.nodes[1..].iter().zip(delays_ms) {
            node.behaves(Behavior::Delayed(Duration::from_millis(delay_ms)));
        }
        process
    });
    let (a, b) = tokio::join!(
        contenders[0].fixture.granted(claims[0]),
        contenders[1].fixture.granted(claims[1])
    );
    [a, b].map(|lease| lease.holder.fence.get())
}

#[tokio::test(start_paused = true)]
async fn claims_that_share_a_lock_have_different_tokens_although_nodes_propose_the_same() {
    let shared = stores(&[HOUR, Duration::ZERO, Duration::ZERO]);
    let first = Process::on(&shared);
    let name = lock_of(&claim()).clone();
    let last = first.fence_of_next(&claim_on(&name)).await;
    first.settled().await;
    let [a, b] = [claim_on(&name), claim_on(&name)].map(|claim| reader(&claim));
    let fences = crossed_fences(&shared, [&a, &b]).await;
    assert!(
        fences.iter().all(|fence| last < *fence),
        "{last}, {fences:?}"
    );
    assert_ne!(fences[0], fences[1]);
}

/// Only the leases of one lock have different tokens.
#[tokio::test(start_paused = true)]
async fn events_of_two_locks_with_one_token_have_different_ids() {
    let shared = stores(&[HOUR, Duration::ZERO, Duration::ZERO]);
    let watching = Process::on(&shared);
    watching.quorum.set_event_delivery(true).await;
    let one = name("tied/0");
    let mut others = (1..).map(|number| name(&format!("tied/{number}")));
    let other = others.find(|other| other.bucket() == one.bucket());
    let claims = [one, other.expect("there are enough names")].map(|name| claim_on(&name));
    watching.fence_of_next(&claims[0]).await;
    watching.settled().await;
    let [a, b] = [rival(&claims[0]), rival(&claims[1])];
    let fences = crossed_fences(&shared, [&a, &b]).await;
    assert_eq!(fences[0], fences[1], "different majorities decided them");
    let ids = [&a, &b].map(|claim| {
        let events = watching.fixture.listener().events_of(lock_of(claim));
        let mut of_claim = events
            .into_iter()
            .filter(|event| event.fence.is_some_and(|fence| fence.get() == fences[0]));
        of_claim.next().expect("the grant is an event").id
    });
    assert_ne!(ids[0], ids[1]);
}

/// Two nodes have the lease with different tokens, and the third is away.
async fn with_different_tokens(claim: &Claim) -> Process {
    let process = Process::on(&stores(&[HOUR, Duration::ZERO, Duration::ZERO]));
    process.leave_at(0, claim).await;
    process.leave_at(1, claim).await;
    process.without(&[2]);
    process
}

#[tokio::test(start_paused = true)]
async fn a_renewal_reports_no_token_that_a_later_grant_may_not_reach() {
    for claim in [claim(), reader(&claim())] {
        let process = with_different_tokens(&claim).await;
        let reported = process
            .fixture
            .renewed(&claim, None)
            .await
            .lease
            .holder
            .fence;
        let fences = process.fences_at_nodes(&claim).await;
        assert_eq!(fences[..2], [reported.get(); 2]);
        process.fixture.freed(&claim).await;
        process.without(&[0]);
        let next = process.fence_of_next(&rival(&claim)).await;
        assert!(reported.get() < next, "{reported} then {next}");
    }
}

/// The nodes may disagree for good.
#[tokio::test(start_paused = true)]
async fn a_step_back_reports_a_token_that_a_majority_has() {
    let deeper = at_depth(&claim(), 3);
    let process = with_different_tokens(&deeper).await;
    for depth in [2, 1] {
        let (names, token) = (&deeper.names, deeper.token);
        let step = Some(hold_count(depth).into());
        let released = process.quorum.release(names, token, step, deadline());
        let Released::SteppedBack(lease) = only(released.await.expect("it answers")) else {
            panic!("it holds the lock");
        };
        assert_eq!(lease.holder.hold_count, hold_count(depth));
        let reported = lease.holder.fence.get();
        let at_nodes = process.fences_at_nodes(&deeper).await;
        let count = at_nodes.iter().filter(|fence| **fence == reported).count();
        assert!(count >= 2, "{reported} of {at_nodes:?}");
    }
}

/// The token of a claim that holds already.
pub(super) fn replayed(answer: Acquired) -> Fence {
    match answer {
        Acquired::Granted(granted) => {
            assert_eq!(granted.kind, GrantKind::Replayed);
            only(granted.leases).holder.fence
        }
        other => panic!("it holds already, but: {other:?}"),
    }
}
