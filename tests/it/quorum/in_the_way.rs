//! A renewal at a node that lacks the lease and is not ready for it: another claim is in the way there, or it was away.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::domain::{Attempt, Claim, Renewed};
use leasehold::store::LockStore;
use tokio::time::{Instant, sleep};

use super::nodes::{Process, has_granted, plain_stores};
use crate::support::eventually;
use crate::support::fixture::{
    LONG, READ, SHORT, at_depth, claim, deadline, deadlines, lock_of, only, reader, rival,
};
use crate::support::scripted_store::{Behavior, Operation};

/// For longer than a node that is back takes to carry out an eviction that it has missed.
const CARRIED_OUT: Duration = Duration::from_secs(4);

/// As long as a renewal may ask the node again, and more.
const NOT_ASKED: Duration = Duration::from_secs(10);

/// How many claims are renewed at once beside other claims.
const BLOCKED: usize = 1_500;

/// How many leases may wait until a node is ready for them.
const LATE_LEASES_MAX: usize = 1_024;

/// The third node, which was away, has the lease of another claim; the others have granted the lock to this one by the attempt.
/// It is renewed then.
async fn renewed_beside(process: &Process, in_the_way: &Claim, attempt: Attempt) -> Claim {
    process.leave_at(2, in_the_way).await;
    let holding = rival(in_the_way);
    process.without(&[2]);
    assert!(has_granted(
        process.fixture.attempt(&holding, attempt).await
    ));
    process.settled().await;
    process.without(&[]);
    process.renew_as_before(&holding).await;
    // The third node refuses it.
    sleep(Duration::from_millis(1)).await;
    holding
}

/// What was in the way at the third node ends.
async fn ends(process: &Process, in_the_way: &Claim) {
    let released =
        process.nodes[2]
            .store
            .release(&in_the_way.names, in_the_way.token, None, deadline());
    released.await.expect("the node answers");
}

/// Another node fails, before or after it has carried out the eviction. The holder had renewed only once since it came back.
#[tokio::test(start_paused = true)]
async fn a_holder_has_a_majority_although_a_node_came_back_with_a_lease_that_was_evicted() {
    for (away, fails_first) in [(0, false), (0, true), (9, false), (9, true), (20, true)] {
        let process = Process::alone();
        let evicted = claim();
        process.fixture.granted(&evicted).await;
        process.settled().await;
        process.without(&[2]);
        let evicting = process
            .quorum
            .evict(lock_of(&evicted), "stuck", deadlines());
        evicting.await.expect("a majority answers");
        let holding = rival(&evicted);
        assert!(has_granted(process.acquire(&holding).await));
        sleep(Duration::from_secs(away)).await;
        process.without(&[]);
        process.fixture.renewed(&holding, None).await;
        if fails_first {
            process.behaves(&[0], &Behavior::Unanswered);
        }
        sleep(CARRIED_OUT).await;
        process.settled().await;
        process.without(&[0]);
        process.fixture.renewed(&holding, None).await;
    }
}

