//! Laws of fencing tokens: a later grant always has a larger one.

use leasehold::domain::{Attempt, Claim, Fence, LockName};

use super::expiry::expired_claim;
use super::replay::replayed;
use crate::support::bench::{Bench, at_depth, claim, claim_on, fresh_name, lock_of, rival};

async fn fence_of(bench: &Bench, claim: &Claim) -> Fence {
    bench.granted(claim).await.holder.fence
}

/// Names that share a bucket with each other.
pub(crate) fn names_of_one_bucket(count: usize) -> Vec<LockName> {
    let first = fresh_name();
    let others = std::iter::repeat_with(fresh_name).filter(|name| name.bucket() == first.bucket());
    std::iter::once(first.clone())
        .chain(others.take(count - 1))
        .collect()
}

pub(super) async fn every_grant_has_a_larger_fence_than_the_one_before(bench: &Bench) {
    let name = fresh_name();
    let mut last = None;
    for _ in 0..200 {
        let claim = claim_on(&name);
        let fence = fence_of(bench, &claim).await;
        assert!(last < Some(fence), "{fence} after {last:?}");
        last = Some(fence);
        bench.freed(&claim).await;
    }
}

pub(super) async fn a_fence_grows_on_grants_alone(bench: &Bench) {
    let claim = claim();
    let fence = fence_of(bench, &claim).await;
    assert_eq!(replayed(bench, &claim).await.holder.fence, fence);
    let renewal = bench.renewed(&claim, None).await;
    assert_eq!(renewal.lease.holder.fence, fence);
    bench.acquire(&at_depth(&claim, 2)).await;
    bench.step_back(&claim, 1).await;
    assert_eq!(replayed(bench, &claim).await.holder.fence, fence);
}

pub(super) async fn a_fence_grows_after_every_kind_of_ending(bench: &Bench) {
    let expired = expired_claim(bench).await;
    let [released, evicted, withdrawn, last] = [(); 4].map(|()| rival(&expired));
    let mut fences = vec![fence_of(bench, &released).await];
    bench.freed(&released).await;
    fences.push(fence_of(bench, &evicted).await);
    bench.evict(lock_of(&evicted), "").await;
    let attempt = Attempt::random();
    drop(bench.attempt(&withdrawn, attempt).await);
    bench.withdraw(&withdrawn, attempt).await;
    fences.push(fence_of(bench, &withdrawn).await);
    bench.freed(&withdrawn).await;
    fences.push(fence_of(bench, &last).await);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(super) async fn fences_grow_across_the_locks_of_one_bucket(bench: &Bench) {
    let mut last = None;
    for name in names_of_one_bucket(4).iter().cycle().take(40) {
        let claim = claim_on(name);
        let fence = fence_of(bench, &claim).await;
        assert!(last < Some(fence), "{name}: {fence} after {last:?}");
        last = Some(fence);
        bench.freed(&claim).await;
    }
}
