//! Laws of inspecting: everybody may see what a lock is doing, and seeing changes nothing.

use leasehold::domain::{Claim, LockState};

use super::expiry::expired_claim;
use crate::support::bench::{
    Bench, LONG, SHORT, at_depth, claim, fresh_name, lock_of, metadata, owner,
};

pub(super) async fn a_lock_that_nobody_asked_for_is_free(bench: &Bench) {
    let name = fresh_name();
    assert_eq!(bench.state(&name).await, LockState::Free);
    assert_eq!(bench.state(&name).await, LockState::Free);
}

pub(super) async fn a_held_lock_shows_its_holder(bench: &Bench) {
    let claim = Claim {
        owner: owner("pod-7"),
        metadata: metadata(r#"{"a":1}"#),
        ..at_depth(&claim(), 3)
    };
    let mut granted = bench.granted(&claim).await.holder;
    bench.advance(SHORT).await;
    let seen = bench.holder(lock_of(&claim)).await;
    bench.assert_left(seen.expires_in, LONG - SHORT);
    granted.expires_in = seen.expires_in;
    assert_eq!(seen, granted);
}

pub(super) async fn a_view_follows_renewal_and_depth(bench: &Bench) {
    let claim = claim();
    bench.granted(&claim).await;
    bench.renewed(&claim, Some(LONG * 10)).await;
    bench.acquire(&at_depth(&claim, 4)).await;
    let seen = bench.holder(lock_of(&claim)).await;
    bench.assert_left(seen.expires_in, LONG * 10);
    assert_eq!(seen.hold_count.get(), 4);
    bench.step_back(&claim, 2).await;
    assert_eq!(bench.holder(lock_of(&claim)).await.hold_count.get(), 2);
}

pub(super) async fn a_lock_is_free_again_after_release_expiry_and_eviction(bench: &Bench) {
    let [released, evicted] = [claim(), claim()];
    let expired = expired_claim(bench).await;
    bench.granted(&released).await;
    bench.freed(&released).await;
    bench.granted(&evicted).await;
    bench.evict(lock_of(&evicted), "").await;
    for claim in [released, expired, evicted] {
        assert_eq!(bench.state(lock_of(&claim)).await, LockState::Free);
    }
}
