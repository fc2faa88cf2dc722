//! Tests of what the judge excuses: it accepts what is promised by nobody, and rejects the same thing a little farther on.

use super::judge::{Rule, judge};
use super::linear;
use super::record::{Action, Answer, Effect, End, History, Micros, Mode, Outage, SECOND};
use super::valid::{MS, claim, granted, outage, refused, valid, view};

fn breaks(rule: Rule, history: &History) -> bool {
    let (found, _) = judge(history);
    found.iter().any(|violation| violation.rule == rule)
}

#[test]
fn a_short_wait_that_ends_without_an_answer_is_accepted_only_of_what_may_be_slow() {
    let is_rejected = |is_quorum: bool, stalled: &[Outage]| {
        let mut history = valid();
        history.bounds.is_quorum = is_quorum;
        history.outages.extend_from_slice(stalled);
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let fails = refused(503, "store_unavailable");
        let wait = 100 * MS;
        history.ask(6, Action::Acquire { wait }, 8_000, 8_110, fails);
        breaks(Rule::WrongFailure, &history)
    };
    assert!(is_rejected(false, &[]));
    assert!(is_rejected(false, &[outage(Effect::Stall, 6_000, 6_400)]));
    assert!(!is_rejected(false, &[outage(Effect::Stall, 8_050, 8_400)]));
    assert!(!is_rejected(true, &[]));
}

/// Its lease may have been granted by a request without an answer, and end when the next one is answered.
#[test]
fn a_failure_is_accepted_for_a_moment_after_the_end_of_a_lease_and_not_later() {
    let is_rejected = |sent: Micros| {
        let mut history = valid();
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let now = Action::Acquire { wait: 0 };
        let open = history.ask(6, now, 8_000, 8_010, Answer::Queued);
        history.requests[open].arrivals.clear();
        history.requests[open].end = Some((8_010 * MS, End::Broken));
        let fails = refused(503, "store_unavailable");
        history.ask(6, now, sent, sent + 10, fails);
        breaks(Rule::WrongFailure, &history)
    };
    assert!(is_rejected(12_000), "a lease lasts five seconds");
    assert!(!is_rejected(13_100));
    assert!(is_rejected(16_000));
}

#[test]
fn two_fences_of_a_claim_are_accepted_only_of_requests_beside_each_other() {
    let is_rejected = |sent: Micros, takes: Micros| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let now = Action::Acquire { wait: 0 };
        history.ask(6, now, 8_000, 8_010, granted(&[("b", 100)], true, 0));
        let answer = granted(&[("b", 200)], true, 0);
        let again = history.ask(6, now, sent, sent + takes, answer);
        history.requests[again].process = 1;
        breaks(Rule::Resurrection, &history)
    };
    assert!(!is_rejected(8_005, 10));
    assert!(!is_rejected(11_000, 150), "a node was late");
    assert!(is_rejected(11_000, 10));
}

/// A majority answers while one node is away or slow.
#[test]
fn a_failure_is_accepted_while_several_nodes_of_a_quorum_fail_and_not_while_one_does() {
    let is_rejected = |nodes: &[usize]| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        history.outages.extend(nodes.iter().map(|node| Outage {
            node: Some(*node),
            ..outage(Effect::Minority, 7_000, 8_050)
        }));
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let fails = refused(503, "store_unavailable");
        let now = Action::Acquire { wait: 0 };
        history.ask(6, now, 8_000, 8_010, fails);
        breaks(Rule::WrongFailure, &history)
    };
    assert!(is_rejected(&[]));
    assert!(is_rejected(&[1]));
    assert!(!is_rejected(&[1, 2]));
}

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
