//! Laws of withdrawal: a grant that nobody was told of is undone, and one that somebody was told of stays.

use leasehold::domain::{
    Acquired, Attempt, Blocker, Change, Claim, LockState, NotHolder, Renewed, Withdrawable,
};

use leasehold::store::REMEMBERED;

use super::expiry::after_expiry_in;
use super::waiting::held_and_waited_for;
use crate::support::bench::{
    Bench, LONG, SHORT, assert_held, at_depth, blocker, claim, deadline, ended, for_short, in_mode,
    leases_granted, lock_of, permits, rival,
};

/// Grants the lock to the claim by an attempt that is returned.
async fn granted_to(bench: &Bench, claim: &Claim) -> Attempt {
    let attempt = Attempt::random();
    let answer = bench.attempt(claim, attempt).await;
    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
    attempt
}

pub(super) async fn a_withdrawn_grant_frees_the_lock_and_leaves_the_token_usable(bench: &Bench) {
    let claim = claim();
    let attempt = granted_to(bench, &claim).await;
    bench.withdraw(&claim, attempt).await;
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
    bench.granted(&claim).await;
}

pub(super) async fn a_withdrawn_grant_does_not_close_the_lock(bench: &Bench) {
    let claim = Claim {
        min_hold: Some(LONG),
        lock_delay: Some(LONG),
        ..claim()
    };
    let attempt = granted_to(bench, &claim).await;
    bench.withdraw(&claim, attempt).await;
    bench.granted(&rival(&claim)).await;
}

pub(super) async fn a_grant_withdrawn_after_it_ran_out_closes_nothing(bench: &Bench) {
    let claim = Claim {
        lock_delay: Some(LONG),
        ..for_short(&claim())
    };
    let attempt = granted_to(bench, &claim).await;
    bench.outlast(SHORT).await;
    bench.withdraw(&claim, attempt).await;
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
    bench.granted(&claim).await;
}

pub(super) async fn a_grant_withdrawn_after_it_ran_out_is_nothing_to_its_successor(bench: &Bench) {
    let claim = for_short(&claim());
    let attempt = granted_to(bench, &claim).await;
    bench.outlast(SHORT).await;
    bench.withdraw(&claim, attempt).await;
    let answer = bench.acquire(&rival(&claim)).await;
    assert_eq!(after_expiry_in(answer), None);
    assert_held(&bench.acquire(&claim).await);
}

/// The client waits on and was told of nothing, so it must not be told that its claim has ended.
pub(super) async fn a_grant_withdrawn_after_another_got_the_lock_leaves_the_token_usable(
    bench: &Bench,
) {
    let claim = for_short(&claim());
    let attempt = granted_to(bench, &claim).await;
    bench.outlast(SHORT).await;
    let next = rival(&claim);
    bench.granted(&next).await;
    // Of another attempt nobody knows whether its client was told.
    let told = ended(&claim, NotHolder::Lost);
    assert_eq!(bench.acquire(&claim).await, told);
    bench.withdraw(&claim, attempt).await;
    assert_held(&bench.acquire(&claim).await);
    bench.freed(&next).await;
    bench.granted(&claim).await;
}

pub(super) async fn an_attempt_withdrawn_after_it_ran_out_that_arrives_late_is_not_granted(
    bench: &Bench,
) {
    let before = Attempt::random();
    let claim = for_short(&claim());
    bench.withdraw(&claim, before).await;
    let attempt = granted_to(bench, &claim).await;
    bench.outlast(SHORT).await;
    let next = rival(&claim);
    bench.granted(&next).await;
    bench.withdraw(&claim, attempt).await;
    bench.freed(&next).await;
    for attempt in [before, attempt] {
        let late = bench.attempt(&claim, attempt).await;
        assert!(!matches!(late, Ok(Acquired::Granted(_))), "{late:?}");
    }
}

pub(super) async fn a_shared_grant_withdrawn_after_it_ran_out_keeps_no_permits(bench: &Bench) {
    let claim = Claim {
        lock_delay: Some(LONG),
        ..in_mode(&for_short(&claim()), permits(1, 1))
    };
    let attempt = granted_to(bench, &claim).await;
    bench.outlast(SHORT).await;
    // Whoever asks clears away what ran out.
    let next = in_mode(&rival(&claim), permits(1, 1));
    let blocker = blocker(bench.acquire(&next).await);
    assert!(matches!(blocker, Blocker::Cooling { .. }), "{blocker:?}");
    bench.withdraw(&claim, attempt).await;
    bench.granted(&next).await;
}

