//! Contract tests of withdrawal: an undelivered grant is rolled back, and a delivered one stays.

use leasehold::domain::{
    Acquired, Attempt, Claim, ConflictKind, GrantKind, LockState, NotHolder, RenewOptions, Renewed,
    Rollback, RollbackRight,
};

use leasehold::store::TOMBSTONE_TTL;

use super::expiry::after_expiry_in;
use super::waiting::held_and_waited_for;
use crate::support::fixture::{
    Fixture, LONG, SHORT, assert_held, at_depth, blocker, claim, claim_on_all, deadline, ended,
    for_short, fresh_name, in_mode, leases_granted, lock_of, names, permits, rival,
};

/// Grants the lock to the claim, and returns the attempt.
async fn granted_to(fixture: &Fixture, claim: &Claim) -> Attempt {
    let attempt = Attempt::random();
    let answer = fixture.attempt(claim, attempt).await;
    assert!(
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{answer:?}"
    );
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

pub(super) async fn a_rollback_reports_how_many_leases_it_has_ended(fixture: &Fixture) {
    let several = claim_on_all(names(&[fresh_name(), fresh_name()]));
    for (claim, count) in [(claim(), 1), (several, 2)] {
        for rollback in [Rollback::Undo, Rollback::Close] {
            let claim = rival(&claim);
            let attempt = granted_to(fixture, &claim).await;
            let other = Attempt::random();
            assert_eq!(fixture.roll_back(&claim, other, rollback).await, 0);
            assert_eq!(fixture.roll_back(&claim, attempt, rollback).await, count);
            assert_eq!(fixture.roll_back(&claim, attempt, rollback).await, 0);
        }
    }
    // A repeated request has received the grant.
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    fixture.acquire(&claim).await;
    let ended = fixture.roll_back(&claim, attempt, Rollback::Undo).await;
    assert_eq!(ended, 0);
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

pub(super) async fn a_grant_withdrawn_after_it_ran_out_is_unknown_to_its_successor(
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

/// The client still waits and has received nothing, so its claim must not count as ended.
pub(super) async fn a_grant_withdrawn_after_another_got_the_lock_leaves_the_token_usable(
    fixture: &Fixture,
) {
    let claim = for_short(&claim());
    let attempt = granted_to(fixture, &claim).await;
    fixture.outlast(SHORT).await;
    let next = rival(&claim);
    fixture.granted(&next).await;
    // For another attempt the claim has ended: its client may have received the lease.
    let lost = ended(&claim, NotHolder::Lost);
    assert_eq!(fixture.acquire(&claim).await, lost);
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
        assert!(
            !matches!(&late, Ok(granted) if granted.kind() == Some(GrantKind::New)),
            "{late:?}"
        );
    }
}

pub(super) async fn a_shared_grant_withdrawn_after_it_ran_out_keeps_no_permits(fixture: &Fixture) {
    let claim = Claim {
        lock_delay: Some(LONG),
        ..in_mode(&for_short(&claim()), permits(1, 1))
    };
    let attempt = granted_to(fixture, &claim).await;
    fixture.outlast(SHORT).await;
    // The next request removes expired leases.
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
    let lost = ended(&claim, NotHolder::Lost);
    assert_eq!(fixture.acquire(&claim).await, lost);
}

pub(super) async fn a_grant_that_was_replayed_to_a_second_attempt_stays(fixture: &Fixture) {
    let claim = claim();
    let first = granted_to(fixture, &claim).await;
    let answer = fixture.acquire(&claim).await;
    assert_eq!(answer.kind(), Some(GrantKind::Replayed), "{answer:?}");
    fixture.withdraw(&claim, first).await;
    fixture.renewed(&claim, None).await;
}

pub(super) async fn a_grant_that_a_second_attempt_deepened_stays_until_that_is_undone_too(
    fixture: &Fixture,
) {
    let claim = claim();
    let first = granted_to(fixture, &claim).await;
    let second = Attempt::random();
    let answer = fixture.attempt(&at_depth(&claim, 2), second).await;
    assert!(
        matches!(&answer, Ok(granted) if granted.kind() == Some(GrantKind::Reentered)),
        "{answer:?}"
    );
    fixture.withdraw(&claim, first).await;
    let holder = fixture.holder(lock_of(&claim)).await;
    assert_eq!(holder.hold_count.get(), 2);
    fixture.withdraw(&claim, second).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
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

pub(super) async fn a_grant_replayed_to_the_same_attempt_can_still_be_withdrawn(fixture: &Fixture) {
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    let answer = fixture.attempt(&claim, attempt).await;
    assert_eq!(
        answer.as_ref().ok().and_then(Acquired::kind),
        Some(GrantKind::New),
        "{answer:?}"
    );
    fixture.withdraw(&claim, attempt).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

pub(super) async fn a_withdrawn_grant_of_a_waiter_passes_to_the_next(fixture: &Fixture) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    leases_granted(fixture.poll(&mut first).await);
    fixture.withdraw(&first.claim, first.attempt).await;
    // It has lost its place: it may come back, at the end of the queue.
    let mut again = first.again();
    fixture.still_waits(&mut again).await;
    fixture.granted_after_wait(&mut second).await;
    leases_granted(fixture.poll(&mut again).await);
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

pub(super) async fn a_withdrawal_does_not_affect_the_next_grant_of_the_claim(fixture: &Fixture) {
    let claim = claim();
    let first = granted_to(fixture, &claim).await;
    fixture.withdraw(&claim, first).await;
    granted_to(fixture, &claim).await;
    // A repeated withdrawal, because the first answer was lost.
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

/// Requests use several connections, so a withdrawal may overtake the request that it withdraws.
pub(super) async fn a_withdrawn_attempt_that_arrives_late_is_not_granted(fixture: &Fixture) {
    let claim = claim();
    let attempt = Attempt::random();
    fixture.withdraw(&claim, attempt).await;
    let late = fixture.attempt(&claim, attempt).await;
    assert!(
        !matches!(&late, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{late:?}"
    );
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

/// The client disconnects while its request to claim the reservation is in flight.
pub(super) async fn a_withdrawn_attempt_does_not_take_its_reservation(fixture: &Fixture) {
    let (holding, [mut first, mut second]) = held_and_waited_for(fixture).await;
    fixture.freed(&holding).await;
    fixture.withdraw(&first.claim, first.attempt).await;
    let late = fixture
        .store()
        .acquire(
            &first.claim,
            first.attempt,
            Some(&first.queue_request),
            deadline(),
        )
        .await;
    assert!(
        !matches!(&late, Ok(granted) if granted.kind() == Some(GrantKind::New)),
        "{late:?}"
    );
    // The place belongs to the claim, which may come back with another attempt.
    fixture.still_waits(&mut second).await;
    first.attempt = Attempt::random();
    fixture.granted_after_wait(&mut first).await;
    fixture.granted_after_wait(&mut second).await;
}

pub(super) async fn a_withdrawal_that_came_first_leaves_the_token_usable(fixture: &Fixture) {
    let claim = claim();
    let attempt = Attempt::random();
    fixture.withdraw(&claim, attempt).await;
    fixture.granted(&claim).await;
    // The late request finds that the claim holds by another attempt, and must not change that.
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
    // The late first attempt delivered nothing, so the second one can still be withdrawn.
    fixture.withdraw(&claim, second).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

/// A stream renews its own lease, and releases it when it is closed.
pub(super) async fn a_grant_that_its_own_attempt_renewed_can_be_withdrawn(fixture: &Fixture) {
    let claim = claim();
    let attempt = granted_to(fixture, &claim).await;
    renewed_for(fixture, &claim, RollbackRight::AsBefore).await;
    fixture.withdraw(&claim, attempt).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}

async fn renewed_for(fixture: &Fixture, claim: &Claim, rollback_right: RollbackRight) {
    let change = RenewOptions {
        rollback_right,
        ..RenewOptions::default()
    };
    let store = fixture.store();
    let renewed = store
        .renew(&claim.names, claim.token, change, deadline())
        .await;
    assert!(matches!(renewed, Ok(Renewed::Extended(_))), "{renewed:?}");
}

/// Checks the remaining TTLs of the lock's keys in Redis instead of waiting for a minute.
pub(super) async fn a_withdrawn_attempt_is_remembered_for_a_minute(fixture: &Fixture) {
    for was_granted in [false, true] {
        let (claim, attempt) = (claim(), Attempt::random());
        if was_granted {
            leases_granted(fixture.attempt(&claim, attempt).await.expect("it answers"));
        }
        fixture.withdraw(&claim, attempt).await;
        let kept = fixture.longest_kept(lock_of(&claim)).await;
        fixture.assert_left(kept, TOMBSTONE_TTL);
        // The tombstone of one attempt does not expire sooner because of another.
        fixture.withdraw(&claim, Attempt::random()).await;
        let kept = fixture.longest_kept(lock_of(&claim)).await;
        fixture.assert_left(kept, TOMBSTONE_TTL);
    }
}
