//! Tests of what the judge excuses: it accepts what is promised by nobody, and rejects the same thing a little farther on.

use super::judge::{Rule, judge};
use super::linear;
use super::record::{Action, Answer, Claim, Effect, End, History, Micros, Mode, Outage, SECOND};
use super::valid::{MS, claim, granted, outage, refused, valid, view};

fn breaks(rule: Rule, history: &History) -> bool {
    let (found, _) = judge(history);
    found.iter().any(|violation| violation.rule == rule)
}

#[test]
fn a_short_wait_that_ends_without_an_answer_is_accepted_only_of_what_may_be_slow() {
    let is_rejected = |is_quorum: bool, wait: Micros, slow: &[Outage]| {
        let mut history = valid();
        history.bounds.is_quorum = is_quorum;
        history.bounds.late = 2 * SECOND;
        history.outages.extend_from_slice(slow);
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let fails = refused(503, "store_unavailable");
        let acquire = Action::Acquire { wait: wait * MS };
        history.ask(6, acquire, 8_000, 8_010 + wait, fails);
        breaks(Rule::WrongFailure, &history)
    };
    assert!(is_rejected(false, 100, &[]));
    let before = outage(Effect::Stall, 6_000, 6_400);
    assert!(is_rejected(false, 100, &[before]));
    let meanwhile = outage(Effect::Stall, 8_050, 8_400);
    assert!(!is_rejected(false, 100, &[meanwhile]));
    assert!(!is_rejected(true, 100, &[]));
    assert!(is_rejected(true, 1_000, &[]), "no node is slow");
    let silent = |from| Outage {
        node: Some(1),
        ..outage(Effect::Minority, from, from + 300)
    };
    assert!(!is_rejected(true, 1_000, &[silent(8_500)]));
    assert!(is_rejected(true, 1_000, &[silent(7_500)]));
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

/// It is granted at 8.00 s for five seconds, by an answer that takes 10 ms.
#[test]
fn a_failure_is_accepted_if_the_lease_cannot_be_reported_any_more_and_not_before() {
    let judged = |action: Action, is_capped: bool, sent: Micros, at: Micros| {
        let mut history = valid();
        let gus = claim("gus", &["b"], Mode::Exclusive);
        history.claims.push(Claim { is_capped, ..gus });
        let now = Action::Acquire { wait: 0 };
        history.ask(6, now, 8_000, 8_010, granted(&[("b", 100)], true, 0));
        let fails = refused(503, "store_unavailable");
        history.ask(6, action, sent, at, fails);
        breaks(Rule::WrongFailure, &history)
    };
    assert!(!judged(Action::StepBack, false, 12_990, 12_999));
    assert!(judged(Action::StepBack, false, 12_970, 12_980));
    assert!(judged(Action::Release, false, 12_990, 12_999));
    let is_rejected =
        |is_capped: bool, sent: Micros, at: Micros| judged(Action::Renew, is_capped, sent, at);
    assert!(!is_rejected(true, 12_990, 12_999));
    assert!(!is_rejected(true, 12_900, 12_950), "it took 50 ms");
    assert!(is_rejected(true, 12_900, 12_948));
    assert!(is_rejected(true, 12_970, 12_980));
    assert!(is_rejected(false, 12_990, 13_000), "it makes it longer");
    assert!(!is_rejected(false, 8_001, 13_000), "it took five seconds");
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
    assert!(!is_rejected(8_060, 10), "a node records the token");
    assert!(is_rejected(9_010, 10), "a second after the first answer");
    assert!(!is_rejected(9_010, 150), "a node was late");
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

/// It is granted by two of three nodes, because a contender has the third one. One of the two loses its data before the
/// third one has the lease.
#[test]
fn a_failure_is_accepted_while_too_few_nodes_may_have_the_lease_and_only_if_it_is_needed() {
    struct Case {
        loses_node: bool,
        is_granted: bool,
        is_contended: bool,
        is_renewed: bool,
        action: Action,
        sent: Micros,
    }
    const NOW: Action = Action::Acquire { wait: 0 };
    const FEW: Case = Case {
        loses_node: true,
        is_granted: true,
        is_contended: true,
        is_renewed: false,
        action: Action::Renew,
        sent: 9_000,
    };
    let judged = |case: Case| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        history.outages.extend(case.loses_node.then(|| Outage {
            node: Some(1),
            ..outage(Effect::MinorityLoss, 8_700, 8_800)
        }));
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        history.claims.push(claim("hal", &["b"], Mode::Exclusive));
        if case.is_contended {
            history.ask(7, NOW, 7_995, 8_015, refused(423, "lock_held"));
        }
        if case.is_granted {
            history.ask(6, NOW, 8_000, 8_010, granted(&[("b", 100)], true, 0));
        }
        if case.is_renewed {
            let renewed = granted(&[("b", 100)], false, 0);
            history.ask(6, Action::Renew, 8_100, 8_110, renewed);
        }
        let fails = refused(503, "store_unavailable");
        history.ask(6, case.action, case.sent, case.sent + 10, fails);
        let (_, counts) = judge(&history);
        let is_rejected = breaks(Rule::WrongFailure, &history);
        (is_rejected, counts.excused.failures_at_few_nodes)
    };
    let (rejected, accepted) = ((true, 0), (false, 1));
    assert_eq!(judged(FEW), accepted);
    for action in [Action::StepDown, NOW] {
        assert_eq!(judged(Case { action, ..FEW }), accepted, "{action:?}");
    }
    let action = Action::Release;
    assert_eq!(judged(Case { action, ..FEW }), rejected);
    let sent = 12_500;
    assert_eq!(judged(Case { sent, ..FEW }), rejected, "later");
    let is_renewed = true;
    assert_eq!(judged(Case { is_renewed, ..FEW }), rejected);
    let is_contended = false;
    assert_eq!(
        judged(Case {
            is_contended,
            ..FEW
        }),
        rejected
    );
    let loses_node = false;
    assert_eq!(judged(Case { loses_node, ..FEW }), rejected);
    let first = Case {
        is_granted: false,
        action: NOW,
        ..FEW
    };
    assert_eq!(judged(first), rejected, "it has no lease yet");
}

/// A node is slow that is one of the two with the lease, or the third one.
#[test]
fn a_renewal_may_fail_while_a_node_is_slow_if_a_contender_may_have_had_another_one() {
    let is_rejected = |slow_from: Micros, is_contended: bool| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        history.outages.push(Outage {
            node: Some(1),
            ..outage(Effect::Minority, slow_from, slow_from + 100)
        });
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        history.claims.push(claim("hal", &["b"], Mode::Exclusive));
        let now = Action::Acquire { wait: 0 };
        if is_contended {
            history.ask(7, now, 7_995, 8_015, refused(423, "lock_held"));
        }
        history.ask(6, now, 8_000, 8_010, granted(&[("b", 100)], true, 0));
        let fails = refused(503, "store_unavailable");
        history.ask(6, Action::Renew, 9_000, 9_110, fails);
        breaks(Rule::WrongFailure, &history)
    };
    assert!(!is_rejected(9_050, true));
    assert!(is_rejected(9_050, false), "all nodes had it");
    assert!(is_rejected(8_700, true), "no node is slow any more");
}

