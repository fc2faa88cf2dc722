//! Laws of renewal: a holder makes its lease last longer, and nobody else can.

use leasehold::domain::{Claim, LockState, NotHolder};

use crate::support::bench::{
    Bench, LONG, SHORT, assert_held, at_depth, claim, for_short, lock_of, metadata, not_holder,
    owner, rival, ttl,
};

pub(super) async fn a_renewal_counts_the_ttl_anew(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.advance(SHORT).await;
    let before = bench.holder(lock_of(&claim)).await;
    let renewal = bench.renewed(&claim, None).await;
    bench.assert_left(renewal.lease.holder.expires_in, LONG);
    assert!(renewal.lease.holder.expires_at > before.expires_at);
}

pub(super) async fn a_renewal_tells_how_much_was_left(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.advance(SHORT).await;
    let renewal = bench.renewed(&claim, None).await;
    bench.assert_left(renewal.slack, LONG - SHORT);
}

pub(super) async fn the_ttl_of_a_renewal_becomes_the_claims_own(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    let first = bench.renewed(&claim, Some(LONG * 10)).await;
    assert_eq!(first.lease.ttl, ttl(LONG * 10));
    let second = bench.renewed(&claim, None).await;
    assert_eq!(second.lease.ttl, ttl(LONG * 10));
    bench.assert_left(second.lease.holder.expires_in, LONG * 10);
}

pub(super) async fn a_renewal_may_shorten_the_lease(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.renewed(&claim, Some(SHORT)).await;
    bench.outlast(SHORT).await;
    bench.granted(&rival(&claim)).await;
}

pub(super) async fn a_renewed_lease_outlives_its_first_end(bench: &Bench) {
    let claim = for_short(&claim());
    bench.granted(&claim).await;
    bench.renewed(&claim, Some(LONG)).await;
    bench.outlast(SHORT).await;
    let answer = bench.acquire(&rival(&claim)).await;
    assert_held(&answer);
    bench.freed(&claim).await;
}

pub(super) async fn a_renewal_keeps_everything_but_the_end(bench: &Bench) {
    let claim = Claim {
        owner: owner("pod-7"),
        metadata: metadata(r#"{"a":1}"#),
        ..at_depth(&claim(), 3)
    };
    let mut granted = bench.granted(&claim).await;
    bench.advance(SHORT).await;
    let renewed = bench.renewed(&claim, None).await.lease;
    granted.holder.expires_at = renewed.holder.expires_at;
    granted.holder.expires_in = renewed.holder.expires_in;
    assert_eq!(renewed, granted);
}

pub(super) async fn a_foreign_token_renews_nothing(bench: &Bench) {
    let claim = claim();
    let granted = bench.granted(&claim).await;
    let answer = bench.renew_for(&rival(&claim), Some(LONG * 10)).await;
    assert_eq!(answer, not_holder(&claim, NotHolder::Unknown));
    let holder = bench.holder(lock_of(&claim)).await;
    assert_eq!(holder.expires_at, granted.holder.expires_at);
}

pub(super) async fn a_renewal_never_creates_a_lease(bench: &Bench) {
    let claim = claim();
    let answer = bench.renew(&claim).await;
    assert_eq!(answer, not_holder(&claim, NotHolder::Unknown));
    assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
    // And the token is as good as new.
    bench.granted(&claim).await;
}
