//! Contract tests of renewal: a holder can renew its lease, and no other claim can.

use leasehold::domain::{Claim, LockState, NotHolder};

use crate::support::fixture::{
    Fixture, LONG, SHORT, assert_held, at_depth, claim, for_short, lock_of, metadata, not_holder,
    owner, rival, ttl,
};

pub(super) async fn a_renewal_restarts_the_ttl(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    let before = fixture.holder(lock_of(&claim)).await;
    let renewal = fixture.renewed(&claim, None).await;
    fixture.assert_left(renewal.lease.holder.expires_in, LONG);
    assert!(renewal.lease.holder.expires_at > before.expires_at);
}

pub(super) async fn a_renewal_reports_how_much_was_left(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    let renewal = fixture.renewed(&claim, None).await;
    fixture.assert_left(renewal.remaining_before, LONG - SHORT);
}

pub(super) async fn the_ttl_of_a_renewal_becomes_the_claims_own(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    let first = fixture.renewed(&claim, Some(LONG * 10)).await;
    assert_eq!(first.lease.ttl, ttl(LONG * 10));
    let second = fixture.renewed(&claim, None).await;
    assert_eq!(second.lease.ttl, ttl(LONG * 10));
    fixture.assert_left(second.lease.holder.expires_in, LONG * 10);
}

pub(super) async fn a_renewal_may_shorten_the_lease(fixture: &Fixture) {
    let claim = claim();
    fixture.granted(&claim).await;
    fixture.renewed(&claim, Some(SHORT)).await;
    fixture.outlast(SHORT).await;
    fixture.granted(&rival(&claim)).await;
}

pub(super) async fn a_renewed_lease_outlives_its_first_end(fixture: &Fixture) {
    let claim = for_short(&claim());
    fixture.granted(&claim).await;
    fixture.renewed(&claim, Some(LONG)).await;
    fixture.outlast(SHORT).await;
    let answer = fixture.acquire(&rival(&claim)).await;
    assert_held(&answer);
    fixture.freed(&claim).await;
}

pub(super) async fn a_renewal_keeps_everything_but_the_end(fixture: &Fixture) {
    let claim = Claim {
        owner: owner("pod-7"),
        metadata: metadata(r#"{"a":1}"#),
        ..at_depth(&claim(), 3)
    };
    let mut granted = fixture.granted(&claim).await;
    fixture.advance(SHORT).await;
    let renewed = fixture.renewed(&claim, None).await.lease;
    fixture.assert_same_time(renewed.holder.acquired_at, granted.holder.acquired_at);
    granted.holder.acquired_at = renewed.holder.acquired_at;
    granted.holder.expires_at = renewed.holder.expires_at;
    granted.holder.expires_in = renewed.holder.expires_in;
    assert_eq!(renewed, granted);
}

pub(super) async fn a_foreign_token_renews_nothing(fixture: &Fixture) {
    let claim = claim();
    let granted = fixture.granted(&claim).await;
    let answer = fixture.renew_for(&rival(&claim), Some(LONG * 10)).await;
    assert_eq!(answer, not_holder(&claim, NotHolder::Unknown));
    let holder = fixture.holder(lock_of(&claim)).await;
    fixture.assert_same_time(holder.expires_at, granted.holder.expires_at);
}

pub(super) async fn a_renewal_never_creates_a_lease(fixture: &Fixture) {
    let claim = claim();
    let answer = fixture.renew(&claim).await;
    assert_eq!(answer, not_holder(&claim, NotHolder::Unknown));
    assert_eq!(fixture.state(lock_of(&claim)).await, LockState::Free);
    // And the token can be used like a new one.
    fixture.granted(&claim).await;
}
