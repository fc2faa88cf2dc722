//! Tests of what the judge excuses in the order of waiters on a quorum.

use super::judge::{Rule, judge};
use super::record::{Action, Answer, Effect, End, History, Micros, Mode, Outage, SECOND};
use super::valid::{MS, claim, granted, outage, valid, view};

fn is_overtaken(history: &History) -> bool {
    let (found, _) = judge(history);
    found.iter().any(|violation| violation.rule == Rule::Fifo)
}

/// The one that waits is overtaken ten seconds after it came. A node that lacked it then has been asked again since.
#[test]
fn an_order_of_waiters_is_excused_by_nodes_that_failed_lately_and_not_long_before() {
    let is_rejected = |failed_from: Micros| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        for owner in ["gus", "hal", "ivy"] {
            history.claims.push(claim(owner, &["b"], Mode::Exclusive));
        }
        let now = Action::Acquire { wait: 0 };
        history.ask(7, now, 7_000, 7_010, granted(&[("b", 50)], true, 0));
        for renewed in [10_000, 14_000] {
            let answer = granted(&[("b", 50)], false, 0);
            history.ask(7, Action::Renew, renewed, renewed + 10, answer);
        }
        history.ask(7, Action::Release, 18_000, 18_010, Answer::Freed);
        let waits = Action::Acquire { wait: 30 * SECOND };
        let first = history.ask(6, waits, 8_000, 8_020, Answer::Queued);
        history.requests[first].end = Some((30_000 * MS, End::Broken));
        let overtakes = granted(&[("b", 60)], true, 9_005 * MS);
        history.ask(8, waits, 9_000, 18_020, overtakes);
        history.outages.extend([0, 1].map(|node| Outage {
            node: Some(node),
            ..outage(Effect::Minority, failed_from, failed_from + 1_500)
        }));
        let (_, counts) = judge(&history);
        (is_overtaken(&history), counts.excused.orders)
    };
    assert_eq!(is_rejected(9_000), (true, 0));
    assert_eq!(is_rejected(16_000), (false, 1));
}

/// Hal comes when Gus is seen as the head of the queue, and before Gus is told that he waits.
#[test]
fn a_place_that_a_view_shows_counts_unless_a_node_of_a_quorum_was_silent() {
    let is_rejected = |outages: &[Outage]| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        history.outages.extend_from_slice(outages);
        for owner in ["gus", "hal"] {
            history.claims.push(claim(owner, &["b"], Mode::Exclusive));
        }
        let waits = Action::Acquire { wait: 9 * SECOND };
        let first = history.ask(6, waits, 7_000, 8_500, Answer::Queued);
        history.requests[first].end = Some((16_000 * MS, End::Broken));
        history.ask(7, waits, 8_200, 8_600, granted(&[("b", 60)], true, 0));
        history.views.push(view("b", 8_100 * MS, &[], &["gus"]));
        is_overtaken(&history)
    };
    assert!(is_rejected(&[]));
    let away = Outage {
        node: Some(1),
        ..outage(Effect::Minority, 6_000, 9_000)
    };
    assert!(!is_rejected(&[away]));
}

/// Gus was admitted first by the nodes, and Hal a moment later, while Gus had yet to learn it.
#[test]
fn the_order_of_grants_that_share_a_lock_at_the_same_time_is_excused_on_a_quorum() {
    let is_rejected = |is_quorum: bool, mode: Mode, after: Micros| {
        let mut history = valid();
        history.bounds.is_quorum = is_quorum;
        for owner in ["gus", "hal"] {
            history.claims.push(claim(owner, &["b"], mode));
        }
        let waits = Action::Acquire { wait: 30 * SECOND };
        let first = history.ask(6, waits, 8_000, 8_020, Answer::Queued);
        let told = (9_900 + after) * MS;
        history.requests[first]
            .arrivals
            .push((told, granted(&[("b", 70)], true, 0)));
        history.requests[first].end = Some((told, End::Answered));
        history.ask(7, waits, 9_000, 9_900, granted(&[("b", 60)], true, 0));
        is_overtaken(&history)
    };
    let shared = Mode::Shared {
        limit: Some(3),
        permits: 1,
    };
    assert!(!is_rejected(true, shared, 20));
    assert!(is_rejected(true, shared, 500));
    assert!(is_rejected(true, Mode::Exclusive, 20));
    assert!(is_rejected(false, shared, 20));
}

/// Gus came while two nodes stood still, and is overtaken before he asks again.
#[test]
fn a_place_that_was_asked_for_while_nodes_failed_may_be_at_few_of_them() {
    let is_rejected = |failed_from: Micros| {
        let mut history = valid();
        history.bounds.is_quorum = true;
        for owner in ["gus", "hal"] {
            history.claims.push(claim(owner, &["b"], Mode::Exclusive));
        }
        let waits = Action::Acquire { wait: 30 * SECOND };
        let first = history.ask(6, waits, 18_000, 20_000, Answer::Queued);
        history.requests[first].end = Some((40_000 * MS, End::Broken));
        history.ask(7, waits, 20_010, 20_050, granted(&[("b", 60)], true, 0));
        history.outages.extend([0, 1].map(|node| Outage {
            node: Some(node),
            ..outage(Effect::Minority, failed_from, failed_from + 1_900)
        }));
        is_overtaken(&history)
    };
    assert!(!is_rejected(18_000));
    assert!(is_rejected(12_000));
}
