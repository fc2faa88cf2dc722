//! The laws of [`AssignFences`] on every store that may be a node. Those of evictions are in `evictions`.

mod evictions;
mod options;

use std::sync::Arc;

use leasehold::domain::{Acquired, Attempt, Claim, Fence, HoldCount, Lease};
use leasehold::store::assignment::{AssignFences, Assigned, FenceChange};
use leasehold::store::file::FileStore;
use leasehold::store::memory::MemoryStore;
use tempfile::TempDir;

use super::tokens::replayed;
use crate::support::fixture::{
    Fixture, FixtureRedis, SHORT, claim, claim_on, claim_on_all, deadline, for_short, fresh_name,
    in_mode, leases_granted, lock_of, names, permits, reader, rival,
};
use crate::support::stores;
use evictions::{
    a_claim_whose_eviction_was_missed_is_granted_nothing_later,
    a_missed_eviction_ends_its_claim_whatever_its_token_and_no_other,
    a_missed_eviction_keeps_closed_for_longer_what_is_closed_already,
    a_missed_eviction_keeps_the_lock_closed_as_long_as_the_others,
    an_eviction_names_all_of_its_claims_and_how_long_it_closes_the_lock,
    an_expiry_that_was_published_is_not_repeated_by_a_missed_eviction,
    of_many_that_share_a_lock_a_missed_eviction_ends_its_claims,
};
use options::a_lease_gets_what_the_claim_asks_for;

/// A store that may be a node, as the contract tests use a store.
struct NodeFixture {
    node: Arc<dyn AssignFences>,
    fixture: Fixture,
    _directory: Option<TempDir>,
}

impl NodeFixture {
    fn on<S: AssignFences + 'static>(store: Arc<S>, directory: Option<TempDir>) -> Self {
        Self {
            node: Arc::clone(&store) as _,
            fixture: Fixture::on(store as _, None),
            _directory: directory,
        }
    }

    async fn memory() -> Self {
        Self::on(Arc::new(MemoryStore::new(1_000)), None)
    }

    async fn file() -> Self {
        let directory = stores::directory();
        let file = FileStore::open(directory.path(), 1_000).await;
        Self::on(Arc::new(file.expect("it opens")), Some(directory))
    }

    async fn redis() -> Self {
        let redis = FixtureRedis::unused().await;
        let store = redis.node().await;
        Self {
            node: Arc::clone(&store) as _,
            fixture: Fixture::on(store as _, Some(redis)),
            _directory: None,
        }
    }

    async fn assign(&self, claim: &Claim, changes: &[FenceChange]) -> Assigned {
        let assigned = self.node.assign_fences(claim, changes, deadline());
        assigned.await.expect("the store answers")
    }

    async fn fence(&self, claim: &Claim) -> Fence {
        self.fixture.holder(lock_of(claim)).await.fence
    }
}

/// One `#[tokio::test]` per law on one kind of node.
macro_rules! laws {
    ($fixture:ident $options:tt $($law:ident)+) => {$(
        #[tokio::test $options]
        async fn $law() {
            super::$law(&super::NodeFixture::$fixture().await).await;
        }
    )+};
}

macro_rules! on_every_node {
    ($($law:ident)+) => {
        mod memory {
            laws!(memory (start_paused = true) $($law)+);
        }
        mod file {
            laws!(file (start_paused = true) $($law)+);
        }
        mod redis {
            laws!(redis (flavor = "current_thread") $($law)+);
        }
    };
}

on_every_node! {
    a_lease_gets_what_the_claim_asks_for
    a_lease_has_its_decided_token_from_then_on
    every_later_token_of_the_bucket_is_larger_than_a_decided_one
    a_smaller_token_is_decided_without_lowering_the_counter
    a_claim_that_has_ended_is_assigned_nothing
    a_grant_of_another_attempt_is_assigned_nothing
    a_lease_is_assigned_nothing_for_an_attempt_before_the_last_one_until_it_is_renewed
    all_locks_of_a_claim_are_assigned_their_tokens_or_none
    each_lock_of_a_claim_is_asked_for_the_attempt_that_received_it_last
    an_assignment_reports_who_takes_permits_of_a_limit
    a_lease_that_shares_its_lock_gets_no_token_that_was_given_before
    a_missed_eviction_ends_its_claim_whatever_its_token_and_no_other
    a_claim_whose_eviction_was_missed_is_granted_nothing_later
    of_many_that_share_a_lock_a_missed_eviction_ends_its_claims
    an_eviction_names_all_of_its_claims_and_how_long_it_closes_the_lock
    a_missed_eviction_keeps_the_lock_closed_as_long_as_the_others
    a_missed_eviction_keeps_closed_for_longer_what_is_closed_already
    an_expiry_that_was_published_is_not_repeated_by_a_missed_eviction
}

/// A larger token for a lease.
fn raised(lease: &Lease, by: u64) -> FenceChange {
    let proposed = lease.holder.fence;
    FenceChange {
        proposed,
        decided: Fence::new(proposed.get() + by).expect("it is far from the end"),
        is_recorded: false,
        gives_options: false,
        attempt: None,
    }
}

