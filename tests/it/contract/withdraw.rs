//! Laws of withdrawal: a grant that nobody was told of is undone, and one that somebody was told of stays.

use leasehold::domain::{
    Acquired, Attempt, Claim, ConflictKind, LockState, NotHolder, RenewOptions, Renewed,
    RollbackRight,
};

use leasehold::store::TOMBSTONE_TTL;

use super::expiry::after_expiry_in;
use super::waiting::held_and_waited_for;
use crate::support::fixture::{
    Fixture, LONG, SHORT, assert_held, at_depth, blocker, claim, deadline, ended, for_short,
    in_mode, leases_granted, lock_of, permits, rival,
};

/// Grants the lock to the claim by an attempt that is returned.
async fn granted_to(fixture: &Fixture, claim: &Claim) -> Attempt {
    let attempt = Attempt::random();
    let answer = fixture.attempt(claim, attempt).await;
    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
    attempt
}

pub(super) async fn a_withdrawn_grant_frees_the_lock_and_leaves_the_token_usable(
    fixture: &Fixture,
) {
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    fixture.withdraw(&claim, attempt).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
    fixture.granted(&claim).await;
}

pub(super) async fn a_withdrawn_grant_does_not_close_the_lock(fixture: &Fixture) {
    let claim = Claim {
        min_hold: Some(LONG),
        lock_delay: Some(LONG),
        ..claim()
    };
    let attempt = granted_to(fixture, &claim).await;
    fixture.withdraw(&claim, attempt).await;
    fixture.granted(&rival(&claim)).await;
}

pub(super) async fn a_grant_withdrawn_after_it_ran_out_closes_nothing(fixture: &Fixture) {
    let claim = Claim {
        lock_delay: Some(LONG),
        ..for_short(&claim())
    };
    let attempt = granted_to(fixture, &claim).await;
    fixture.outlast(SHORT).await;
    fixture.withdraw(&claim, attempt).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
    fixture.granted(&claim).await;
}

pub(super) async fn a_grant_withdrawn_after_it_ran_out_is_nothing_to_its_successor(
    fixture: &Fixture,
) {
    let claim = for_short(&claim());
    let attempt = granted_to(fixture, &claim).await;
    fixture.outlast(SHORT).await;
    fixture.withdraw(&claim, attempt).await;
    let answer = fixture.acquire(&rival(&claim)).await;
    assert_eq!(after_expiry_in(answer), None);
    assert_held(&fixture.acquire(&claim).await);
}

/// The client waits on and was told of nothing, so it must not be told that its claim has ended.
pub(super) async fn a_grant_withdrawn_after_another_got_the_lock_leaves_the_token_usable(
    fixture: &Fixture,
) {
    let claim = for_short(&claim());
    let attempt = granted_to(fixture, &claim).await;
    fixture.outlast(SHORT).await;
    let next = rival(&claim);
    fixture.granted(&next).await;
    // Of another attempt nobody knows whether its client was told.
    let told = ended(&claim, NotHolder::Lost);
    assert_eq!(fixture.acquire(&claim).await, told);
    fixture.withdraw(&claim, attempt).await;
    assert_held(&fixture.acquire(&claim).await);
    fixture.freed(&next).await;
    fixture.granted(&claim).await;
}

pub(super) async fn an_attempt_withdrawn_after_it_ran_out_that_arrives_late_is_not_granted(
    fixture: &Fixture,
) {
    let before = Attempt::random();
    let claim = for_short(&claim());
    fixture.withdraw(&claim, before).await;
    let attempt = granted_to(fixture, &claim).await;
    fixture.outlast(SHORT).await;
    let next = rival(&claim);
    fixture.granted(&next).await;
    fixture.withdraw(&claim, attempt).await;
    fixture.freed(&next).await;
    for attempt in [before, attempt] {
        let late = fixture.attempt(&claim, attempt).await;
        assert!(!matches!(late, Ok(Acquired::Granted(_))), "{late:?}");
    }
}

pub(super) async fn a_shared_grant_withdrawn_after_it_ran_out_keeps_no_permits(fixture: &Fixture) {
    let claim = Claim {
        lock_delay: Some(LONG),
        ..in_mode(&for_short(&claim()), permits(1, 1))
    };
    let attempt = granted_to(fixture, &claim).await;
    fixture.outlast(SHORT).await;
    // Whoever asks clears away what ran out.
    let next = in_mode(&rival(&claim), permits(1, 1));
    let blocker = blocker(fixture.acquire(&next).await);
    assert!(
        matches!(blocker, ConflictKind::Cooling { .. }),
        "{blocker:?}"
    );
    fixture.withdraw(&claim, attempt).await;
    fixture.granted(&next).await;
}

