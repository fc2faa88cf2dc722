//! Laws of expiry: what a lease that ran out leaves behind, and what its claim is told.

use std::time::Duration;

use leasehold::domain::{Acquired, Claim, LockState, NotHolder, Released};

use crate::support::bench::{
    Bench, SHORT, claim, ended, for_short, lock_of, not_holder, only, rival,
};

/// A claim whose lease has just run out.
pub(super) async fn expired_claim(bench: &Bench) -> Claim {
    let claim = for_short(&claim());
    bench.granted(&claim).await;
    bench.outlast(SHORT).await;
    claim
}

/// Asks in every way what became of a claim.
pub(super) async fn assert_told(bench: &Bench, claim: &Claim, reason: NotHolder) {
    let renewed = bench.renew(claim).await;
    assert_eq!(renewed, not_holder(claim, reason.clone()));
    let released = bench.release(claim).await;
    assert_eq!(released, Released::NotHolder(reason.clone()));
    let stepped_back = bench.step_back(claim, 1).await;
    assert_eq!(stepped_back, Released::NotHolder(reason.clone()));
    assert_eq!(bench.acquire(claim).await, ended(claim, reason));
}

/// How long the lease was held that had run out before a grant.
pub(super) fn after_expiry_in(answer: Acquired) -> Option<Duration> {
    match answer {
        Acquired::Granted(grants) => only(grants).after_expiry,
        other => panic!("the lock is free, but: {other:?}"),
    }
}

pub(super) async fn a_lease_that_ran_out_frees_the_lock(bench: &Bench) {
    let expired = expired_claim(bench).await;
    assert_eq!(bench.state(lock_of(&expired)).await, LockState::Free);
    bench.granted(&rival(&expired)).await;
}

pub(super) async fn a_lease_that_ran_out_is_expired_while_nobody_came_after(bench: &Bench) {
    let expired = expired_claim(bench).await;
    // Twice, because asking must not change the answer.
    assert_told(bench, &expired, NotHolder::Expired).await;
    assert_told(bench, &expired, NotHolder::Expired).await;
    assert_eq!(bench.state(lock_of(&expired)).await, LockState::Free);
}

pub(super) async fn a_lease_that_ran_out_is_lost_once_the_lock_was_granted_to_another(
    bench: &Bench,
) {
    let lost = expired_claim(bench).await;
    let successor = rival(&lost);
    bench.granted(&successor).await;
    assert_told(bench, &lost, NotHolder::Lost).await;
    bench.renewed(&successor, None).await;
}

pub(super) async fn a_lost_claim_stays_lost_when_its_successor_is_gone(bench: &Bench) {
    let lost = expired_claim(bench).await;
    let successor = rival(&lost);
    bench.granted(&successor).await;
    bench.freed(&successor).await;
    assert_told(bench, &lost, NotHolder::Lost).await;
}

pub(super) async fn a_grant_tells_how_long_an_expired_lease_before_it_was_held(bench: &Bench) {
    let expired = expired_claim(bench).await;
    bench.advance(SHORT).await;
    let after_expiry = after_expiry_in(bench.acquire(&rival(&expired)).await);
    let held_for = after_expiry.expect("the lease before ran out");
    bench.assert_passed(held_for, SHORT);
    assert!(held_for < SHORT * 2, "what came after the end counts too");
}

pub(super) async fn a_grant_after_a_release_tells_of_no_expiry(bench: &Bench) {
    let first = claim();
    for claim in [&first, &rival(&first), &rival(&first)] {
        assert_eq!(after_expiry_in(bench.acquire(claim).await), None);
        bench.freed(claim).await;
    }
}