async fn a_lease_has_its_decided_token_from_then_on(node: &NodeFixture) {
    let claim = claim();
    let lease = node.fixture.granted(&claim).await;
    let change = raised(&lease, 5_000);
    for _ in 0..2 {
        assert_eq!(node.assign(&claim, &[change]).await, Assigned::Held(vec![]));
        assert_eq!(node.fence(&claim).await, change.decided);
    }
    let renewal = node.fixture.renewed(&claim, None).await;
    assert_eq!(renewal.lease.holder.fence, change.decided);
    let again = node.fixture.acquire(&claim).await;
    assert_eq!(replayed(again), change.decided);
}

async fn every_later_token_of_the_bucket_is_larger_than_a_decided_one(node: &NodeFixture) {
    let claim = claim();
    let lease = node.fixture.granted(&claim).await;
    let change = raised(&lease, 1_000_000_000_000);
    node.assign(&claim, &[change]).await;
    node.fixture.freed(&claim).await;
    let next = node.fixture.granted(&rival(&claim)).await.holder.fence;
    assert!(next > change.decided, "{next} after {}", change.decided);
}

async fn a_smaller_token_is_decided_without_lowering_the_counter(node: &NodeFixture) {
    let claim = claim();
    let attempt = Attempt::random();
    let granted = node.fixture.attempt(&claim, attempt).await;
    let lease = leases_granted(granted.expect("it answers")).remove(0);
    let proposed = lease.holder.fence;
    let decided = Fence::new(proposed.get() - 50_000).expect("it is in range");
    let of_nobody = FenceChange {
        proposed,
        decided,
        is_recorded: false,
        gives_options: false,
        attempt: None,
    };
    assert_eq!(node.assign(&claim, &[of_nobody]).await, Assigned::NotHeld);
    let change = FenceChange {
        attempt: Some(attempt),
        ..of_nobody
    };
    node.assign(&claim, &[change]).await;
    assert_eq!(node.fence(&claim).await, decided);
    node.fixture.freed(&claim).await;
    assert!(node.fixture.granted(&rival(&claim)).await.holder.fence > proposed);
}

async fn a_claim_that_has_ended_is_assigned_nothing(node: &NodeFixture) {
    let (lapsing, released) = (for_short(&claim()), claim());
    let [lapsed, freed] = [
        node.fixture.granted(&lapsing).await,
        node.fixture.granted(&released).await,
    ];
    node.fixture.freed(&released).await;
    let successor = rival(&released);
    let fence = node.fixture.granted(&successor).await.holder.fence;
    node.fixture.outlast(SHORT).await;
    let next = node.fixture.granted(&rival(&lapsing)).await.holder.fence;
    for (claim, lease, holder) in [(&lapsing, lapsed, next), (&released, freed, fence)] {
        let change = raised(&lease, 1_000_000_000_000);
        assert_eq!(node.assign(claim, &[change]).await, Assigned::NotHeld);
        assert_eq!(node.fence(claim).await, holder);
    }
    node.fixture.evict(lock_of(&successor), "").await;
    let after = node.fixture.granted(&claim_on(lock_of(&successor))).await;
    assert!(after.holder.fence.get() < fence.get() + 1_000_000_000_000);
}

async fn a_grant_of_another_attempt_is_assigned_nothing(node: &NodeFixture) {
    let (claim, attempt) = (claim(), Attempt::random());
    let before = node.node.acquire(&claim, attempt, None, deadline()).await;
    let before = leases_granted(before.expect("it answers"));
    node.fixture.withdraw(&claim, attempt).await;
    let fence = node.fixture.granted(&claim).await.holder.fence;
    let change = raised(&before[0], 1_000_000);
    assert_eq!(node.assign(&claim, &[change]).await, Assigned::NotHeld);
    assert_eq!(node.fence(&claim).await, fence);
}

async fn a_lease_is_assigned_nothing_for_an_attempt_before_the_last_one_until_it_is_renewed(
    node: &NodeFixture,
) {
    for claim in [claim(), reader(&claim())] {
        let attempts = [Attempt::random(), Attempt::random()];
        let granted = node.fixture.attempt(&claim, attempts[0]).await;
        let lease = leases_granted(granted.expect("it answers")).remove(0);
        let replay = node.fixture.attempt(&claim, attempts[1]).await;
        let proposed = replayed(replay.expect("it answers"));
        let for_attempt = |attempt, by| FenceChange {
            attempt: Some(attempt),
            ..raised(&lease, by)
        };
        let [first, last] = [
            for_attempt(attempts[0], 5_000),
            for_attempt(attempts[1], 6_000_000),
        ];
        let recorded = FenceChange {
            is_recorded: true,
            gives_options: false,
            ..first
        };
        for change in [first, recorded] {
            assert_eq!(node.assign(&claim, &[change]).await, Assigned::NotHeld);
            assert_eq!(node.fence(&claim).await, proposed);
        }
        let held = Assigned::Held(vec![]);
        assert_eq!(node.assign(&claim, &[last]).await, held);
        assert_eq!(node.fence(&claim).await, last.decided);
        // No attempt may roll it back any more, and whoever was told its token keeps that.
        node.fixture.renewed(&claim, None).await;
        let by = |by| Fence::new(last.decided.get() + by).expect("it is far from the end");
        let late = |decided| FenceChange {
            proposed: last.decided,
            decided,
            ..recorded
        };
        let lowered = node.assign(&claim, &[late(recorded.decided)]).await;
        assert_eq!(lowered, Assigned::NotHeld);
        assert_eq!(node.assign(&claim, &[late(by(1))]).await, held);
    }
}

