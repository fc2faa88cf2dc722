//! Contract tests of re-entry: an acquire can increase the hold count, and a release can reduce it.

use leasehold::domain::{Acquired, Attempt, Claim, GrantKind, Granted, Lease, LockState, Released};

use super::replay::replayed;
use crate::support::fixture::{
    Fixture, LONG, SHORT, assert_held, at_depth, claim, lock_of, only, rival,
};

async fn reentered(fixture: &Fixture, claim: &Claim) -> Lease {
    match fixture.acquire(claim).await {
        Acquired::Granted(Granted {
            kind: GrantKind::Reentered,
            leases,
            ..
        }) => only(leases),
        other => panic!("the claim goes deeper, but: {other:?}"),
    }
}

async fn stepped_back(fixture: &Fixture, claim: &Claim, depth: u64) -> Lease {
    match fixture.step_back(claim, depth).await {
        Released::SteppedBack(lease) => lease,
        other => panic!("the claim holds on, but: {other:?}"),
    }
}

pub(super) async fn a_larger_hold_count_holds_at_exactly_that_depth(fixture: &Fixture) {
    let claim = claim();
    let granted = fixture.granted(&claim).await;
    for depth in [2, 7, 1_000] {
        let lease = reentered(fixture, &at_depth(&claim, depth)).await;
        assert_eq!(u64::from(lease.holder.hold_count.get()), depth);
        assert_eq!(lease.holder.fence, granted.holder.fence);
    }
}

pub(super) async fn a_re_entry_leaves_the_time_of_the_lease_alone(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    let lease = reentered(fixture, &at_depth(&claim, 2)).await;
    fixture.assert_left(lease.holder.expires_in, LONG - SHORT);
}

pub(super) async fn a_repeated_re_entry_is_a_replay(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    reentered(fixture, &at_depth(&claim, 2)).await;
    let lease = replayed(fixture, &at_depth(&claim, 2)).await;
    assert_eq!(lease.holder.hold_count.get(), 2);
}

/// The first answer was lost, so its client has had none. The repeat changes nothing, even after a step back.
pub(super) async fn a_re_entry_repeated_by_its_own_attempt_is_a_re_entry(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    let (deeper, attempt) = (at_depth(&claim, 3), Attempt::random());
    for depth in [3, 3, 2] {
        if depth == 2 {
            stepped_back(fixture, &claim, 2).await;
        }
        let answer = fixture.attempt(&deeper, attempt).await;
        let Ok(Acquired::Granted(granted)) = answer else {
            panic!("the claim holds, but: {answer:?}");
        };
        assert_eq!(granted.kind, GrantKind::Reentered);
        assert_eq!(only(granted.leases).holder.hold_count.get(), depth);
    }
    replayed(fixture, &at_depth(&claim, 2)).await;
}

pub(super) async fn a_claim_may_start_deep(fixture: &Fixture) {
    let lease = fixture.granted(&at_depth(&claim(), 5)).await;
    assert_eq!(lease.holder.hold_count.get(), 5);
}

pub(super) async fn a_release_to_a_depth_steps_back_to_it(fixture: &Fixture) {
    let claim = at_depth(&claim(), 5);
    fixture.granted(&claim).await;
    for depth in [3, 1] {
        let lease = stepped_back(fixture, &claim, depth).await;
        assert_eq!(u64::from(lease.holder.hold_count.get()), depth);
    }
    let answer = fixture.acquire(&rival(&claim)).await;
    assert_held(&answer);
}

pub(super) async fn a_repeated_step_back_answers_the_same(fixture: &Fixture) {
    let claim = at_depth(&claim(), 5);
    fixture.granted(&claim).await;
    let first = stepped_back(fixture, &claim, 2).await;
    let second = stepped_back(fixture, &claim, 2).await;
    assert_eq!(second.holder.hold_count, first.holder.hold_count);
    assert_eq!(second.holder.fence, first.holder.fence);
}

pub(super) async fn a_step_back_to_more_depth_changes_nothing(fixture: &Fixture) {
    let claim = at_depth(&claim(), 2);
    fixture.granted(&claim).await;
    let lease = stepped_back(fixture, &claim, 9).await;
    assert_eq!(lease.holder.hold_count.get(), 2);
}

pub(super) async fn a_step_back_leaves_the_time_of_the_lease_alone(fixture: &Fixture) {
    let claim = at_depth(&claim(), 2);
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    let lease = stepped_back(fixture, &claim, 1).await;
    fixture.assert_left(lease.holder.expires_in, LONG - SHORT);
}

pub(super) async fn a_release_without_a_depth_frees_from_any_depth(fixture: &Fixture) {
    let claim = at_depth(&claim(), 1_000);
    fixture.granted(&claim).await;
    fixture.freed(&claim).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
}