pub(super) async fn a_renewed_grant_that_ran_out_cannot_be_withdrawn(fixture: &Fixture) {
    let claim = for_short(&claim());
    let attempt = granted_to(fixture, &claim).await;
    fixture.renewed(&claim, None).await;
    fixture.outlast(SHORT).await;
    fixture.granted(&rival(&claim)).await;
    fixture.withdraw(&claim, attempt).await;
    let told = ended(&claim, NotHolder::Lost);
    assert_eq!(fixture.acquire(&claim).await, told);
}

pub(super) async fn a_grant_that_a_second_attempt_was_told_of_stays(fixture: &Fixture) {
    let claim = claim();
    let first = granted_to(fixture, &claim).await;
    let answer = fixture.acquire(&claim).await;
    assert!(matches!(answer, Acquired::Replayed(_)), "{answer:?}");
    fixture.withdraw(&claim, first).await;
    fixture.renewed(&claim, None).await;
}

pub(super) async fn a_grant_that_a_second_attempt_deepened_stays(fixture: &Fixture) {
    let claim = claim();
    let first = granted_to(fixture, &claim).await;
    let second = Attempt::random();
    let answer = fixture.attempt(&at_depth(&claim, 2), second).await;
    assert!(matches!(answer, Ok(Acquired::Reentered(_))), "{answer:?}");
    fixture.withdraw(&claim, first).await;
    // Nor can the second attempt take back what it did not grant.
    fixture.withdraw(&claim, second).await;
    let lease = fixture.renewed(&claim, None).await.lease;
    assert_eq!(lease.holder.hold_count.get(), 2);
}

pub(super) async fn a_grant_that_was_renewed_stays(fixture: &Fixture) {
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    fixture.renewed(&claim, None).await;
    fixture.withdraw(&claim, attempt).await;
    fixture.freed(&claim).await;
}

pub(super) async fn a_grant_that_was_stepped_back_stays(fixture: &Fixture) {
    let claim = at_depth(&claim(), 2);
    let attempt = granted_to(fixture, &claim).await;
    fixture.step_back(&claim, 1).await;
    fixture.withdraw(&claim, attempt).await;
    fixture.freed(&claim).await;
}

pub(super) async fn the_same_attempt_told_twice_can_still_be_withdrawn(fixture: &Fixture) {
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    // The first answer may have been lost on its way, so the second may say that it was granted, too.
    match fixture.attempt(&claim, attempt).await {
        Ok(Acquired::Granted(_) | Acquired::Replayed(_)) => {}
        other => panic!("the claim holds, but: {other:?}"),
    }
    fixture.withdraw(&claim, attempt).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

pub(super) async fn a_withdrawn_grant_of_a_waiter_passes_to_the_next(fixture: &Fixture) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    leases_granted(fixture.ask(&mut first).await);
    fixture.withdraw(&first.claim, first.attempt).await;
    // Its turn is over: it may come back, and stands at the end.
    let mut again = first.again();
    fixture.waits(&mut again).await;
    fixture.served(&mut second).await;
    leases_granted(fixture.ask(&mut again).await);
    fixture.withdraw(&again.claim, again.attempt).await;
    assert_eq!(fixture.state(lock_of(&holding)).await, LockState::Free);
}

pub(super) async fn a_refused_attempt_withdraws_nothing_of_the_holders(fixture: &Fixture) {
    let holding = claim();
    let refused = rival(&holding);
    granted_to(fixture, &holding).await;
    let attempt = Attempt::random();
    let answer = fixture.attempt(&refused, attempt).await;
    assert_held(&answer.expect("the store answers"));
    fixture.withdraw(&refused, attempt).await;
    fixture.freed(&holding).await;
    fixture.granted(&refused).await;
}

pub(super) async fn a_withdrawal_does_not_reach_the_next_grant_of_the_claim(fixture: &Fixture) {
    let claim = claim();
    let first = granted_to(fixture, &claim).await;
    fixture.withdraw(&claim, first).await;
    granted_to(fixture, &claim).await;
    // The repetition of a withdrawal whose answer was lost.
    fixture.withdraw(&claim, first).await;
    fixture.freed(&claim).await;
}

