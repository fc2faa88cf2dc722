//! Refusals: what one node alone answers does not stand for all of them, and what all together have answered is not hidden
//! by a later round.

use std::time::Duration;

use futures_util::future::join;
use leasehold::domain::{Acquired, Attempt, Claim, GrantKind, Mode, NotHolder, Released};
use leasehold::store::{Fault, LockStore, StoreError};
use tokio::time::{Instant, sleep};

use super::nodes::{Process, plain_stores};
use crate::support::fixture::{
    SHORT, Waiter, assert_held, claim, deadline, ended, for_short, in_mode, limit_mismatch,
    lock_of, permits, rival,
};
use crate::support::scripted_store::Behavior;

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

/// One node has missed the grant, and another one the release. Together they would be a majority that grants it.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_release_was_answered_is_not_granted_again_at_another_process() {
    let shared = plain_stores(3);
    let [one, other] = [Process::on(&shared), Process::on(&shared)];
    let claim = claim();
    one.without(&[2]);
    one.fixture.granted(&claim).await;
    one.settled().await;
    one.without(&[1]);
    one.fixture.freed(&claim).await;
    one.without(&[]);
    let answer = other.fixture.acquire(&claim).await;
    assert_eq!(answer, ended(&claim, NotHolder::Released));
}

/// As a stream that was closed when another one had taken the lease over at the other nodes.
#[tokio::test(start_paused = true)]
async fn a_claim_that_a_majority_has_still_was_not_released() {
    for index in 0..3 {
        let process = Process::alone();
        let claim = claim();
        let fence = process.fixture.granted(&claim).await.holder.fence;
        process.settled().await;
        release_at(&process, index, &claim).await;
        let answer = process.fixture.acquire(&claim).await;
        match answer {
            Acquired::Granted(granted) => {
                assert_eq!(granted.kind, GrantKind::Replayed);
                assert_eq!(granted.leases[0].holder.fence, fence);
            }
            other => panic!("two nodes have its lease, but: {other:?}"),
        }
        process.fixture.freed(&claim).await;
        process.settled().await;
        let answer = process.fixture.acquire(&claim).await;
        assert_eq!(answer, ended(&claim, NotHolder::Released));
    }
}

/// The same for a claim that waits, and has left the queue.
#[tokio::test(start_paused = true)]
async fn a_claim_that_has_left_the_queue_does_not_wait_again_at_another_process() {
    let shared = plain_stores(3);
    let [one, other] = [Process::on(&shared), Process::on(&shared)];
    let holding = claim();
    one.fixture.granted(&holding).await;
    one.settled().await;
    one.without(&[2]);
    let waiter = one.fixture.waiting(&rival(&holding)).await;
    one.settled().await;
    one.without(&[1]);
    let left = one.fixture.release(&waiter.claim).await;
    assert_eq!(left, Released::LeftQueue);
    one.without(&[]);
    let answer = other.fixture.poll(&mut waiter.again()).await;
    assert_eq!(answer, ended(&waiter.claim, NotHolder::Released));
}

/// One node alone has a holder with another limit: it has missed its release, or nobody else has granted it anything.
#[tokio::test(start_paused = true)]
async fn a_limit_that_one_node_alone_has_contradicts_no_claim() {
    for other in 0..3 {
        let process = Process::alone();
        let full = in_mode(&claim(), permits(4, 4));
        let claim = in_mode(&rival(&full), permits(1, 4));
        let rest = in_mode(&rival(&full), permits(1, 3));
        process.leave_at(other, &rest).await;
        process.fixture.granted(&full).await;
        process.settled().await;
        for silent in [vec![], vec![(other + 1) % 3], vec![(other + 2) % 3]] {
            process.without(&silent);
            assert_held(&process.fixture.acquire(&claim).await);
            let mut waiter = process.fixture.waiting(&rival(&claim)).await;
            process.without(&[]);
            assert!(matches!(
                process.fixture.poll(&mut waiter).await,
                Acquired::Waiting(_)
            ));
            process.fixture.release(&waiter.claim).await;
        }
        process.without(&[(other + 1) % 3]);
        process.settled().await;
        release_at(&process, (other + 2) % 3, &full).await;
        // Now nothing says that waiting would help.
        let refused = process.fixture.acquire(&claim).await;
        assert_eq!(refused, limit_mismatch(lock_of(&claim), Some(3)));
    }
}

/// Contenders have a node each, so there are further rounds, for the last of which the time is too short.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_hidden_by_a_round_without_enough_time() {
    let process = Process::alone();
    let first = claim();
    process.leave_at(0, &first).await;
    process.leave_at(1, &rival(&first)).await;
    process.leave_at(2, &rival(&first)).await;
    process.behaves(&[0, 1, 2], &Behavior::Late(Duration::from_millis(20)));
    for millis in 25..300 {
        let until = Instant::now() + Duration::from_millis(millis);
        let (rival, attempt) = (rival(&first), Attempt::random());
        let refused = process.quorum.acquire(&rival, attempt, None, until);
        let answer = refused
            .await
            .unwrap_or_else(|error| panic!("{millis} ms: {error}"));
        assert_held(&answer);
        assert!(Instant::now() <= until + Duration::from_millis(1));
    }
}

