//! A node that misses a change of a lease has its former hold count or TTL: the next renewal tells the newest, and brings
//! the node to it.

use std::time::Duration;

use leasehold::domain::{Claim, Released, Renewed};

use super::nodes::{Process, has_granted};
use crate::support::fixture::{
    LONG, READ, SHORT, at_depth, claim, claim_on_all, fresh_name, hold_count, lock_of, names, only,
};

/// Whether all nodes answer after a change that one of them has missed, before another one is away.
const ALL_ANSWER: bool = true;

/// Every node misses a change; then it is in the majority that renews, which another node is not.
async fn after_missing(
    has_all_answers: bool,
    change: impl AsyncFn(&Process, &Claim),
    check: impl AsyncFn(&Process, &Claim),
) {
    for missing in 0..3 {
        for away in (0..3).filter(|away| *away != missing) {
            let process = Process::alone();
            let claim = claim();
            process.fixture.granted(&at_depth(&claim, 3)).await;
            process.settled().await;
            process.without(&[missing]);
            change(&process, &claim).await;
            process.settled().await;
            process.without(&[]);
            if has_all_answers {
                check(&process, &claim).await;
                process.settled().await;
            }
            process.without(&[away]);
            check(&process, &claim).await;
        }
    }
}

async fn has_depth(process: &Process, claim: &Claim, depth: u64) {
    let renewal = process.fixture.renewed(claim, None).await;
    assert_eq!(renewal.lease.holder.hold_count, hold_count(depth));
    let shown = only(process.fixture.holders(lock_of(claim)).await);
    assert_eq!(shown.hold_count, hold_count(depth));
}

#[tokio::test(start_paused = true)]
async fn a_step_back_that_a_node_has_missed_is_told_and_made_up_for() {
    let step_back = async |process: &Process, claim: &Claim| {
        let stepped_back = process.fixture.step_back(claim, 2).await;
        assert!(matches!(stepped_back, Released::SteppedBack(_)));
    };
    after_missing(ALL_ANSWER, step_back, async |process, claim| {
        has_depth(process, claim, 2).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_re_entry_that_a_node_has_missed_is_told_and_made_up_for() {
    let enter = async |process: &Process, claim: &Claim| {
        assert!(has_granted(process.acquire(&at_depth(claim, 4)).await));
    };
    for has_all_answers in [ALL_ANSWER, !ALL_ANSWER] {
        after_missing(has_all_answers, enter, async |process, claim| {
            has_depth(process, claim, 4).await;
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_a_node_has_missed_is_told_and_made_up_for() {
    let ttls = [LONG / 2, LONG * 2].into_iter();
    for (ttl, has_all_answers) in ttls.flat_map(|ttl| [(ttl, ALL_ANSWER), (ttl, !ALL_ANSWER)]) {
        let set = async |process: &Process, claim: &Claim| {
            process.fixture.advance(SHORT).await;
            process.fixture.renewed(claim, Some(ttl)).await;
        };
        after_missing(has_all_answers, set, async |process, claim| {
            process.fixture.advance(Duration::from_millis(50)).await;
            let lease = process.fixture.renewed(claim, None).await.lease;
            assert_eq!(lease.ttl.get(), ttl);
            assert!(lease.holder.expires_in <= ttl);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_to_shared_that_a_node_has_missed_is_made_up_for() {
    for missing in 0..3 {
        let process = Process::alone();
        let claim = claim();
        process.fixture.granted(&claim).await;
        process.settled().await;
        process.without(&[missing]);
        let shared = process.fixture.renew_in_mode(&claim, READ).await;
        assert!(matches!(shared, Renewed::Extended(_)), "{shared:?}");
        process.settled().await;
        process.without(&[]);
        process.fixture.renewed(&claim, None).await;
        process.settled().await;
        let holder = only(process.holders_at(missing, lock_of(&claim)).await.listed);
        assert_eq!(holder.mode, READ);
    }
}

/// A re-entry may be of one lock of a claim alone.
#[tokio::test(start_paused = true)]
async fn each_lock_of_a_claim_is_brought_to_its_own_hold_count() {
    for missing in 0..3 {
        let process = Process::alone();
        let claim = claim_on_all(names(&[fresh_name(), fresh_name()]));
        process.fixture.all_granted(&claim).await;
        process.settled().await;
        process.without(&[missing]);
        for (name, depth) in claim.names.iter().zip([3, 5]) {
            let one = Claim {
                names: name.clone().into(),
                ..at_depth(&claim, depth)
            };
            assert!(has_granted(process.acquire(&one).await));
            process.settled().await;
        }
        process.without(&[]);
        let renewed = process.fixture.renew(&claim).await;
        assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
        process.settled().await;
        for (name, depth) in claim.names.iter().zip([3, 5]) {
            let holder = only(process.holders_at(missing, name).await.listed);
            assert_eq!(holder.hold_count, hold_count(depth), "{name}");
        }
    }
}
