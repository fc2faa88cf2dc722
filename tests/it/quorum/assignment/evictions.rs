//! The laws of evictions that a node has missed.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::domain::{
    Acquired, Claim, ClaimDigest, EventKind, LockState, Mode, NotHolder, Refused,
};
use leasehold::store::assignment::MissedEviction;
use leasehold::store::state::ClaimKeys;
use tokio::time::Instant;

use super::NodeFixture;
use crate::support::fixture::{
    LONG, READ, SHORT, claim, deadlines, for_short, in_mode, lock_of, permits, reader, rival,
};

fn digest(claim: &Claim) -> ClaimDigest {
    ClaimKeys::of(&claim.names, claim.token)[0].claim
}

/// Tells the node of the eviction of these claims so long ago, since when the others keep the lock closed for as long as the
/// first one wanted.
async fn evicted_later(node: &NodeFixture, claims: &[&Claim], ago: Duration) {
    let missed = MissedEviction {
        claims: claims.iter().map(|claim| digest(claim)).collect(),
        at: Instant::now().checked_sub(ago).expect("a moment ago"),
        closed_for: match claims[0].mode {
            Mode::Exclusive => claims[0].lock_delay.unwrap_or_default(),
            Mode::Shared(_) => Duration::ZERO,
        },
        reason: "stuck".to_owned(),
    };
    let evicting = node
        .node
        .evict_missed(lock_of(claims[0]), &missed, deadlines());
    evicting.await.expect("the store answers");
}

async fn is_refused_as_evicted(node: &NodeFixture, claim: &Claim) {
    let acquired = node.fixture.acquire(claim).await;
    let Acquired::Refused(Refused::Ended(ended)) = acquired else {
        panic!("{acquired:?}");
    };
    let reason = "stuck".to_owned();
    assert_eq!(ended.reason, NotHolder::Evicted { reason });
}

/// For how long the lock of the claim is closed.
async fn free_in(node: &NodeFixture, claim: &Claim) -> Duration {
    match node.fixture.state(lock_of(claim)).await {
        LockState::Cooling { free_in } => free_in,
        state => panic!("it must be closed, but: {state:?}"),
    }
}

/// The token that a node gives to a late grant may be larger than all that the majority has evicted.
pub(super) async fn a_missed_eviction_ends_its_claim_whatever_its_token_and_no_other(
    node: &NodeFixture,
) {
    for mode in [Mode::Exclusive, READ] {
        let old = in_mode(&claim(), mode);
        node.fixture.granted(&old).await;
        evicted_later(node, &[&old], Duration::ZERO).await;
        is_refused_as_evicted(node, &old).await;
        let new = in_mode(&rival(&old), mode);
        let fence = node.fixture.granted(&new).await.holder.fence;
        evicted_later(node, &[&old], Duration::ZERO).await;
        assert_eq!(node.fixture.holder(lock_of(&old)).await.fence, fence);
        node.fixture.freed(&new).await;
        node.fixture
            .granted(&in_mode(&rival(&old), Mode::Exclusive))
            .await;
    }
}

pub(super) async fn of_many_that_share_a_lock_a_missed_eviction_ends_its_claims(
    node: &NodeFixture,
) {
    let first = reader(&claim());
    let old: Vec<_> = (0..250).map(|_| reader(&first)).collect();
    for claim in &old {
        node.fixture.granted(claim).await;
    }
    let [kept, old @ ..] = &old[..] else {
        panic!("there are many");
    };
    evicted_later(node, &old.iter().collect::<Vec<_>>(), Duration::ZERO).await;
    let only = node.fixture.holder(lock_of(kept)).await;
    assert_eq!(only.claim, digest(kept));
    is_refused_as_evicted(node, &old[248]).await;
}