async fn all_locks_of_a_claim_are_assigned_their_tokens_or_none(node: &NodeFixture) {
    let locks = [fresh_name(), fresh_name()];
    let claim = claim_on_all(names(&locks));
    let leases = node.fixture.all_granted(&claim).await;
    let changes: Vec<_> = leases.iter().map(|lease| raised(lease, 1_000)).collect();
    node.assign(&claim, &changes).await;
    for (name, change) in claim.names.iter().zip(&changes) {
        assert_eq!(node.fixture.holder(name).await.fence, change.decided);
    }
    let one = Claim {
        names: names(&claim.names[1..]),
        ..claim.clone()
    };
    node.fixture.freed(&one).await;
    let again: Vec<_> = changes
        .iter()
        .map(|change| FenceChange {
            proposed: change.decided,
            decided: Fence::new(change.decided.get() + 1).expect("it is in range"),
            is_recorded: false,
            gives_options: false,
            attempt: None,
        })
        .collect();
    assert_eq!(node.assign(&claim, &again).await, Assigned::NotHeld);
    let first = node.fixture.holder(&claim.names[0]).await.fence;
    assert_eq!(first, changes[0].decided);
}

/// A re-entry may have received one of the locks of a claim alone.
async fn each_lock_of_a_claim_is_asked_for_the_attempt_that_received_it_last(node: &NodeFixture) {
    let locks = [fresh_name(), fresh_name()];
    let claim = claim_on_all(names(&locks));
    let attempts = [Attempt::random(), Attempt::random()];
    let granted = node.fixture.attempt(&claim, attempts[0]).await;
    let leases = leases_granted(granted.expect("it answers"));
    let entered = Claim {
        names: claim
            .names
            .iter()
            .next()
            .expect("there are two")
            .clone()
            .into(),
        hold_count: HoldCount::new(2).expect("it is in range"),
        ..claim.clone()
    };
    let entered = node.fixture.attempt(&entered, attempts[1]).await;
    assert!(matches!(entered, Ok(Acquired::Granted(_))));
    for (last, is_held) in [
        ([attempts[0], attempts[0]], false),
        ([attempts[1], attempts[1]], false),
        ([attempts[1], attempts[0]], true),
    ] {
        let changes = leases.iter().zip(last).map(|(lease, attempt)| FenceChange {
            attempt: Some(attempt),
            ..raised(lease, 1_000)
        });
        let assigned = node.assign(&claim, &changes.collect::<Vec<_>>()).await;
        assert_eq!(assigned == Assigned::Held(vec![]), is_held);
    }
}

async fn an_assignment_reports_who_takes_permits_of_a_limit(node: &NodeFixture) {
    let first = in_mode(&claim(), permits(2, 9));
    let second = Claim {
        mode: permits(3, 9),
        ..rival(&first)
    };
    node.fixture.granted(&second).await;
    let lease = node.fixture.granted(&first).await;
    let Assigned::Held(locks) = node.assign(&first, &[raised(&lease, 1)]).await else {
        panic!("it holds");
    };
    let mut used: Vec<_> = locks[0].iter().map(|used| used.permits).collect();
    used.sort_unstable();
    assert_eq!((locks.len(), used), (1, vec![2, 3]));
}

async fn a_lease_that_shares_its_lock_gets_no_token_that_was_given_before(node: &NodeFixture) {
    let first = reader(&claim());
    let second = Claim {
        mode: first.mode,
        ..rival(&first)
    };
    // Farther ahead than a busy machine takes for the grant that follows, which would get the time as its token.
    let change = raised(&node.fixture.granted(&first).await, 3_600_000_000);
    let attempt = Attempt::random();
    let granted = node.fixture.attempt(&second, attempt).await;
    let lease = leases_granted(granted.expect("it answers")).remove(0);
    node.assign(&first, &[change]).await;
    let given = FenceChange {
        proposed: lease.holder.fence,
        ..change
    };
    let counter = change.decided.get();
    assert_eq!(
        node.assign(&second, &[given]).await,
        Assigned::Taken(vec![counter])
    );
    // It has its own, and may have one that is new, or of which a majority knows that it is its.
    let held = Assigned::Held(vec![]);
    assert_eq!(node.assign(&first, &[change]).await, held);
    let larger = raised(&lease, 7_200_000_000);
    assert_eq!(node.assign(&second, &[larger]).await, held);
    let recorded = FenceChange {
        proposed: larger.decided,
        decided: lease.holder.fence,
        is_recorded: true,
        gives_options: false,
        attempt: Some(attempt),
    };
    assert_eq!(node.assign(&second, &[recorded]).await, held);
}
