//! Contract tests of eviction: an operator evicts the holders of a lock, and their claims report the reason.

use leasehold::domain::{Acquired, Claim, LockState, NotHolder, Refused};

use super::expiry::{assert_ended, expired_claim};
use super::permits::taking;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, claim, for_short, fresh_name, in_mode, lock_of, owner, reader,
    rival,
};

fn evicted(reason: &str) -> NotHolder {
    NotHolder::Evicted {
        reason: reason.to_owned(),
    }
}

pub(super) async fn an_eviction_returns_the_holder_and_frees_the_lock(fixture: &Fixture) {
    let claim = Claim {
        owner: owner("pod-7"),
        ..claim()
    };
    let lease = fixture.granted(&claim).await;
    let holders = fixture.evict(lock_of(&claim), "stuck").await;
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(holders[0].owner, claim.owner);
    assert_eq!(holders[0].fence, lease.holder.fence);
    fixture.assert_left(holders[0].expires_in, LONG);
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
    fixture.granted(&rival(&claim)).await;
}

pub(super) async fn an_evicted_claim_gets_the_reason(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.evict(lock_of(&claim), "stuck").await;
    // Twice, because a request must not change the answer.
    assert_ended(fixture, &claim, evicted("stuck")).await;
    assert_ended(fixture, &claim, evicted("stuck")).await;
}

pub(super) async fn an_evicted_claim_stays_evicted_when_the_lock_has_another_holder(
    fixture: &Fixture,
) {
    let first = claim();
    let second = rival(&first);
    fixture.granted(&first).await;
    fixture.evict(lock_of(&first), "stuck").await;
    fixture.granted(&second).await;
    assert_ended(fixture, &first, evicted("stuck")).await;
    fixture.renewed(&second, None).await;
}

pub(super) async fn a_reason_is_returned_unchanged(fixture: &Fixture) {
    let long = "because ".repeat(100);
    for reason in [
        "",
        " ",
        "released",
        "D\u{fc}sseldorf: \"x\" \n\t\\ %s {}",
        &long,
    ] {
        let claim = claim();
        fixture.granted(&claim).await;
        fixture.evict(lock_of(&claim), reason).await;
        assert_ended(fixture, &claim, evicted(reason)).await;
    }
}

pub(super) async fn an_eviction_of_a_lock_that_is_not_held_evicts_none(fixture: &Fixture) {
    assert_eq!(fixture.evict(&fresh_name(), "").await, Vec::new(), "free");
    let expired = expired_claim(fixture).await;
    assert_eq!(
        fixture.evict(lock_of(&expired), "").await,
        Vec::new(),
        "expired"
    );
    assert_ended(fixture, &expired, NotHolder::Expired).await;
    let cooling = Claim {
        min_hold: Some(LONG),
        ..claim()
    };
    fixture.granted(&cooling).await;
    fixture.freed(&cooling).await;
    assert_eq!(
        fixture.evict(lock_of(&cooling), "").await,
        Vec::new(),
        "cooling"
    );
    let state = fixture.state(lock_of(&cooling)).await;
    assert!(matches!(state, LockState::Cooling { .. }), "{state:?}");
}

/// Although the expiry was not found yet: what the lease keeps taken has no holder.
pub(super) async fn an_eviction_does_not_open_what_a_shared_lease_that_ran_out_keeps_closed(
    fixture: &Fixture,
) {
    let over = |claim: &Claim| Claim {
        min_hold: Some(LONG),
        ..for_short(claim)
    };
    let reading = over(&in_mode(&claim(), READ));
    let lock = claim();
    let (two, one) = (over(&taking(&lock, 2, 3)), taking(&lock, 1, 3));
    for claim in [&reading, &two, &one] {
        fixture.granted(claim).await;
    }
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.evict(lock_of(&reading), "").await, Vec::new());
    let state = fixture.state(lock_of(&reading)).await;
    assert!(matches!(state, LockState::Cooling { .. }), "{state:?}");
    assert_ended(fixture, &reading, NotHolder::Expired).await;
    assert_eq!(fixture.evict(lock_of(&one), "").await.len(), 1);
    let refused = fixture.acquire(&taking(&lock, 2, 3)).await;
    assert!(
        matches!(refused, Acquired::Refused(Refused::Blocked(_))),
        "{refused:?}"
    );
    fixture.granted(&taking(&lock, 1, 3)).await;
}

pub(super) async fn an_eviction_is_notified_unless_it_evicts_none(fixture: &Fixture) {
    let [alone, reading, not_held] = [claim(), in_mode(&claim(), READ), claim()];
    for holding in [&alone, &reading, &reader(&reading)] {
        fixture.granted(holding).await;
    }
    for evicted in [&alone, &reading, &not_held] {
        fixture.evict(lock_of(evicted), "").await;
    }
    let is_notified = |claim| fixture.listener().evictions_of(lock_of(claim)) > 0;
    assert!(is_notified(&alone) && is_notified(&reading) && !is_notified(&not_held));
}