pub(super) async fn a_renewed_grant_that_ran_out_cannot_be_withdrawn(bench: &Bench) {
    let claim = for_short(&claim());
    let attempt = granted_to(bench, &claim).await;
    bench.renewed(&claim, None).await;
    bench.outlast(SHORT).await;
    bench.granted(&rival(&claim)).await;
    bench.withdraw(&claim, attempt).await;
    let told = ended(&claim, NotHolder::Lost);
    assert_eq!(bench.acquire(&claim).await, told);
}

pub(super) async fn a_grant_that_a_second_attempt_was_told_of_stays(bench: &Bench) {
    let claim = claim();
    let first = granted_to(bench, &claim).await;
    let answer = bench.acquire(&claim).await;
    assert!(matches!(answer, Acquired::Replayed(_)), "{answer:?}");
    bench.withdraw(&claim, first).await;
    bench.renewed(&claim, None).await;
}

pub(super) async fn a_grant_that_a_second_attempt_deepened_stays(bench: &Bench) {
    let claim = claim();
    let first = granted_to(bench, &claim).await;
    let second = Attempt::random();
    let answer = bench.attempt(&at_depth(&claim, 2), second).await;
    assert!(matches!(answer, Ok(Acquired::Reentered(_))), "{answer:?}");
    bench.withdraw(&claim, first).await;
    // Nor can the second attempt take back what it did not grant.
    bench.withdraw(&claim, second).await;
    let lease = bench.renewed(&claim, None).await.lease;
    assert_eq!(lease.holder.hold_count.get(), 2);
}

pub(super) async fn a_grant_that_was_renewed_stays(bench: &Bench) {
    let claim = claim();
    let attempt = granted_to(bench, &claim).await;
    bench.renewed(&claim, None).await;
    bench.withdraw(&claim, attempt).await;
    bench.freed(&claim).await;
}

pub(super) async fn a_grant_that_was_stepped_back_stays(bench: &Bench) {
    let claim = at_depth(&claim(), 2);
    let attempt = granted_to(bench, &claim).await;
    bench.step_back(&claim, 1).await;
    bench.withdraw(&claim, attempt).await;
    bench.freed(&claim).await;
}

pub(super) async fn the_same_attempt_told_twice_can_still_be_withdrawn(bench: &Bench) {
    let claim = claim();
    let attempt = granted_to(bench, &claim).await;
    // The first answer may have been lost on its way, so the second may say that it was granted, too.
    match bench.attempt(&claim, attempt).await {
        Ok(Acquired::Granted(_) | Acquired::Replayed(_)) => {}
        other => panic!("the claim holds, but: {other:?}"),
    }
    bench.withdraw(&claim, attempt).await;
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
}

pub(super) async fn a_withdrawn_grant_of_a_waiter_passes_to_the_next(bench: &Bench) {
    let (holding, [mut first, mut second]) = held_and_waited_for(bench).await;
    bench.freed(&holding).await;
    leases_granted(bench.ask(&mut first).await);
    bench.withdraw(&first.claim, first.attempt).await;
    // Its turn is over: it may come back, and stands at the end.
    let mut again = first.again();
    bench.waits(&mut again).await;
    bench.served(&mut second).await;
    leases_granted(bench.ask(&mut again).await);
    bench.withdraw(&again.claim, again.attempt).await;
    assert_eq!(bench.state(lock_of(&holding)).await, LockState::Free);
}

pub(super) async fn a_refused_attempt_withdraws_nothing_of_the_holders(bench: &Bench) {
    let holding = claim();
    let refused = rival(&holding);
    granted_to(bench, &holding).await;
    let attempt = Attempt::random();
    let answer = bench.attempt(&refused, attempt).await;
    assert_held(&answer.expect("the store answers"));
    bench.withdraw(&refused, attempt).await;
    bench.freed(&holding).await;
    bench.granted(&refused).await;
}

pub(super) async fn a_withdrawal_does_not_reach_the_next_grant_of_the_claim(bench: &Bench) {
    let claim = claim();
    let first = granted_to(bench, &claim).await;
    bench.withdraw(&claim, first).await;
    granted_to(bench, &claim).await;
    // The repetition of a withdrawal whose answer was lost.
    bench.withdraw(&claim, first).await;
    bench.freed(&claim).await;
}

