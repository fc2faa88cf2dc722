//! Contract tests of `min_hold`, `max_hold` and `lock_delay`: how long a lock stays closed, and can be held.

use std::time::Duration;

use leasehold::domain::{Claim, ConflictKind, LockName, LockState, NotHolder};

use super::expiry::assert_ended;
use crate::support::fixture::{Fixture, LONG, SHORT, blocker, claim, ended, lock_of, rival, ttl};

/// Fails unless the lock stays closed for `left`.
async fn assert_cooling(fixture: &Fixture, name: &LockName, asking: &Claim, left: Duration) {
    match blocker(fixture.acquire(asking).await) {
        ConflictKind::Cooling { free_in } => fixture.assert_left(free_in, left),
        other => panic!("the lock is cooling, but: {other:?}"),
    }
    match fixture.state(name).await {
        LockState::Cooling { free_in } => fixture.assert_left(free_in, left),
        other => panic!("the lock is cooling, but: {other:?}"),
    }
}

pub(super) async fn a_lock_released_before_min_hold_is_cooling_until_then(fixture: &Fixture) {
    let claim = Claim {
        min_hold: Some(SHORT * 2),
        ..claim()
    };
    let next = rival(&claim);
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    fixture.freed(&claim).await;
    assert_cooling(fixture, lock_of(&claim), &next, SHORT).await;
    fixture.outlast(SHORT).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
    fixture.granted(&next).await;
}

pub(super) async fn a_claim_released_before_min_hold_has_ended(fixture: &Fixture) {
    let claim = Claim {
        min_hold: Some(LONG),
        ..claim()
    };
    fixture.granted(&claim).await;
    fixture.freed(&claim).await;
    let ended = ended(&claim, NotHolder::Released);
    assert_eq!(fixture.acquire(&claim).await, ended);
}

pub(super) async fn a_lock_released_after_min_hold_is_free_at_once(fixture: &Fixture) {
    let claim = Claim {
        min_hold: Some(SHORT),
        ..claim()
    };
    fixture.granted(&claim).await;
    fixture.outlast(SHORT).await;
    fixture.freed(&claim).await;
    fixture.granted(&rival(&claim)).await;
}

pub(super) async fn a_lease_that_ran_out_before_min_hold_leaves_the_lock_cooling(
    fixture: &Fixture,
) {
    let claim = Claim {
        ttl: ttl(SHORT),
        min_hold: Some(SHORT * 4),
        ..claim()
    };
    let next = rival(&claim);
    fixture.granted(&claim).await;
    fixture.advance(SHORT * 2).await;
    assert_cooling(fixture, lock_of(&claim), &next, SHORT * 2).await;
    assert_ended(fixture, &claim, NotHolder::Expired).await;
    fixture.outlast(SHORT * 2).await;
    fixture.granted(&next).await;
}

pub(super) async fn an_expired_lease_with_a_lock_delay_leaves_the_lock_cooling(fixture: &Fixture) {
    let claim = Claim {
        ttl: ttl(SHORT),
        lock_delay: Some(SHORT * 3),
        ..claim()
    };
    let next = rival(&claim);
    fixture.granted(&claim).await;
    fixture.advance(SHORT * 2).await;
    assert_cooling(fixture, lock_of(&claim), &next, SHORT * 2).await;
    assert_ended(fixture, &claim, NotHolder::Expired).await;
    fixture.outlast(SHORT * 2).await;
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
    fixture.granted(&next).await;
    assert_ended(fixture, &claim, NotHolder::Lost).await;
}

pub(super) async fn an_evicted_lease_with_a_lock_delay_leaves_the_lock_cooling(fixture: &Fixture) {
    let claim = Claim {
        lock_delay: Some(SHORT * 2),
        ..claim()
    };
    let next = rival(&claim);
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    fixture.evict(lock_of(&claim), "").await;
    assert_cooling(fixture, lock_of(&claim), &next, SHORT * 2).await;
    fixture.outlast(SHORT * 2).await;
    fixture.granted(&next).await;
}

pub(super) async fn a_release_ignores_the_lock_delay(fixture: &Fixture) {
    let claim = Claim {
        lock_delay: Some(LONG),
        ..claim()
    };
    fixture.granted(&claim).await;
    fixture.freed(&claim).await;
    fixture.granted(&rival(&claim)).await;
}

pub(super) async fn max_hold_caps_the_grant(fixture: &Fixture) {
    let claim = Claim {
        max_hold: Some(LONG / 2),
        ..claim()
    };
    let lease = fixture.granted(&claim).await;
    fixture.assert_left(lease.holder.expires_in, LONG / 2);
    assert_eq!(lease.ttl, claim.ttl, "the TTL is still the claim's own");
}

pub(super) async fn max_hold_caps_every_renewal(fixture: &Fixture) {
    let claim = Claim {
        max_hold: Some(LONG),
        ..claim()
    };
    fixture.granted(&claim).await;
    for passed in [SHORT, SHORT * 2] {
        fixture.advance(SHORT).await;
        let renewal = fixture.renewed(&claim, Some(LONG * 2)).await;
        fixture.assert_left(renewal.lease.holder.expires_in, LONG - passed);
    }
}

pub(super) async fn a_lease_at_its_max_hold_ends_however_often_it_is_renewed(fixture: &Fixture) {
    let claim = Claim {
        max_hold: Some(SHORT * 4),
        ..claim()
    };
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    fixture.renewed(&claim, Some(LONG)).await;
    fixture.outlast(SHORT * 3).await;
    assert_ended(fixture, &claim, NotHolder::Expired).await;
    fixture.granted(&rival(&claim)).await;
}
