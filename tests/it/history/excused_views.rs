//! What the judge of an order accepts of views in which a claim is seen that has ended, or that nobody was told of.

use super::judge::{Rule, judge};
use super::linear;
use super::record::{Action, Answer, Effect, Micros, Mode, Outage, SECOND, View};
use super::valid::{MS, claim, granted, outage, refused, valid, view};

/// The claim that views show.
fn is_rejected_with(is_quorum: bool, outages: &[Outage], views: &[(Micros, u64)]) -> bool {
    let mut history = valid();
    history.bounds.is_quorum = is_quorum;
    history.outages.extend_from_slice(outages);
    history.claims.push(claim("gus", &["b"], Mode::Exclusive));
    let waits = Action::Acquire { wait: SECOND };
    let answer = granted(&[("b", 100)], true, 500 * MS);
    history.ask(6, waits, 8_000, 8_500, answer);
    for (seen, fence) in views {
        let holders: &[_] = match fence {
            0 => &[],
            _ => &[("gus", *fence)],
        };
        history.views.push(view("b", seen * MS, holders, &[]));
    }
    !linear::check(&history).is_empty()
}

/// Nodes show it before a majority has recorded its token.
#[test]
fn a_view_of_a_claim_is_doubted_until_its_grant_is_reported() {
    for views in [[(8_100, 120), (8_200, 100)], [(8_200, 100), (8_400, 0)]] {
        assert!(is_rejected_with(false, &[], &views));
        assert!(!is_rejected_with(true, &[], &views));
    }
    assert!(is_rejected_with(true, &[], &[(8_700, 100), (8_800, 0)]));
    assert!(is_rejected_with(true, &[], &[(7_900, 100)]), "nobody asked");
}

#[test]
fn a_view_with_a_token_of_nobody_is_accepted_while_a_node_of_a_quorum_is_silent() {
    let silent = Outage {
        node: Some(1),
        ..outage(Effect::Minority, 8_600, 8_900)
    };
    assert!(is_rejected_with(true, &[], &[(8_700, 120)]));
    assert!(!is_rejected_with(true, &[silent], &[(8_700, 120)]));
}

/// A node that answers has a rest of it, for longer if another process had to do with the claim. A third node is silent.
#[test]
fn a_view_of_a_released_claim_is_accepted_while_a_node_is_silent_that_would_outvote_a_rest() {
    let is_rejected = |released_at: usize, silent_from: Micros, seen: Micros| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        history.outages.push(Outage {
            node: Some(1),
            ..outage(Effect::Minority, silent_from, silent_from + 300)
        });
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let now = Action::Acquire { wait: 0 };
        history.ask(6, now, 8_000, 8_010, granted(&[("b", 100)], true, 0));
        let released = history.ask(6, Action::Release, 8_500, 8_510, Answer::Freed);
        history.requests[released].process = released_at;
        history
            .views
            .push(view("b", seen * MS, &[("gus", 100)], &[]));
        !linear::check(&history).is_empty()
    };
    assert!(!is_rejected(1, 11_000, 11_100));
    assert!(is_rejected(1, 10_400, 11_100), "all nodes answered");
    assert!(!is_rejected(0, 8_700, 8_800), "a node has not followed");
    assert!(is_rejected(0, 11_000, 11_100), "it was one process alone");
    assert!(is_rejected(1, 16_000, 16_100), "its lease is over");
}

/// Gus holds the lock, and Hal, who has released it at another process, held it before. Each view shows one of them.
#[test]
fn a_view_without_the_holder_is_accepted_while_a_node_is_silent_and_another_has_a_token_or_a_rest()
{
    let is_lost = |is_silent: bool, shown: &[(&str, u64)]| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        if is_silent {
            history.outages.push(Outage {
                node: Some(1),
                ..outage(Effect::Minority, 8_600, 8_900)
            });
        }
        for owner in ["gus", "hal"] {
            history.claims.push(claim(owner, &["b"], Mode::Exclusive));
        }
        let now = Action::Acquire { wait: 0 };
        history.ask(7, now, 7_000, 7_010, granted(&[("b", 90)], true, 0));
        let released = history.ask(7, Action::Release, 7_500, 7_510, Answer::Freed);
        history.requests[released].process = 0;
        history.ask(6, now, 8_000, 8_010, granted(&[("b", 100)], true, 0));
        history.views.push(view("b", 8_700 * MS, shown, &[]));
        let (found, _) = judge(&history);
        found.iter().any(|it| it.rule == Rule::EarlyLoss)
    };
    for shown in [("gus", 120), ("hal", 90)] {
        assert!(!is_lost(true, &[shown]), "{shown:?}");
        assert!(is_lost(false, &[shown]), "{shown:?}");
    }
    assert!(is_lost(true, &[]), "a node that answers has the lease");
    assert!(!is_lost(false, &[("gus", 100)]));
}

/// Gus was granted the lock, which Ann still holds, and was not told so. Ben has released it, and was seen before.
#[test]
fn a_view_is_accepted_of_a_former_primary_and_of_the_process_that_it_answers() {
    let is_rejected = |is_confirmed: bool, process: usize, seen: Micros, holder: (&str, u64)| {
        let mut history = valid();
        history.bounds.is_confirmed = is_confirmed;
        for (from, until) in [(1_600, 1_700), (5_000, 6_000)] {
            history.outages.push(Outage {
                process: Some(2),
                ..outage(Effect::FormerPrimary, from, until)
            });
        }
        history.claims.push(claim("gus", &["a"], Mode::Exclusive));
        let now = Action::Acquire { wait: 0 };
        let fails = refused(503, "store_unavailable");
        history.ask(6, now, 1_300, 1_650, fails);
        let seen = view("a", seen * MS, &[holder], &[]);
        history.views.push(View { process, ..seen });
        !linear::check(&history).is_empty()
    };
    for (seen, holder) in [(1_650, ("gus", 150)), (5_500, ("ben", 200))] {
        assert!(!is_rejected(false, 2, seen, holder));
        assert!(is_rejected(false, 0, seen, holder), "another process");
        assert!(is_rejected(false, 2, seen - 600, holder), "too early");
        assert!(is_rejected(false, 2, seen + 600, holder), "too late");
    }
    assert!(!is_rejected(true, 2, 1_650, ("gus", 150)));
    assert!(is_rejected(true, 2, 5_500, ("ben", 200)), "it was told");
}
