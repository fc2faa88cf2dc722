//! Contract tests of young leases whose grant may be about to roll them back, because they are not counted: they are left
//! as they are.

use std::time::Duration;

use leasehold::domain::{
    Acquired, Attempt, Claim, Lease, LockState, Refused, Released, RenewOptions, Renewed,
    RollbackRight, StepBack, UNCOUNTED_MAX,
};

use super::taking_over::{assert_free, assert_holds, granted, of_every_kind, taken_over};
use crate::support::fixture::{
    Fixture, LONG, at_depth, claim, claim_on, claim_on_all, deadline, fresh_name, hold_count,
    lock_of, names, ttl,
};

/// Renews for longer than the lease lasts.
async fn renewed(fixture: &Fixture, claim: &Claim) -> Vec<Lease> {
    let change = RenewOptions {
        ttl: Some(ttl(LONG * 2)),
        rollback_right: RollbackRight::UnlessYoung,
        ..RenewOptions::default()
    };
    let store = fixture.store();
    let renewed = store.renew(&claim.names, claim.token, change, deadline());
    match renewed.await.expect("the store answers") {
        Renewed::Extended(renewals) => renewals.into_iter().map(|it| it.lease).collect(),
        other => panic!("it holds, but: {other:?}"),
    }
}

fn is_extended(lease: &Lease) -> bool {
    lease.holder.expires_in > LONG + Duration::from_secs(1)
}

pub(super) async fn a_renewal_leaves_an_undecided_lease_as_it_is(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        let attempt = granted(fixture, &claim).await;
        let leases = renewed(fixture, &claim).await;
        assert!(!leases.iter().any(is_extended), "{leases:?}");
        fixture.withdraw(&claim, attempt).await;
        assert_free(fixture, &claim).await;
    }
}

/// Whether the store says of a further attempt that the grant of its claim is being rolled back.
async fn is_closed(fixture: &Fixture, claim: &Claim) -> bool {
    let answer = fixture.attempt(claim, Attempt::random()).await;
    matches!(answer, Ok(Acquired::Refused(Refused::TooManyLeases { .. })))
}

/// Requests that overlap would pass it on until it is old. The first one may have been undone for another reason.
pub(super) async fn a_lease_that_was_refused_passes_to_no_further_attempt(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        for is_first_refused in [true, false] {
            let first = granted(fixture, &claim).await;
            let second = taken_over(fixture, &claim).await;
            let third = taken_over(fixture, &claim).await;
            match is_first_refused {
                true => fixture.refuse(&claim, first).await,
                false => fixture.withdraw(&claim, first).await,
            }
            fixture.refuse(&claim, second).await;
            assert!(is_closed(fixture, &claim).await, "{claim:?}");
            // The answer to the first rollback may have been lost.
            fixture.refuse(&claim, second).await;
            assert_holds(fixture, &claim).await;
            fixture.refuse(&claim, third).await;
            assert_free(fixture, &claim).await;
            let again = granted(fixture, &claim).await;
            fixture.withdraw(&claim, again).await;
        }
    }
}

/// Another principal may have been told of it.
pub(super) async fn a_refused_attempt_leaves_the_lease_to_those_that_had_it(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        granted(fixture, &claim).await;
        let refused = taken_over(fixture, &claim).await;
        fixture.refuse(&claim, refused).await;
        assert_holds(fixture, &claim).await;
        taken_over(fixture, &claim).await;
    }
}

pub(super) async fn a_lease_that_was_refused_passes_on_once_it_is_final(fixture: &Fixture) {
    for claim in of_every_kind(None) {
        let first = granted(fixture, &claim).await;
        let second = taken_over(fixture, &claim).await;
        fixture.refuse(&claim, first).await;
        // A late repeat of its own request.
        let again = fixture.attempt(&claim, second).await;
        assert!(again.is_ok_and(|it| it.kind().is_some()));
        fixture.renew(&claim).await;
        taken_over(fixture, &claim).await;
        // The lease can be rolled back again, but not for the refusal before the renewal.
        taken_over(fixture, &claim).await;
    }
}

/// A foreign name in a renewal, too, that happens to have the same token.
pub(super) async fn an_undecided_lease_changes_nothing_for_others_of_its_renewal(
    fixture: &Fixture,
) {
    let (first, second) = (fresh_name(), fresh_name());
    let both = claim_on_all(names(&[first.clone(), second.clone()]));
    let on = |name| Claim {
        token: both.token,
        ..claim_on(name)
    };
    let (decided, undecided) = (on(&first), on(&second));
    let attempts = [
        granted(fixture, &decided).await,
        granted(fixture, &undecided).await,
    ];
    fixture.renew(&decided).await;
    for lease in renewed(fixture, &both).await {
        let is_decided = lease.holder.claim == both.token.digest(&first);
        assert_eq!(is_extended(&lease), is_decided, "{lease:?}");
    }
    fixture.withdraw(&decided, attempts[0]).await;
    fixture.withdraw(&undecided, attempts[1]).await;
    assert_holds(fixture, &decided).await;
    assert_free(fixture, &undecided).await;
}

pub(super) async fn a_lease_that_is_no_longer_young_is_renewed_for_good(fixture: &Fixture) {
    let (claim, replayed) = (claim(), claim());
    let attempts = [
        granted(fixture, &claim).await,
        granted(fixture, &replayed).await,
    ];
    let last = taken_over(fixture, &replayed).await;
    fixture.outlast(UNCOUNTED_MAX).await;
    for claim in [&claim, &replayed] {
        let leases = renewed(fixture, claim).await;
        assert!(leases.iter().all(is_extended), "{leases:?}");
    }
    fixture.withdraw(&claim, attempts[0]).await;
    fixture.withdraw(&replayed, last).await;
    assert_holds(fixture, &claim).await;
    assert_holds(fixture, &replayed).await;
}

async fn stepped_back(fixture: &Fixture, claim: &Claim, rollback_right: RollbackRight) -> Attempt {
    let attempt = granted(fixture, claim).await;
    let step_back = StepBack {
        hold_count: hold_count(1),
        rollback_right,
    };
    let store = fixture.store();
    let released = store.release(&claim.names, claim.token, Some(step_back), deadline());
    let released = released.await.expect("the store answers");
    let Released::SteppedBack(lease) = &released[0] else {
        panic!("it holds, but: {released:?}");
    };
    assert_eq!(lease.holder.hold_count, hold_count(1));
    attempt
}

pub(super) async fn a_step_back_leaves_an_undecided_lease_to_its_grant(fixture: &Fixture) {
    for claim in [claim(), at_depth(&claim(), 2)] {
        for right in [RollbackRight::UnlessYoung, RollbackRight::AsBefore] {
            let claim = Claim {
                names: fresh_name().into(),
                ..claim.clone()
            };
            let attempt = stepped_back(fixture, &claim, right).await;
            fixture.withdraw(&claim, attempt).await;
            assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
        }
        let attempt = stepped_back(fixture, &claim, RollbackRight::Never).await;
        fixture.withdraw(&claim, attempt).await;
        assert_holds(fixture, &claim).await;
    }
}