/// A process that reaches this node alone does not know whether another one has ended the claim.
#[tokio::test(start_paused = true)]
async fn a_node_gets_no_lease_back_by_a_process_that_reaches_no_majority() {
    let process = Process::alone();
    let in_the_way = claim();
    let holding = renewed_beside(&process, &in_the_way, Attempt::random()).await;
    process.without(&[0, 1]);
    ends(&process, &in_the_way).await;
    sleep(NOT_ASKED).await;
    assert_eq!(process.held_at(&holding).await, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_the_lease_back_soon_after_it_was_freed_there() {
    let process = Process::alone();
    let in_the_way = claim();
    let holding = renewed_beside(&process, &in_the_way, Attempt::random()).await;
    sleep(CARRIED_OUT).await;
    ends(&process, &in_the_way).await;
    process.settled().await;
    assert_eq!(process.held_at(&holding).await, [0, 1, 2]);
    let fences = process.fences_at_nodes(&holding).await;
    assert_eq!(fences, [fences[0]; 3]);
}

/// As Redis does when all processes were cut off from it.
#[tokio::test(start_paused = true)]
async fn a_node_gets_the_lease_back_that_granted_nothing_for_a_moment() {
    let process = Process::alone();
    process.without(&[2]);
    let holding = claim();
    process.fixture.granted(&holding).await;
    process.settled().await;
    process.without(&[]);
    process.nodes[2].recovers(true);
    process.fixture.renewed(&holding, None).await;
    sleep(CARRIED_OUT).await;
    process.nodes[2].recovers(false);
    process.settled().await;
    assert_eq!(process.held_at(&holding).await, [0, 1, 2]);
}

/// The process learns from its next check that it is back.
#[tokio::test(start_paused = true)]
async fn a_node_gets_the_lease_back_that_was_known_to_be_away_a_moment_ago() {
    for has_lease in [false, true] {
        let process = Process::alone();
        let node = &process.nodes[2];
        let holding = claim();
        process.without(if has_lease { &[] } else { &[2] });
        process.fixture.granted(&holding).await;
        process.settled().await;
        process.without(&[2]);
        node.is_known_down.store(true, Ordering::Relaxed);
        process.fixture.renewed(&holding, None).await;
        sleep(CARRIED_OUT / 2).await;
        process.without(&[]);
        let asked = node.operations().len();
        sleep(CARRIED_OUT / 4).await;
        assert_eq!(node.operations().len(), asked, "it is not asked meanwhile");
        node.is_known_down.store(false, Ordering::Relaxed);
        process.settled().await;
        assert_eq!(process.held_at(&holding).await, [0, 1, 2]);
        sleep(LONG - CARRIED_OUT).await;
        assert_eq!(process.held_at(&holding).await, [0, 1, 2], "it was renewed");
    }
}

/// It was renewed, or its TTL or hold count was changed: what the node would get is past.
#[tokio::test(start_paused = true)]
async fn a_lease_that_another_process_has_changed_meanwhile_is_not_put_back_as_it_was() {
    let changes: [(&str, Option<Duration>, u64); 4] = [
        ("renewed", None, 1),
        ("for longer", Some(LONG * 2), 1),
        ("for a shorter time", Some(LONG / 2), 1),
        ("entered again", None, 2),
    ];
    for (what, ttl, hold_count) in changes {
        let stores = plain_stores(3);
        let [first, second] = [(); 2].map(|()| Process::on(&stores));
        let in_the_way = claim();
        let holding = renewed_beside(&first, &in_the_way, Attempt::random()).await;
        sleep(CARRIED_OUT / 8).await;
        second.without(&[2]);
        match hold_count {
            1 => drop(second.fixture.renewed(&holding, ttl).await),
            depth => assert!(has_granted(
                second.acquire(&at_depth(&holding, depth)).await
            )),
        }
        ends(&first, &in_the_way).await;
        sleep(NOT_ASKED).await;
        assert_eq!(first.held_at(&holding).await, [0, 1], "{what}");
    }
}

/// The next renewal asks again.
#[tokio::test(start_paused = true)]
async fn a_node_that_keeps_another_lease_is_asked_for_some_seconds_only() {
    let process = Process::alone();
    let in_the_way = claim();
    let holding = renewed_beside(&process, &in_the_way, Attempt::random()).await;
    sleep(NOT_ASKED).await;
    assert_eq!(process.quorum.in_progress(), 0);
    let asked = process.nodes[2].operations();
    let acquires = asked.iter().filter(|it| **it == Operation::Acquire);
    let acquires = acquires.count();
    assert!((5..15).contains(&acquires), "{acquires} times");
    ends(&process, &in_the_way).await;
    sleep(NOT_ASKED).await;
    assert_eq!(process.held_at(&holding).await, [0, 1]);
    process.fixture.renewed(&holding, None).await;
    process.settled().await;
    assert_eq!(process.held_at(&holding).await, [0, 1, 2]);
}

/// By this process or by another one.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_released_meanwhile_does_not_get_its_lease_back() {
    let stores = plain_stores(3);
    let [first, second] = [(); 2].map(|()| Process::on(&stores));
    for releases in [&first, &second] {
        let in_the_way = claim();
        let holding = renewed_beside(&first, &in_the_way, Attempt::random()).await;
        releases.fixture.freed(&holding).await;
        ends(&first, &in_the_way).await;
        sleep(NOT_ASKED).await;
        assert!(first.held_at(&holding).await.is_empty());
    }
}

/// The node is slow, and the release passes what is on its way there.
#[tokio::test(start_paused = true)]
async fn a_claim_that_another_process_releases_just_then_leaves_no_rest() {
    for is_late in [false, true] {
        let stores = plain_stores(3);
        let [first, second] = [(); 2].map(|()| Process::on(&stores));
        let (in_the_way, slow) = (claim(), Behavior::Delayed(SHORT / 5));
        let (node, holding) = (&first.nodes[2], rival(&in_the_way));
        if is_late {
            first.leave_at(2, &in_the_way).await;
        }
        first.without(&[2]);
        first.fixture.granted(&holding).await;
        first.settled().await;
        first.without(&[]);
        if is_late {
            first.fixture.renewed(&holding, None).await;
            sleep(Duration::from_millis(1)).await;
            ends(&first, &in_the_way).await;
        }
        first.behaves(&[2], &slow);
        if !is_late {
            first.fixture.renewed(&holding, None).await;
        }
        let asked = node.acquires();
        eventually("the lease is on its way", async || {
            (node.acquires() > asked).then_some(())
        })
        .await;
        second.fixture.freed(&holding).await;
        first.settled().await;
        assert!(first.held_at(&holding).await.is_empty(), "{is_late}");
    }
}

/// Two of five nodes lack it, and a third may have it.
#[tokio::test(start_paused = true)]
async fn a_node_keeps_the_lease_that_it_got_back_while_a_majority_may_have_it() {
    let process = Process::on(&plain_stores(5));
    let claim = claim();
    process.without(&[3]);
    process.fixture.granted(&claim).await;
    process.settled().await;
    process.without(&[]);
    process.behaves(&[3], &Behavior::Delayed(SHORT / 5));
    process.fixture.renewed(&claim, None).await;
    for node in [2, 4] {
        let store = &process.nodes[node].store;
        let released = store.release(&claim.names, claim.token, None, deadline());
        released.await.expect("the node answers");
    }
    process.behaves(&[1], &Behavior::Unanswered);
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0, 1, 3]);
}