/// Contenders have a node each, so there is a second round. By then two of them have gone, and a majority grants the locks,
/// but its answers come too late.
#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_hide_a_later_round_that_may_have_granted() {
    let process = Process::alone();
    let claim = claim();
    let contenders = [0, 1, 2].map(|node| (node, rival(&claim)));
    for (node, contender) in &contenders {
        process.leave_at(*node, contender).await;
    }
    let until = Instant::now() + Duration::from_secs(1);
    let acquiring = process
        .quorum
        .acquire(&claim, Attempt::random(), None, until);
    process.behaves(&[0, 1, 2], &Behavior::Late(Duration::from_millis(20)));
    let interfering = async {
        sleep(Duration::from_millis(10)).await;
        process.behaves(&[0, 1, 2], &Behavior::Late(Duration::from_secs(5)));
        for (node, contender) in &contenders[1..] {
            release_at(&process, *node, contender).await;
        }
    };
    let (answer, ()) = join(acquiring, interfering).await;
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{answer:?}"
    );
    process.behaves(&[0, 1, 2], &Behavior::Answered);
    process.settled().await;
    assert_eq!(process.held_at(&claim).await, [0], "it is rolled back");
}

/// It was granted by two nodes. One of these is silent now, and the third one has a contender, or one with another limit.
#[tokio::test(start_paused = true)]
async fn a_holder_is_not_refused_while_a_silent_node_may_have_its_lease() {
    let exclusive = (Mode::Exclusive, Mode::Exclusive);
    for (mode, of_rival) in [exclusive, (permits(1, 2), permits(1, 3))] {
        for (silent, contended) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
            let process = Process::alone();
            let claim = in_mode(&claim(), mode);
            let contender = in_mode(&rival(&claim), of_rival);
            process.leave_at(contended, &contender).await;
            process.fixture.granted(&claim).await;
            process.settled().await;
            process.without(&[silent]);
            let answer = process.acquire(&claim).await;
            let is_unclear = matches!(&answer, Err(error @ StoreError::Unknown { .. }) if error.fault() == Fault::Io);
            assert!(is_unclear, "{answer:?}");
            process.without(&[]);
            process.settled().await;
            let answer = process.acquire(&claim).await;
            assert!(
                matches!(&answer, Ok(Acquired::Granted(granted)) if granted.kind == GrantKind::Replayed),
                "{answer:?}"
            );
        }
    }
}

/// It grants the lock after the round is over, and takes that back. Then a contender leaves another node, and both grant it.
#[tokio::test(start_paused = true)]
async fn a_node_whose_late_grant_was_taken_back_takes_part_in_the_next_rounds() {
    let process = Process::alone();
    let claim = claim();
    let contenders = [rival(&claim), rival(&claim)];
    for (node, contender) in contenders.iter().enumerate() {
        process.leave_at(node, contender).await;
    }
    process.behaves(&[2], &Behavior::Late(Duration::from_millis(150)));
    let until = Instant::now() + Duration::from_secs(5);
    let acquiring = process
        .quorum
        .acquire(&claim, Attempt::random(), None, until);
    let freeing = async {
        sleep(Duration::from_millis(10)).await;
        process.behaves(&[2], &Behavior::Answered);
        // Rounds take no time now, so this comes between two of them.
        sleep(Duration::from_millis(590)).await;
        release_at(&process, 0, &contenders[0]).await;
        process.nodes[0].acquires()
    };
    let (answer, before) = join(acquiring, freeing).await;
    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
    assert_eq!(process.nodes[0].acquires(), before + 1);
}

/// The holder asks again with a request that waits. It waits at the third node, and ends with an unknown outcome if nothing changes.
#[tokio::test(start_paused = true)]
async fn a_holder_that_waits_may_have_its_lease_while_a_node_is_silent() {
    for (silent, contended) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
        let process = Process::alone();
        let claim = claim();
        let contender = rival(&claim);
        process.leave_at(contended, &contender).await;
        process.fixture.granted(&claim).await;
        process.settled().await;
        process.without(&[silent]);
        let mut waiter = Waiter::new(claim);
        let waiting = process.fixture.still_waits(&mut waiter).await;
        assert!(waiting.has_ambiguous_attempt);
        release_at(&process, contended, &contender).await;
        process.fixture.granted_after_wait(&mut waiter).await;
    }
}

/// The third node has kept the lease from before its renewal, and so remembers that it ran out.
#[tokio::test(start_paused = true)]
async fn a_holder_has_not_ended_while_a_silent_node_may_have_its_lease() {
    for (silent, expired) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
        let process = Process::alone();
        let claim = claim();
        process.leave_at(expired, &for_short(&claim)).await;
        process.fixture.outlast(SHORT).await;
        process.fixture.granted(&claim).await;
        process.settled().await;
        process.without(&[silent]);
        let answer = process.acquire(&claim).await;
        assert!(
            matches!(answer, Err(StoreError::Unknown { .. })),
            "{answer:?}"
        );
    }
}
