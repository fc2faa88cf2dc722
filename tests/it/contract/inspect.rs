//! Contract tests of inspecting: the state of a lock is public, and reading it changes nothing.

use leasehold::domain::{Claim, LockState};

use super::expiry::expired_claim;
use crate::support::fixture::{
    Fixture, LONG, SHORT, at_depth, claim, fresh_name, lock_of, metadata, owner,
};

pub(super) async fn a_lock_without_claims_is_free(fixture: &Fixture) {
    let name = fresh_name();
    assert_eq!(fixture.state(&name).await, LockState::Free);
    assert_eq!(fixture.state(&name).await, LockState::Free);
}

pub(super) async fn a_held_lock_shows_its_holder(fixture: &Fixture) {
    let claim = Claim {
        owner: owner("pod-7"),
        metadata: metadata(r#"{"a":1}"#),
        ..at_depth(&claim(), 3)
    };
    let mut granted = fixture.granted(&claim).await.holder;
    fixture.advance(SHORT).await;
    let seen = fixture.holder(lock_of(&claim)).await;
    fixture.assert_left(seen.expires_in, LONG - SHORT);
    granted.expires_in = seen.expires_in;
    fixture.assert_same_time(seen.acquired_at, granted.acquired_at);
    fixture.assert_same_time(seen.expires_at, granted.expires_at);
    (granted.acquired_at, granted.expires_at) = (seen.acquired_at, seen.expires_at);
    assert_eq!(seen, granted);
}

pub(super) async fn a_view_follows_renewal_and_depth(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.renewed(&claim, Some(LONG * 10)).await;
    fixture.acquire(&at_depth(&claim, 4)).await;
    let seen = fixture.holder(lock_of(&claim)).await;
    fixture.assert_left(seen.expires_in, LONG * 10);
    assert_eq!(seen.hold_count.get(), 4);
    fixture.step_back(&claim, 2).await;
    assert_eq!(fixture.holder(lock_of(&claim)).await.hold_count.get(), 2);
}

pub(super) async fn a_lock_is_free_again_after_release_expiry_and_eviction(fixture: &Fixture) {
    let [released, evicted] = [claim(), claim()];
    let expired = expired_claim(fixture).await;
    fixture.granted(&released).await;
    fixture.freed(&released).await;
    fixture.granted(&evicted).await;
    fixture.evict(lock_of(&evicted), "").await;
    for claim in [released, expired, evicted] {
        assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
    }
}