/// What one of the others has may go on with it.
#[test]
fn an_eviction_may_be_left_undone_while_a_node_of_a_quorum_does_not_answer() {
    let is_rejected = |is_quorum: bool, away_until: Micros| {
        let mut history = valid();
        history.bounds.is_quorum = is_quorum;
        history.outages.push(Outage {
            node: Some(1),
            ..outage(Effect::Minority, 7_000, away_until)
        });
        let fails = refused(503, "store_unavailable");
        let eviction = history.ask(5, Action::Evict, 8_000, 8_010, fails);
        history.requests[eviction].claim = None;
        breaks(Rule::WrongFailure, &history)
    };
    assert!(!is_rejected(true, 9_000));
    assert!(is_rejected(true, 7_500), "all nodes answer");
    assert!(is_rejected(false, 7_500), "it has no other nodes");
}

/// It reports nothing, and reaches the nodes one after the other while they grant the lock.
#[test]
fn an_eviction_may_end_the_lease_that_a_quorum_grants_meanwhile_and_no_other() {
    let judged = |is_quorum: bool, sent: Micros| {
        let mut history = valid();
        history.bounds.is_quorum = is_quorum;
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let waits = Action::Acquire { wait: SECOND };
        let answer = granted(&[("b", 100)], true, 500 * MS);
        history.ask(6, waits, 8_000, 8_500, answer);
        let nothing = Answer::Evicted(Vec::new());
        let eviction = history.ask(6, Action::Evict, sent, sent + 50, nothing);
        history.requests[eviction].claim = None;
        history.views.push(view("b", 8_900 * MS, &[], &[]));
        let (_, counts) = judge(&history);
        let is_rejected = !linear::check(&history).is_empty();
        (is_rejected, counts.excused.evictions)
    };
    assert_eq!(judged(true, 8_400), (false, 1));
    assert_eq!(judged(false, 8_400), (true, 0));
    assert_eq!(judged(true, 7_900), (true, 0), "before the request");
    assert_eq!(judged(true, 8_600), (true, 0), "after the answer");
}