/// An answer lists fewer holders.
pub(super) async fn an_eviction_names_all_of_its_claims_and_how_long_it_closes_the_lock(
    node: &NodeFixture,
) {
    let first = reader(&claim());
    let readers: Vec<_> = (0..250).map(|_| reader(&first)).collect();
    let alone = Claim {
        lock_delay: Some(LONG),
        ..claim()
    };
    for (claims, closed_for) in [(readers, Duration::ZERO), (vec![alone], LONG)] {
        for claim in &claims {
            node.fixture.granted(claim).await;
        }
        let evicting = node
            .node
            .evict(lock_of(&claims[0]), "stuck", deadlines())
            .await;
        let evicted = evicting.expect("the store answers");
        let named: BTreeSet<_> = evicted.claims.into_iter().collect();
        assert_eq!(named, claims.iter().map(digest).collect());
        assert_eq!(evicted.closed_for, closed_for);
    }
}

pub(super) async fn a_claim_whose_eviction_was_missed_is_granted_nothing_later(node: &NodeFixture) {
    for mode in [Mode::Exclusive, READ] {
        let old = in_mode(&claim(), mode);
        evicted_later(node, &[&old], Duration::ZERO).await;
        is_refused_as_evicted(node, &old).await;
        node.fixture.granted(&in_mode(&rival(&old), mode)).await;
    }
}

/// Its own `lock_delay` would begin later than that of the others. One who shares the lock keeps closed what it took.
pub(super) async fn a_missed_eviction_keeps_the_lock_closed_as_long_as_the_others(
    node: &NodeFixture,
) {
    let (alone, shared) = (Mode::Exclusive, permits(1, 1));
    for (mode, has_it) in [(alone, true), (alone, false), (shared, true)] {
        for ago in [Duration::ZERO, LONG / 2, LONG] {
            let old = Claim {
                lock_delay: Some(LONG),
                ..in_mode(&claim(), mode)
            };
            if has_it {
                node.fixture.granted(&old).await;
            }
            evicted_later(node, &[&old], ago).await;
            if ago == LONG {
                node.fixture.granted(&in_mode(&rival(&old), mode)).await;
            } else {
                let (left, until) = (free_in(node, &old).await, LONG - ago);
                assert!(left <= until && left > until / 2, "{left:?} of {until:?}");
            }
        }
    }
}

/// The others may have granted the claim while this node still kept the lock closed for the holder before.
pub(super) async fn a_missed_eviction_keeps_closed_for_longer_what_is_closed_already(
    node: &NodeFixture,
) {
    for is_released in [true, false] {
        let before = Claim {
            min_hold: is_released.then_some(LONG / 2),
            lock_delay: Some(LONG / 2),
            ..for_short(&claim())
        };
        node.fixture.granted(&before).await;
        match is_released {
            true => drop(node.fixture.freed(&before).await),
            false => node.fixture.outlast(SHORT).await,
        }
        let old = Claim {
            lock_delay: Some(LONG),
            ..rival(&before)
        };
        evicted_later(node, &[&old], Duration::ZERO).await;
        let left = free_in(node, &old).await;
        assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    }
}

/// Whether the lease was one of an evicted claim or that of another.
pub(super) async fn an_expiry_that_was_published_is_not_repeated_by_a_missed_eviction(
    node: &NodeFixture,
) {
    node.fixture.listens().await;
    node.fixture.store().set_event_delivery(true).await;
    for is_evicted in [true, false] {
        let expired = for_short(&claim());
        node.fixture.granted(&expired).await;
        node.fixture.outlast(SHORT).await;
        node.fixture.state(lock_of(&expired)).await;
        let evicted = match is_evicted {
            true => expired.clone(),
            false => rival(&expired),
        };
        let old = Claim {
            lock_delay: Some(LONG),
            ..evicted
        };
        evicted_later(node, &[&old], Duration::ZERO).await;
        let events = node.fixture.received().await;
        let kinds = events.kinds_of(lock_of(&expired));
        assert_eq!(kinds, [EventKind::Acquired, EventKind::Expired]);
    }
}
