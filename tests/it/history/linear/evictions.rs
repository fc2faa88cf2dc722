//! Tests of this judge: what shows an eviction before its answer arrives. Replicas that confirm delay that.

use super::super::record::{Action, Answer, Effect, History, Outage, SECOND};
use super::super::valid::{MS, granted, outage, refused, valid, view};
use super::cases::{GUS, HAL, NOW, READER, evict, two_claims, unanswered};
use super::check;

/// Gus and Hal share a lock, and whichever has the second fence is evicted alone. The answer arrives after `seen`.
fn is_accepted(evicted: usize, other_released: bool, seen: impl Fn(&mut History)) -> bool {
    let other = GUS + HAL - evicted;
    let mut history = valid();
    two_claims(&mut history);
    for (claim, fence) in [(GUS, 100), (HAL, 200)] {
        history.claims[claim].mode = READER;
        history.ask(claim, NOW, 5_000, 5_010, granted(&[("b", fence)], true, 0));
    }
    if other_released {
        unanswered(&mut history, other, Action::Release, 5_050);
    }
    let fence = if evicted == GUS { 100 } else { 200 };
    evict(&mut history, 5_100, 5_300, &[fence]);
    seen(&mut history);
    check(&history).is_empty()
}

/// The other one may have ended before, which nothing but the eviction shows.
#[test]
fn an_eviction_of_one_of_two_may_be_seen_before_its_answer() {
    for evicted in [GUS, HAL] {
        let refused_early = |history: &mut History| {
            let refusal = refused(412, "lease_evicted");
            history.ask(evicted, Action::Renew, 5_150, 5_160, refusal);
        };
        let seen_free = |history: &mut History| {
            history.views.push(view("b", 5_200 * MS, &[], &[]));
        };
        assert!(is_accepted(evicted, true, refused_early), "{evicted}");
        assert!(is_accepted(evicted, true, seen_free), "{evicted}");
        assert!(!is_accepted(evicted, false, refused_early), "{evicted}");
        assert!(!is_accepted(evicted, false, seen_free), "{evicted}");
    }
}

#[test]
fn an_evicted_lease_is_not_seen_again_before_the_answer() {
    let revived = |history: &mut History| {
        let refusal = refused(412, "lease_evicted");
        history.ask(HAL, Action::Renew, 5_150, 5_160, refusal);
        let renewed: Answer = granted(&[("b", 200)], false, 0);
        history.ask(HAL, Action::Renew, 5_170, 5_180, renewed);
    };
    assert!(!is_accepted(HAL, true, revived));
}

/// Gus is granted the lock after a long wait, is evicted at once, and Hal is granted it. One node does not answer meanwhile.
#[test]
fn a_lease_counts_from_the_end_of_the_wait_where_an_eviction_may_mean_a_rest_of_one() {
    let is_explained = |is_evicted: bool| {
        let mut history = valid();
        two_claims(&mut history);
        history.bounds.is_quorum = true;
        let waits = Action::Acquire { wait: 9 * SECOND };
        let after_wait = granted(&[("b", 100)], true, 6_990 * MS);
        history.ask(GUS, waits, 5_000, 12_000, after_wait);
        if is_evicted {
            evict(&mut history, 12_100, 12_200, &[100]);
        }
        history.ask(HAL, NOW, 12_300, 12_310, granted(&[("b", 200)], true, 0));
        history.outages.push(Outage {
            node: Some(1),
            ..outage(Effect::Minority, 12_100, 12_200)
        });
        check(&history).is_empty()
    };
    assert!(is_explained(true));
    assert!(!is_explained(false));
}

/// Shortly before the lease of Gus ends, it is evicted, or what a node has kept of it: Hal is granted the lock meanwhile.
#[test]
fn an_eviction_that_may_mean_a_rest_may_end_the_lease_as_well() {
    let is_explained = |is_evicted: bool| {
        let mut history = valid();
        two_claims(&mut history);
        history.bounds.is_quorum = true;
        // It lasts until 10.01 s.
        history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
        if is_evicted {
            evict(&mut history, 9_900, 10_100, &[100]);
        }
        history.ask(HAL, NOW, 9_930, 9_950, granted(&[("b", 200)], true, 0));
        history.outages.push(Outage {
            node: Some(1),
            ..outage(Effect::Minority, 9_900, 10_100)
        });
        check(&history).is_empty()
    };
    assert!(is_explained(true));
    assert!(!is_explained(false));
}