/// Hal was told of his lease before, so a majority has it. Gus waits.
#[test]
fn an_eviction_on_a_quorum_names_the_lease_that_was_reported_before() {
    let is_rejected = |evicted: Vec<u64>| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        history.claims.push(claim("hal", &["b"], Mode::Exclusive));
        let now = Action::Acquire { wait: 0 };
        history.ask(7, now, 7_000, 7_010, granted(&[("b", 50)], true, 0));
        let waits = Action::Acquire { wait: SECOND };
        let answer = granted(&[("b", 100)], true, 500 * MS);
        history.ask(6, waits, 8_000, 8_500, answer);
        let eviction = history.ask(7, Action::Evict, 8_400, 8_450, Answer::Evicted(evicted));
        history.requests[eviction].claim = None;
        !linear::check(&history).is_empty()
    };
    assert!(!is_rejected(vec![50]));
    assert!(is_rejected(vec![]));
}

/// The lease was extended, although the stream did not learn it in time.
#[test]
fn a_lease_may_be_renewed_after_its_stream_gave_it_up_and_not_after_the_store_did() {
    let is_rejected = |action: Action| {
        let mut history = valid();
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let lease = || granted(&[("b", 100)], true, 0);
        let held = history.ask(6, Action::Hold { wait: 0 }, 8_000, 8_010, lease());
        let expired = || refused(412, "lease_expired");
        match action {
            Action::Hold { .. } => {
                let event = (12_990 * MS, expired());
                history.requests[held].arrivals.push(event);
            }
            _ => drop(history.ask(6, action, 12_980, 12_990, expired())),
        }
        let again = granted(&[("b", 100)], false, 0);
        history.ask(6, Action::Renew, 12_995, 13_000, again);
        breaks(Rule::Resurrection, &history)
    };
    assert!(!is_rejected(Action::Hold { wait: 0 }));
    assert!(is_rejected(Action::Renew));
}

/// A renewal counts the lease from before it asked the store: here it would have had 100 ms left.
#[test]
fn a_renewal_may_fail_at_the_end_of_its_lease_and_not_before() {
    let is_rejected = |at: Micros| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let now = Action::Acquire { wait: 0 };
        history.ask(6, now, 8_000, 8_010, granted(&[("b", 100)], true, 0));
        let fails = refused(503, "store_unavailable");
        history.ask(6, Action::Renew, 12_500, at, fails);
        breaks(Rule::WrongFailure, &history)
    };
    assert!(!is_rejected(13_005), "it ends at 13.010");
    assert!(is_rejected(12_700), "0.1 s would be left");
}