/// As if a release were on its way, which has reached one node.
#[tokio::test(start_paused = true)]
async fn a_lease_that_one_node_alone_still_has_is_not_put_back() {
    let process = Process::alone();
    let in_the_way = claim();
    let holding = renewed_beside(&process, &in_the_way, Attempt::random()).await;
    let store = &process.nodes[1].store;
    let released = store.release(&holding.names, holding.token, None, deadline());
    released.await.expect("the node answers");
    ends(&process, &in_the_way).await;
    process.settled().await;
    assert_eq!(process.held_at(&holding).await, [0]);
}

/// A view lists fewer of them, those first that end first.
#[tokio::test(start_paused = true)]
async fn a_node_gets_the_lease_back_of_one_of_very_many_holders() {
    let process = Process::alone();
    process.without(&[2]);
    let first = reader(&claim());
    let readers: Vec<_> = (0..150).map(|_| reader(&first)).collect();
    for claim in &readers {
        process.fixture.granted(claim).await;
    }
    process.settled().await;
    process.without(&[]);
    for claim in &readers {
        process.fixture.renewed(claim, None).await;
        process.settled().await;
    }
    let holders = process.holders_at(2, lock_of(&first)).await;
    assert_eq!(holders.total, 150);
}

/// Two renewals at once: one put the lease back as it was before the other one changed it.
#[tokio::test(start_paused = true)]
async fn a_node_gets_a_change_although_it_got_the_lease_without_it_at_the_same_time() {
    let process = Process::alone();
    let holding = claim();
    process.without(&[2]);
    process.fixture.granted(&holding).await;
    process.settled().await;
    process.without(&[]);
    process.behaves(&[2], &Behavior::Late(SHORT));
    let shared = process.fixture.renew_in_mode(&holding, READ).await;
    assert!(matches!(shared, Renewed::Extended(_)), "{shared:?}");
    // The answer of the node is on its way.
    sleep(SHORT / 2).await;
    process.leave_at(2, &holding).await;
    process.behaves(&[2], &Behavior::Answered);
    process.settled().await;
    let holders = process.holders_at(2, lock_of(&holding)).await;
    assert_eq!(only(holders.listed).mode, READ);
}

/// The client has given up the first request, and asked again. What the first one got is nobody's.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_granted_anew_meanwhile_does_not_get_its_former_lease_back() {
    let stores = plain_stores(3);
    let [first, second] = [(); 2].map(|()| Process::on(&stores));
    let (in_the_way, attempt) = (claim(), Attempt::random());
    let holding = renewed_beside(&first, &in_the_way, attempt).await;
    second.without(&[2]);
    second.fixture.close(&holding, attempt).await;
    assert!(has_granted(second.acquire(&holding).await));
    ends(&first, &in_the_way).await;
    sleep(NOT_ASKED).await;
    assert_eq!(first.held_at(&holding).await, [0, 1]);
}

/// Changes wait for the slowest node, so it would be noticed.
#[tokio::test(start_paused = true)]
async fn a_later_operation_of_the_claim_does_not_wait_for_a_node_that_is_asked_again() {
    let process = Process::alone();
    let holding = renewed_beside(&process, &claim(), Attempt::random()).await;
    sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    process.fixture.renewed(&holding, Some(LONG * 2)).await;
    process.fixture.freed(&holding).await;
    process.settled().await;
    assert!(began.elapsed() < Duration::from_millis(50));
    let renewed = process.fixture.renew(&holding).await;
    assert!(matches!(renewed, Renewed::NotHolder(_)), "{renewed:?}");
}

/// The others are counted.
#[tokio::test(start_paused = true)]
async fn of_very_many_blocked_claims_a_node_is_asked_again_for_some() {
    let process = Process::alone();
    let mut blocked = Vec::new();
    for _ in 0..BLOCKED {
        let in_the_way = claim();
        process.leave_at(2, &in_the_way).await;
        blocked.push(rival(&in_the_way));
    }
    process.without(&[2]);
    for claim in &blocked {
        assert!(has_granted(process.acquire(claim).await));
    }
    process.settled().await;
    process.without(&[]);
    for claim in &blocked {
        process.fixture.renewed(claim, None).await;
    }
    sleep(CARRIED_OUT / 4).await;
    assert_eq!(process.quorum.in_progress(), LATE_LEASES_MAX);
    process.settled().await;
    let dropped = process.quorum.health().nodes[2].dropped_follow_ups;
    assert_eq!(dropped, (BLOCKED - LATE_LEASES_MAX) as u64);
}
