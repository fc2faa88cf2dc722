//! The laws of evictions that a node has missed.

use leasehold::domain::{Acquired, Claim, Fence, LockName, Mode, NotHolder, Refused};
use leasehold::store::assignment::MissedEviction;
use leasehold::store::state::ClaimKeys;

use super::NodeFixture;
use crate::support::fixture::{
    LONG, READ, claim, deadlines, in_mode, lock_of, permits, reader, rival,
};

/// The tokens of the holders that lose the lock by an eviction of these claims, and of holders until this token.
async fn evicted_later(
    node: &NodeFixture,
    claims: &[&Claim],
    name: &LockName,
    last: Option<Fence>,
) -> Vec<Fence> {
    let digest = |claim: &&Claim| ClaimKeys::of(&claim.names, claim.token)[0].claim;
    let missed = MissedEviction {
        claims: claims.iter().map(digest).collect(),
        last,
        reason: "stuck".to_owned(),
    };
    let evicted = node.node.evict_missed(name, &missed, deadlines());
    let evicted = evicted.await.expect("the store answers");
    assert!(evicted.is_complete);
    let listed = evicted.holders.listed.iter();
    listed.map(|holder| holder.fence).collect()
}

async fn evicted_until(node: &NodeFixture, claim: &Claim, last: Fence) -> Vec<Fence> {
    evicted_later(node, &[], lock_of(claim), Some(last)).await
}

pub(super) async fn an_eviction_until_a_token_ends_no_later_lease(node: &NodeFixture) {
    let first = claim();
    let second = rival(&first);
    let before = node.fixture.granted(&first).await.holder.fence;
    node.fixture.freed(&first).await;
    let fence = node.fixture.granted(&second).await.holder.fence;
    assert_eq!(evicted_until(node, &second, before).await, []);
    node.fixture.renewed(&second, None).await;
    assert_eq!(evicted_until(node, &second, fence).await, [fence]);
    node.fixture.granted(&rival(&second)).await;
}

pub(super) async fn an_eviction_until_a_token_ends_no_later_lease_that_shares_the_lock(
    node: &NodeFixture,
) {
    let first = reader(&claim());
    let second = reader(&first);
    let before = node.fixture.granted(&first).await.holder.fence;
    let fence = node.fixture.granted(&second).await.holder.fence;
    assert!(before < fence);
    assert_eq!(evicted_until(node, &first, before).await, [before]);
    assert_eq!(node.fixture.holder(lock_of(&second)).await.fence, fence);
    node.fixture.renewed(&second, None).await;
    assert_eq!(evicted_until(node, &first, fence).await, [fence]);
    node.fixture.granted(&rival(&first)).await;
}

/// The token that a node gives to a late grant may be larger than all that the majority has evicted.
pub(super) async fn a_missed_eviction_ends_its_claim_whatever_its_token_and_no_other(
    node: &NodeFixture,
) {
    for mode in [Mode::Exclusive, READ] {
        let old = in_mode(&claim(), mode);
        let fence = node.fixture.granted(&old).await.holder.fence;
        let name = lock_of(&old);
        assert_eq!(evicted_later(node, &[&old], name, None).await, [fence]);
        let new = in_mode(&rival(&old), mode);
        let fence = node.fixture.granted(&new).await.holder.fence;
        assert_eq!(evicted_later(node, &[&old], name, None).await, []);
        assert_eq!(node.fixture.holder(name).await.fence, fence);
    }
}

pub(super) async fn a_claim_whose_eviction_was_missed_is_granted_nothing_later(node: &NodeFixture) {
    for mode in [Mode::Exclusive, READ] {
        let old = in_mode(&claim(), mode);
        let name = lock_of(&old);
        assert_eq!(evicted_later(node, &[&old], name, None).await, []);
        let acquired = node.fixture.acquire(&old).await;
        let Acquired::Refused(Refused::Ended(ended)) = acquired else {
            panic!("{acquired:?}");
        };
        let reason = "stuck".to_owned();
        assert_eq!(ended.reason, NotHolder::Evicted { reason });
        node.fixture.granted(&in_mode(&rival(&old), mode)).await;
    }
}

/// The others have kept the lock closed since the eviction.
pub(super) async fn a_missed_eviction_starts_no_lock_delay(node: &NodeFixture) {
    for mode in [Mode::Exclusive, permits(1, 1)] {
        let old = Claim {
            lock_delay: Some(LONG),
            ..in_mode(&claim(), mode)
        };
        node.fixture.granted(&old).await;
        let name = lock_of(&old);
        assert_eq!(evicted_later(node, &[&old], name, None).await.len(), 1);
        let new = in_mode(&rival(&old), mode);
        node.fixture.granted(&new).await;
    }
}