pub(super) async fn a_withdrawal_can_be_repeated(fixture: &Fixture) {
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    let next = rival(&claim);
    fixture.withdraw(&claim, attempt).await;
    fixture.withdraw(&claim, attempt).await;
    fixture.granted(&next).await;
    fixture.withdraw(&claim, attempt).await;
    fixture.freed(&next).await;
}

pub(super) async fn a_withdrawal_leaves_an_ended_claim_ended(fixture: &Fixture) {
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    fixture.freed(&claim).await;
    fixture.withdraw(&claim, attempt).await;
    let ended = ended(&claim, NotHolder::Released);
    assert_eq!(fixture.acquire(&claim).await, ended);
}

/// Requests travel on several connections, so a withdrawal may overtake what it withdraws.
pub(super) async fn a_withdrawn_attempt_that_arrives_late_is_not_granted(fixture: &Fixture) {
    let claim = claim();
    let attempt = Attempt::random();
    fixture.withdraw(&claim, attempt).await;
    let late = fixture.attempt(&claim, attempt).await;
    assert!(!matches!(late, Ok(Acquired::Granted(_))), "{late:?}");
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

/// The client hangs up while its request is on the way to take what it was offered.
pub(super) async fn a_withdrawn_attempt_does_not_take_what_it_is_offered(fixture: &Fixture) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    fixture.withdraw(&first.claim, first.attempt).await;
    let late = fixture
        .store()
        .acquire(&first.claim, first.attempt, Some(&first.stand), deadline())
        .await;
    assert!(!matches!(late, Ok(Acquired::Granted(_))), "{late:?}");
    // Its place is the claim's, which may come back by another attempt.
    fixture.waits(&mut second).await;
    first.attempt = Attempt::random();
    fixture.served(&mut first).await;
    fixture.served(&mut second).await;
}

pub(super) async fn a_withdrawal_that_came_first_leaves_the_token_usable(fixture: &Fixture) {
    let claim = claim();
    let attempt = Attempt::random();
    fixture.withdraw(&claim, attempt).await;
    fixture.granted(&claim).await;
    // The late request finds the claim holding, by another attempt, which must not change.
    drop(fixture.attempt(&claim, attempt).await);
    fixture.withdraw(&claim, attempt).await;
    fixture.freed(&claim).await;
}

pub(super) async fn a_withdrawn_attempt_that_arrives_late_leaves_the_next_grant_alone(
    fixture: &Fixture,
) {
    let claim = claim();
    let first = Attempt::random();
    fixture.withdraw(&claim, first).await;
    let second = granted_to(fixture, &claim).await;
    drop(fixture.attempt(&at_depth(&claim, 2), first).await);
    let holder = fixture.holder(lock_of(&claim)).await;
    assert_eq!(holder.hold_count.get(), 1);
    // Nobody was told of the second attempt by the first, whose answer nobody awaits.
    fixture.withdraw(&claim, second).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

/// A stream renews its own lease, and gives it back when it is closed.
pub(super) async fn a_grant_that_its_own_attempt_renewed_can_be_withdrawn(fixture: &Fixture) {
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    renewed_for(fixture, &claim, RollbackRight::AsBefore).await;
    fixture.withdraw(&claim, attempt).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

async fn renewed_for(fixture: &Fixture, claim: &Claim, withdrawable: RollbackRight) {
    let change = RenewOptions {
        rollback_right: withdrawable,
        ..RenewOptions::default()
    };
    let store = fixture.store();
    let renewed = store
        .renew(&claim.names, claim.token, change, deadline())
        .await;
    assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
}

/// Instead of waiting for a minute, this looks at how much longer Redis keeps what it knows of the lock.
pub(super) async fn a_withdrawn_attempt_is_remembered_for_a_minute(fixture: &Fixture) {
    for was_granted in [false, true] {
        let (claim, attempt) = (claim(), Attempt::random());
        if was_granted {
            leases_granted(fixture.attempt(&claim, attempt).await.expect("it answers"));
        }
        fixture.withdraw(&claim, attempt).await;
        let kept = fixture.longest_kept(lock_of(&claim)).await;
        fixture.assert_left(kept, TOMBSTONE_TTL);
        // What one attempt leaves is not forgotten sooner because of another.
        fixture.withdraw(&claim, Attempt::random()).await;
        let kept = fixture.longest_kept(lock_of(&claim)).await;
        fixture.assert_left(kept, TOMBSTONE_TTL);
    }
}
