//! Laws of eviction: an operator takes a lock away, and the claim that had it is told why.

use leasehold::domain::{Claim, LockState, NotHolder};

use super::expiry::{assert_told, expired_claim};
use crate::support::bench::{Bench, LONG, claim, fresh_name, owner, rival};

fn evicted(reason: &str) -> NotHolder {
    NotHolder::Evicted {
        reason: reason.to_owned(),
    }
}

pub(super) async fn an_eviction_returns_the_holder_and_frees_the_lock(bench: &Bench) {
    let claim = Claim {
        owner: owner("pod-7"),
        ..claim()
    };
    let lease = bench.granted(&claim).await;
    let holders = bench.evict(&claim.name, "stuck").await;
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert_eq!(holders[0].owner, claim.owner);
    assert_eq!(holders[0].fence, lease.holder.fence);
    bench.assert_left(holders[0].expires_in, LONG);
    assert_eq!(bench.state(&claim.name).await, LockState::Free);
    bench.granted(&rival(&claim)).await;
}

pub(super) async fn an_evicted_claim_is_told_the_reason(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.evict(&claim.name, "stuck").await;
    // Twice, because asking must not change the answer.
    assert_told(bench, &claim, evicted("stuck")).await;
    assert_told(bench, &claim, evicted("stuck")).await;
}

pub(super) async fn an_evicted_claim_stays_evicted_when_the_lock_has_another_holder(bench: &Bench) {
    let first = claim();
    let second = rival(&first);
    bench.granted(&first).await;
    bench.evict(&first.name, "stuck").await;
    bench.granted(&second).await;
    assert_told(bench, &first, evicted("stuck")).await;
    bench.renewed(&second, None).await;
}

pub(super) async fn a_reason_comes_back_as_it_was_given(bench: &Bench) {
    let long = "because ".repeat(100);
    for reason in [
        "",
        " ",
        "released",
        "D\u{fc}sseldorf: \"x\" \n\t\\ %s {}",
        &long,
    ] {
        let claim = claim();
        bench.granted(&claim).await;
        bench.evict(&claim.name, reason).await;
        assert_told(bench, &claim, evicted(reason)).await;
    }
}

pub(super) async fn there_is_nobody_to_evict_from_a_lock_that_is_not_held(bench: &Bench) {
    assert_eq!(bench.evict(&fresh_name(), "").await, Vec::new(), "free");
    let expired = expired_claim(bench).await;
    assert_eq!(bench.evict(&expired.name, "").await, Vec::new(), "expired");
    assert_told(bench, &expired, NotHolder::Expired).await;
    let cooling = Claim {
        min_hold: Some(LONG),
        ..claim()
    };
    bench.granted(&cooling).await;
    bench.freed(&cooling).await;
    assert_eq!(bench.evict(&cooling.name, "").await, Vec::new(), "cooling");
    let state = bench.state(&cooling.name).await;
    assert!(matches!(state, LockState::Cooling { .. }), "{state:?}");
}
