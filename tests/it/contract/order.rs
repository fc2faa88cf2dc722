//! Contract tests of fencing tokens: a later grant always has a larger one.

use leasehold::domain::{Attempt, Claim, Fence, LockName};

use super::expiry::expired_claim;
use super::replay::replayed;
use crate::support::fixture::{Fixture, at_depth, claim, claim_on, fresh_name, lock_of, rival};

async fn fence_of(fixture: &Fixture, claim: &Claim) -> Fence {
    fixture.granted(claim).await.holder.fence
}

/// Names that share one bucket.
pub(crate) fn names_of_one_bucket(count: usize) -> Vec<LockName> {
    let first = fresh_name();
    let others = std::iter::repeat_with(fresh_name).filter(|name| name.bucket() == first.bucket());
    std::iter::once(first.clone())
        .chain(others.take(count - 1))
        .collect()
}

pub(super) async fn every_grant_has_a_larger_fence_than_the_one_before(fixture: &Fixture) {
    let name = fresh_name();
    let mut last = None;
    for _ in 0..200 {
        let claim = claim_on(&name);
        let fence = fence_of(fixture, &claim).await;
        assert!(last < Some(fence), "{fence} after {last:?}");
        last = Some(fence);
        fixture.freed(&claim).await;
    }
}

pub(super) async fn a_fence_grows_on_grants_alone(fixture: &Fixture) {
    let claim = claim();
    let fence = fence_of(fixture, &claim).await;
    assert_eq!(replayed(fixture, &claim).await.holder.fence, fence);
    let renewal = fixture.renewed(&claim, None).await;
    assert_eq!(renewal.lease.holder.fence, fence);
    fixture.acquire(&at_depth(&claim, 2)).await;
    fixture.step_back(&claim, 1).await;
    assert_eq!(replayed(fixture, &claim).await.holder.fence, fence);
}

pub(super) async fn a_fence_grows_after_every_kind_of_ending(fixture: &Fixture) {
    let expired = expired_claim(fixture).await;
    let [released, evicted, withdrawn, last] = [(); 4].map(|()| rival(&expired));
    let mut fences = vec![fence_of(fixture, &released).await];
    fixture.freed(&released).await;
    fences.push(fence_of(fixture, &evicted).await);
    fixture.evict(lock_of(&evicted), "").await;
    let attempt = Attempt::random();
    drop(fixture.attempt(&withdrawn, attempt).await);
    fixture.withdraw(&withdrawn, attempt).await;
    fences.push(fence_of(fixture, &withdrawn).await);
    fixture.freed(&withdrawn).await;
    fences.push(fence_of(fixture, &last).await);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(super) async fn fences_grow_across_the_locks_of_one_bucket(fixture: &Fixture) {
    let mut last = None;
    for name in names_of_one_bucket(4).iter().cycle().take(40) {
        let claim = claim_on(name);
        let fence = fence_of(fixture, &claim).await;
        assert!(last < Some(fence), "{name}: {fence} after {last:?}");
        last = Some(fence);
        fixture.freed(&claim).await;
    }
}
