//! Nodes that fail, are silent or are slow: a majority goes on without them, and they follow.

use std::pin::pin;
use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, HoldOptions, LockState, NotHolder, Refused, Released, RenewOptions,
    Renewed,
};
use leasehold::store::{LockStore, StoreError};
use tokio::time::{Instant, sleep, timeout};

use super::nodes::{Process, is_granted, plain_stores, unreachable};
use crate::support::eventually;
use crate::support::fixture::{
    LONG, READ, SHORT, Waiter, assert_held, at_depth, claim, deadline, deadlines, for_short,
    in_mode, lock_of, only, permits, rival,
};
use crate::support::scripted_store::Behavior;

#[tokio::test(start_paused = true)]
async fn nothing_waits_for_a_silent_node() {
    for silent in 0..3 {
        let process = Process::alone();
        process.behaves(&[silent], &Behavior::Unanswered);
        let (claim, began) = (claim(), Instant::now());
        process.fixture.granted(&claim).await;
        process.fixture.renewed(&claim, None).await;
        assert_held(&process.fixture.acquire(&rival(&claim)).await);
        process.fixture.freed(&claim).await;
        process.fixture.granted(&rival(&claim)).await;
        // The clock only moves when everything waits.
        assert_eq!(began.elapsed(), Duration::ZERO, "node {silent} is silent");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_has_its_place_or_contradicts_itself_waits_for_no_silent_node() {
    for silent in 0..3 {
        let process = Process::alone();
        let holding = claim();
        process.fixture.granted(&holding).await;
        let mut waiter = Waiter::new(rival(&holding));
        process.fixture.still_waits(&mut waiter).await;
        process.settled().await;
        process.behaves(&[silent], &Behavior::Unanswered);
        let began = Instant::now();
        process.fixture.still_waits(&mut waiter).await;
        let shared = in_mode(&holding, permits(1, 2));
        let refused = process.fixture.acquire(&shared).await;
        assert!(matches!(refused, Acquired::Refused(Refused::Mismatched(_))));
        assert_eq!(began.elapsed(), Duration::ZERO, "node {silent} is silent");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_ends_where_the_others_are() {
    let process = Process::alone();
    process.behaves(&[1], &Behavior::Delayed(SHORT));
    let [released, held] = [claim(), claim()];
    process.fixture.granted(&released).await;
    process.fixture.freed(&released).await;
    let lease = process.fixture.granted(&held).await;
    process.settled().await;
    assert!(process.held_at(&released).await.is_empty());
    let fence = lease.holder.fence.get();
    assert_eq!(process.fences_at_nodes(&held).await, [fence; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_overtake_the_grant_at_a_slow_node() {
    let process = Process::alone();
    process.behaves(&[1], &Behavior::Delayed(SHORT));
    let claim = claim();
    process.fixture.granted(&claim).await;
    // The request to acquire is still on its way.
    process.behaves(&[1], &Behavior::Answered);
    process.fixture.freed(&claim).await;
    sleep(SHORT * 4).await;
    assert!(process.held_at(&claim).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_enqueues_a_claim_at_the_place_of_the_others() {
    let process = Process::alone();
    let holding = claim();
    process.fixture.granted(&holding).await;
    process.behaves(&[0], &Behavior::Delayed(SHORT));
    let mut waiters = [rival(&holding), rival(&holding)].map(Waiter::new);
    let mut places = Vec::new();
    for waiter in &mut waiters {
        places.push(process.fixture.still_waits(waiter).await.ticket.sequence);
    }
    process.settled().await;
    assert!(places[0] < places[1], "{places:?}");
    // Now the slow node belongs to the majority.
    process.without(&[1]);
    process.fixture.freed(&holding).await;
    process.fixture.still_waits(&mut waiters[1]).await;
    process.fixture.granted_after_wait(&mut waiters[0]).await;
    process.fixture.granted_after_wait(&mut waiters[1]).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_granted_while_a_majority_is_down_and_all_is_well_after() {
    let process = Process::alone();
    let (held, refused) = (claim(), claim());
    process.fixture.granted(&held).await;
    process.without(&[0, 2]);
    let answer = process.acquire(&refused).await;
    assert!(
        matches!(answer, Err(StoreError::Unavailable { .. })),
        "two nodes cannot have granted it, but: {answer:?}"
    );
    process.settled().await;
    assert!(process.held_at(&refused).await.is_empty());
    process.without(&[]);
    process.fixture.renewed(&held, None).await;
    process.fixture.granted(&rival(&refused)).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_answers_were_lost_is_rolled_back_everywhere() {
    let process = Process::alone();
    process.behaves(&[0, 1], &Behavior::Lost);
    let lost = claim();
    let answer = process.acquire(&lost).await;
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
    process.without(&[]);
    process.settled().await;
    assert!(process.held_at(&lost).await.is_empty());
    process.fixture.granted(&rival(&lost)).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_took_longer_than_its_lease_is_not_reported() {
    let process = Process::alone();
    process.behaves(&[0, 1], &Behavior::Late(SHORT * 2));
    let late = for_short(&claim());
    let answer = process.acquire(&late).await;
    assert!(!is_granted(answer));
    process.without(&[]);
    process.settled().await;
    process.fixture.granted(&rival(&late)).await;
}

#[tokio::test(start_paused = true)]
async fn an_assignment_that_took_longer_than_the_lease_is_not_reported() {
    let process = Process::alone();
    for node in &process.nodes {
        node.next_assignments([Behavior::Late(SHORT * 2)]);
    }
    assert!(!is_granted(process.acquire(&for_short(&claim())).await));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_puts_the_lease_back_at_a_node_that_was_away() {
    let process = Process::alone();
    process.without(&[2]);
    let claim = claim();
    let lease = process.fixture.granted(&claim).await;
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0, 1]);
    process.without(&[]);
    process.fixture.renewed(&claim, None).await;
    process.settled().await;
    let fence = lease.holder.fence.get();
    assert_eq!(process.fences_at_nodes(&claim).await, [fence; 3]);
    // Now another node may be lost.
    process.without(&[0]);
    let renewal = process.fixture.renewed(&claim, None).await;
    assert_eq!(renewal.lease.holder.fence.get(), fence);
    assert_held(&process.fixture.acquire(&rival(&claim)).await);
}

/// One node lacks the lease, and the renewal waits for another one that is silent.
#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_as_long_as_a_renewal_does() {
    let process = Process::alone();
    process.without(&[2]);
    let claim = claim();
    process.fixture.granted(&claim).await;
    process.settled().await;
    process.without(&[]);
    process.behaves(&[1], &Behavior::Unanswered);
    let mut renewal = pin!(process.fixture.renew(&claim));
    assert!(timeout(SHORT, renewal.as_mut()).await.is_err());
    let released = timeout(SHORT, process.fixture.release(&claim)).await;
    assert!(
        matches!(released, Ok(Released::Freed { .. })),
        "{released:?}"
    );
}

/// One node lacks the lease, so that another one which is slow decides. Later it has a majority without that one.
#[tokio::test(start_paused = true)]
async fn a_renewal_waits_for_a_slow_node_without_which_there_is_no_majority() {
    let process = Process::alone();
    process.without(&[2]);
    let claim = claim();
    process.fixture.granted(&claim).await;
    process.settled().await;
    process.without(&[]);
    process.behaves(&[1], &Behavior::Delayed(SHORT));
    for _ in 0..2 {
        process.fixture.renewed(&claim, None).await;
        process.settled().await;
        assert_eq!(process.held_at(&claim).await, [0, 1, 2]);
        process.behaves(&[1], &Behavior::Unanswered);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_put_back_keeps_its_depth_and_its_limits() {
    let process = Process::alone();
    process.without(&[2]);
    let claim = Claim {
        min_hold: Some(LONG / 2),
        max_hold: Some(LONG + SHORT),
        lock_delay: Some(SHORT),
        ..at_depth(&claim(), 3)
    };
    process.fixture.granted(&claim).await;
    process.settled().await;
    process.fixture.advance(SHORT).await;
    process.without(&[]);
    let options = process.fixture.renewed(&claim, None).await.options;
    assert_eq!(options.lock_delay, claim.lock_delay);
    assert!(options.min_hold_left < claim.min_hold && options.max_hold_left < claim.max_hold);
    let renewed_at = Instant::now();
    process.settled().await;
    let passed = renewed_at.elapsed();
    let node = &process.nodes[2].store;
    let renewed = node.renew(
        &claim.names,
        claim.token,
        RenewOptions::default(),
        deadline(),
    );
    match renewed.await.expect("the node answers") {
        Renewed::Extended(renewals) => {
            let renewal = only(renewals);
            assert_eq!(renewal.lease.holder.hold_count, claim.hold_count);
            let expected = HoldOptions {
                min_hold_left: options.min_hold_left.map(|left| left - passed),
                max_hold_left: options.max_hold_left.map(|left| left - passed),
                ..options
            };
            assert_eq!(renewal.options, expected);
        }
        other => panic!("it was put back, but: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_never_creates_a_lease_from_a_minority() {
    let process = Process::alone();
    let claim = claim();
    // What another process has left at one node.
    let left = process.nodes[0]
        .store
        .acquire(&claim, Attempt::random(), None, deadline());
    left.await.expect("the node answers");
    match process.fixture.renew(&claim).await {
        Renewed::NotHolder(not_held) => assert_eq!(not_held[0].reason, NotHolder::Unknown),
        other => panic!("a majority does not hold it, but: {other:?}"),
    }
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0]);
    assert_eq!(
        process.fixture.state(lock_of(&claim)).await,
        LockState::Free
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_reaches_a_node_that_was_away() {
    let process = Process::alone();
    let claim = claim();
    process.fixture.granted(&claim).await;
    process.behaves(&[1], &unreachable());
    process.fixture.freed(&claim).await;
    process.without(&[]);
    eventually("the node has the release", async || {
        process.held_at(&claim).await.is_empty().then_some(())
    })
    .await;
}

/// Its client must not go on as if it still held the lock.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_repeated_in_the_background_has_an_unknown_outcome() {
    let process = Process::alone();
    let claim = claim();
    process.fixture.granted(&claim).await;
    process.settled().await;
    process.without(&[0, 1, 2]);
    let released = process
        .quorum
        .release(&claim.names, claim.token, None, deadline());
    let answer = released.await;
    process.without(&[]);
    process.settled().await;
    assert!(process.held_at(&claim).await.is_empty());
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_answers_nothing_ever_leaves_no_operation_behind() {
    let process = Process::alone();
    process.behaves(&[1], &Behavior::Unanswered);
    let claim = for_short(&claim());
    process.fixture.granted(&claim).await;
    process.fixture.freed(&claim).await;
    sleep(LONG * 3).await;
    process.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_notification_is_passed_on_once_a_majority_has_reported_it() {
    let process = Process::alone();
    let holding = claim();
    process.fixture.granted(&holding).await;
    process.fixture.waiting(&rival(&holding)).await;
    for (node, expected) in process.nodes.iter().zip([0, 1, 1]) {
        let released = node
            .store
            .release(&holding.names, holding.token, None, deadline());
        released.await.expect("the node answers");
        let listener = process.fixture.listener();
        assert_eq!(listener.reservations_of(lock_of(&holding)), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_lost_when_no_majority_is_left_to_report_them() {
    let process = Process::alone();
    for (node, expected) in [(0, 0), (0, 0), (1, 1)] {
        process.nodes[node].listener().events_lost();
        assert_eq!(process.fixture.listener().missed_events(), expected);
    }
}

/// The nodes that answer the eviction do not remember what one of them never had, and the third one still has it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_evicted_completely_is_not_put_back_by_a_renewal_under_way() {
    let shared = plain_stores(3);
    let [holding, evicting] = [Process::on(&shared), Process::on(&shared)];
    holding.without(&[2]);
    let claim = claim();
    holding.fixture.granted(&claim).await;
    holding.settled().await;
    holding.without(&[]);
    holding.behaves(&[2], &Behavior::Delayed(SHORT));
    holding.fixture.renewed(&claim, None).await;
    evicting.without(&[0]);
    let evict = evicting.quorum.evict(lock_of(&claim), "test", deadlines());
    let is_complete = evict.await.expect("a majority answers").is_complete;
    holding.without(&[]);
    sleep(SHORT * 4).await;
    let renewed = holding.fixture.renew(&claim).await;
    let is_lost = matches!(renewed, Renewed::NotHolder(_));
    assert!(is_lost || !is_complete);
}

/// That node has it exclusively, and is one of the two that answer.
#[tokio::test(start_paused = true)]
async fn a_lease_is_shared_although_a_node_was_away_when_it_became_so() {
    for [away, silent] in [[2, 1], [2, 0], [0, 1], [0, 2]] {
        let process = Process::alone();
        let claim = claim();
        process.fixture.granted(&claim).await;
        process.settled().await;
        process.without(&[away]);
        let shared = process.fixture.renew_in_mode(&claim, READ).await;
        assert!(matches!(shared, Renewed::Extended(_)), "{shared:?}");
        process.without(&[silent]);
        let renewal = process.fixture.renewed(&claim, None).await;
        assert_eq!(renewal.lease.holder.mode, READ);
    }
}
