//! Contract tests of expiry: what an expired lease leaves behind, and what its claim reports.

use std::time::Duration;

use leasehold::domain::{Acquired, Claim, GrantKind, Granted, LockState, NotHolder, Released};

use crate::support::fixture::{
    Fixture, SHORT, claim, ended, for_short, lock_of, not_holder, only, rival,
};

/// A claim whose lease has just expired.
pub(super) async fn expired_claim(fixture: &Fixture) -> Claim {
    let claim = for_short(&claim());
    fixture.granted(&claim).await;
    fixture.outlast(SHORT).await;
    claim
}

/// Fails unless every operation reports that the claim ended for this reason.
pub(super) async fn assert_ended(fixture: &Fixture, claim: &Claim, reason: NotHolder) {
    let renewed = fixture.renew(claim).await;
    assert_eq!(renewed, not_holder(claim, reason.clone()));
    let released = fixture.release(claim).await;
    assert_eq!(released, Released::NotHolder(reason.clone()));
    let stepped_back = fixture.step_back(claim, 1).await;
    assert_eq!(stepped_back, Released::NotHolder(reason.clone()));
    assert_eq!(fixture.acquire(claim).await, ended(claim, reason));
}

/// How long the expired lease before a grant was held.
pub(super) fn after_expiry_in(answer: Acquired) -> Option<Duration> {
    match answer {
        Acquired::Granted(Granted {
            kind: GrantKind::New,
            leases,
            expired,
            ..
        }) => {
            only(leases);
            (!expired.is_empty()).then(|| only(expired).held_for)
        }
        other => panic!("the lock is free, but: {other:?}"),
    }
}

pub(super) async fn a_lease_that_ran_out_frees_the_lock(fixture: &Fixture) {
    let expired = expired_claim(fixture).await;
    assert_eq!(fixture.state(lock_of(&expired)).await, LockState::Free);
    fixture.granted(&rival(&expired)).await;
}

pub(super) async fn a_lease_that_ran_out_is_expired_until_the_lock_is_granted_again(
    fixture: &Fixture,
) {
    let expired = expired_claim(fixture).await;
    // Twice, because a request must not change the answer.
    assert_ended(fixture, &expired, NotHolder::Expired).await;
    assert_ended(fixture, &expired, NotHolder::Expired).await;
    assert_eq!(fixture.state(lock_of(&expired)).await, LockState::Free);
}

pub(super) async fn a_lease_that_ran_out_is_lost_once_the_lock_was_granted_to_another(
    fixture: &Fixture,
) {
    let lost = expired_claim(fixture).await;
    let successor = rival(&lost);
    fixture.granted(&successor).await;
    assert_ended(fixture, &lost, NotHolder::Lost).await;
    fixture.renewed(&successor, None).await;
}

pub(super) async fn a_lost_claim_stays_lost_when_its_successor_is_gone(fixture: &Fixture) {
    let lost = expired_claim(fixture).await;
    let successor = rival(&lost);
    fixture.granted(&successor).await;
    fixture.freed(&successor).await;
    assert_ended(fixture, &lost, NotHolder::Lost).await;
}

pub(super) async fn a_grant_reports_how_long_an_expired_lease_before_it_was_held(
    fixture: &Fixture,
) {
    let expired = expired_claim(fixture).await;
    fixture.advance(SHORT).await;
    let after_expiry = after_expiry_in(fixture.acquire(&rival(&expired)).await);
    let held_for = after_expiry.expect("the lease before ran out");
    fixture.assert_passed(held_for, SHORT);
    assert!(held_for < SHORT * 2, "what came after the end counts too");
}

pub(super) async fn a_grant_after_a_release_reports_no_expiry(fixture: &Fixture) {
    let first = claim();
    for claim in [&first, &rival(&first), &rival(&first)] {
        assert_eq!(after_expiry_in(fixture.acquire(claim).await), None);
        fixture.freed(claim).await;
    }
}