pub(super) async fn a_withdrawal_can_be_repeated(bench: &Bench) {
    let claim = claim();
    let attempt = granted_to(bench, &claim).await;
    let next = rival(&claim);
    bench.withdraw(&claim, attempt).await;
    bench.withdraw(&claim, attempt).await;
    bench.granted(&next).await;
    bench.withdraw(&claim, attempt).await;
    bench.freed(&next).await;
}

pub(super) async fn a_withdrawal_leaves_an_ended_claim_ended(bench: &Bench) {
    let claim = claim();
    let attempt = granted_to(bench, &claim).await;
    bench.freed(&claim).await;
    bench.withdraw(&claim, attempt).await;
    let ended = ended(&claim, NotHolder::Released);
    assert_eq!(bench.acquire(&claim).await, ended);
}

/// Requests travel on several connections, so a withdrawal may overtake what it withdraws.
pub(super) async fn a_withdrawn_attempt_that_arrives_late_is_not_granted(bench: &Bench) {
    let claim = claim();
    let attempt = Attempt::random();
    bench.withdraw(&claim, attempt).await;
    let late = bench.attempt(&claim, attempt).await;
    assert!(!matches!(late, Ok(Acquired::Granted(_))), "{late:?}");
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
}

/// The client hangs up while its request is on the way to take what it was offered.
pub(super) async fn a_withdrawn_attempt_does_not_take_what_it_is_offered(bench: &Bench) {
    let (holding, [mut first, mut second]) = held_and_waited_for(bench).await;
    bench.freed(&holding).await;
    bench.withdraw(&first.claim, first.attempt).await;
    let late = bench
        .store()
        .acquire(&first.claim, first.attempt, Some(&first.stand), deadline())
        .await;
    assert!(!matches!(late, Ok(Acquired::Granted(_))), "{late:?}");
    // Its place is the claim's, which may come back by another attempt.
    bench.waits(&mut second).await;
    first.attempt = Attempt::random();
    bench.served(&mut first).await;
    bench.served(&mut second).await;
}

pub(super) async fn a_withdrawal_that_came_first_leaves_the_token_usable(bench: &Bench) {
    let claim = claim();
    let attempt = Attempt::random();
    bench.withdraw(&claim, attempt).await;
    bench.granted(&claim).await;
    // The late request finds the claim holding, by another attempt, which must not change.
    drop(bench.attempt(&claim, attempt).await);
    bench.withdraw(&claim, attempt).await;
    bench.freed(&claim).await;
}

pub(super) async fn a_withdrawn_attempt_that_arrives_late_leaves_the_next_grant_alone(
    bench: &Bench,
) {
    let claim = claim();
    let first = Attempt::random();
    bench.withdraw(&claim, first).await;
    let second = granted_to(bench, &claim).await;
    drop(bench.attempt(&at_depth(&claim, 2), first).await);
    let holder = bench.holder(lock_of(&claim)).await;
    assert_eq!(holder.hold_count.get(), 1);
    // Nobody was told of the second attempt by the first, whose answer nobody awaits.
    bench.withdraw(&claim, second).await;
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
}

/// A stream renews its own lease, and gives it back when it is closed.
pub(super) async fn a_grant_that_its_own_attempt_renewed_can_be_withdrawn(bench: &Bench) {
    let claim = claim();
    let attempt = granted_to(bench, &claim).await;
    renewed_for(bench, &claim, Withdrawable::AsBefore).await;
    bench.withdraw(&claim, attempt).await;
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
}

async fn renewed_for(bench: &Bench, claim: &Claim, withdrawable: Withdrawable) {
    let change = Change {
        withdrawable,
        ..Change::default()
    };
    let store = bench.store();
    let renewed = store
        .renew(&claim.names, claim.token, change, deadline())
        .await;
    assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
}

/// Instead of waiting for a minute, this looks at how much longer Redis keeps what it knows of the lock.
pub(super) async fn a_withdrawn_attempt_is_remembered_for_a_minute(bench: &Bench) {
    for was_granted in [false, true] {
        let (claim, attempt) = (claim(), Attempt::random());
        if was_granted {
            leases_granted(bench.attempt(&claim, attempt).await.expect("it answers"));
        }
        bench.withdraw(&claim, attempt).await;
        let kept = bench.longest_kept(lock_of(&claim)).await;
        bench.assert_left(kept, REMEMBERED);
        // What one attempt leaves is not forgotten sooner because of another.
        bench.withdraw(&claim, Attempt::random()).await;
        let kept = bench.longest_kept(lock_of(&claim)).await;
        bench.assert_left(kept, REMEMBERED);
    }
}
