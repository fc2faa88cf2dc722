//! Tests of the judge: it accepts a valid history, and rejects the same history after one change, by the rule that the
//! change breaks.

use super::judge::{Rule, judge};
use super::linear;
use super::record::{
    Absence, Action, Answer, ClockStep, Effect, End, History, Micros, Mode, Outage, SECOND,
    WatchEntry,
};
use super::valid::{
    ANN, BEN, CID, DEE, EVA, FAY, MS, claim, granted, outage, refused, valid, view,
};

#[track_caller]
fn assert_broken(rule: Rule, breaks: impl FnOnce(&mut History)) {
    let mut history = valid();
    breaks(&mut history);
    let (found, _) = judge(&history);
    let rules: Vec<_> = found.iter().map(|violation| violation.rule).collect();
    assert!(rules.contains(&rule), "{rule:?} is not among {found:#?}");
}

fn refused_at(history: &mut History, claim: usize, sent: Micros, code: &str) {
    history.ask(claim, Action::Renew, sent, sent + 10, refused(412, code));
}

#[test]
fn a_history_in_which_all_is_well_is_accepted() {
    let (found, counts) = judge(&valid());
    assert!(found.is_empty(), "{found:#?}");
    assert_eq!(counts.grants, 7);
    assert_eq!(counts.ordered_pairs, 1, "Cid after Ben");
    assert_eq!((counts.waiters, counts.streams, counts.renewals), (1, 1, 1));
}

#[test]
fn a_second_holder_is_rejected() {
    // Cid gets a lease before Ann has released hers.
    assert_broken(Rule::Overlap, |history| {
        let cid = history.request(CID, 0);
        cid.arrivals[0].0 = 1_900 * MS;
        cid.end = Some((1_900 * MS, End::Answered));
    });
}

#[test]
fn a_lease_that_a_closed_stream_took_along_is_no_excuse_for_a_second_holder() {
    // A normal request took the lease over before the stream was closed.
    assert_broken(Rule::Overlap, |history| {
        let again = granted(&[("a", 200)], false, 0);
        history.ask(BEN, Action::Acquire { wait: 0 }, 2_100, 2_110, again);
    });
}

#[test]
fn a_permit_too_many_and_another_limit_are_rejected() {
    assert_broken(Rule::Permits, |history| {
        for claim in [DEE, EVA] {
            history.claims[claim].mode = Mode::Shared {
                limit: Some(2),
                permits: 1 + u32::from(claim == EVA),
            };
        }
    });
    assert_broken(Rule::DifferingLimits, |history| {
        history.claims[EVA].mode = Mode::Shared {
            limit: Some(3),
            permits: 1,
        };
    });
}

#[test]
fn a_lock_that_is_granted_before_its_time_is_rejected() {
    assert_broken(Rule::Cooling, |history| {
        history.claims[ANN].min_hold = 3 * SECOND
    });
}

#[test]
fn a_smaller_fence_and_a_shared_fence_are_rejected() {
    assert_broken(Rule::FenceOrder, |history| {
        history.fence(ANN, 0, 250);
        history.fence(ANN, 1, 250);
        let late = granted(&[("a", 240)], true, 0);
        history.ask(CID, Action::Acquire { wait: 0 }, 3_100, 3_110, late);
    });
    assert_broken(Rule::SharedFence, |history| history.fence(CID, 0, 200));
}

#[test]
fn a_fence_that_goes_back_is_rejected_though_all_data_were_lost() {
    assert_broken(Rule::FenceOrder, |history| {
        history.outages.push(outage(Effect::Loss, 2_100, 2_200));
        history.claims.push(claim("gus", &["a"], Mode::Exclusive));
        let lower = granted(&[("a", 50)], true, 0);
        history.ask(6, Action::Acquire { wait: 0 }, 8_000, 8_010, lower);
    });
}

#[test]
fn a_waiter_that_overtakes_is_rejected_also_after_an_outage_of_the_store() {
    let overtakes = |history: &mut History| {
        history.fence(BEN, 0, 400);
        let ben = history.request(BEN, 0);
        ben.arrivals[1].0 = 3_100 * MS;
        ben.end = Some((3_500 * MS, End::HungUp));
    };
    assert_broken(Rule::Fifo, overtakes);
    assert_broken(Rule::Fifo, |history| {
        overtakes(history);
        history.outages.push(outage(Effect::Away, 1_600, 1_900));
    });
    let node = |node, from, until| Outage {
        node: Some(node),
        ..outage(Effect::Minority, from, until)
    };
    // One node that fails, several that are slow, and several that fail one after the other.
    for outages in [
        vec![node(0, 100, 2_400)],
        vec![node(0, 1_600, 1_900), node(1, 1_600, 1_900)],
        vec![node(0, 100, 2_200), node(1, 2_300, 4_400)],
    ] {
        assert_broken(Rule::Fifo, |history| {
            overtakes(history);
            history.outages.extend(outages);
        });
    }
    let mut history = valid();
    overtakes(&mut history);
    // A failure is seen in parts.
    let in_parts = [node(1, 200, 1_700), node(1, 1_760, 2_400)];
    history.outages.push(node(0, 100, 2_400));
    history.outages.extend(in_parts);
    let (found, _) = judge(&history);
    assert!(found.iter().all(|violation| violation.rule != Rule::Fifo));
}

#[test]
fn a_lease_that_is_lost_too_early_is_rejected() {
    assert_broken(Rule::EarlyLoss, |history| {
        refused_at(history, DEE, 2_000, "lease_expired")
    });
    // Its holder got no such response, but an observer saw that the lease was gone.
    assert_broken(Rule::EarlyLoss, |history| {
        history
            .views
            .push(view("s", 2_000 * MS, &[("eva", 200)], &[]));
    });
}

/// A lease that all nodes have survives the loss of one of them: one that was renewed, or was granted without a contender.
#[test]
fn a_lease_that_a_quorum_loses_with_one_node_is_rejected_if_all_nodes_had_it() {
    let is_lost = |history: &mut History, claim: usize| {
        history.outages.push(Outage {
            node: Some(0),
            ..outage(Effect::MinorityLoss, 2_500, 2_510)
        });
        refused_at(history, claim, 2_600, "lease_lost");
    };
    let mut history = valid();
    is_lost(&mut history, DEE);
    let (found, _) = judge(&history);
    assert!(found.is_empty(), "{found:#?}");
    assert_broken(Rule::EarlyLoss, |history| {
        let renewed = granted(&[("s", 100)], false, 0);
        history.ask(DEE, Action::Renew, 1_000, 1_010, renewed);
        is_lost(history, DEE);
    });
    assert_broken(Rule::EarlyLoss, |history| is_lost(history, FAY));
    let mut history = valid();
    is_lost(&mut history, FAY);
    let contends = refused(423, "lock_held");
    history.claims.push(claim("gus", &["q"], Mode::Exclusive));
    history.ask(6, Action::Acquire { wait: 0 }, 95, 115, contends);
    let (found, _) = judge(&history);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_claim_that_is_revived_and_a_renewal_that_creates_a_lease_are_rejected() {
    assert_broken(Rule::Resurrection, |history| {
        let again = granted(&[("a", 500)], true, 0);
        history.ask(CID, Action::Acquire { wait: 0 }, 4_000, 4_010, again);
    });
    assert_broken(Rule::Resurrection, |history| {
        history.ask(
            DEE,
            Action::Renew,
            9_000,
            9_010,
            granted(&[("s", 100)], false, 0),
        );
    });
}

/// The reported time counts from before the store operation, and the store replied late.
#[test]
fn a_renewal_after_an_end_that_was_reported_late_is_accepted() {
    let mut history = valid();
    if let Answer::Granted { leases, .. } = history.answer(DEE, 0) {
        leases[0].expires_in = SECOND;
    }
    let renewed = granted(&[("s", 100)], false, 0);
    history.ask(DEE, Action::Renew, 3_000, 3_010, renewed);
    let (found, _) = judge(&history);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_part_of_several_locks_is_rejected() {
    assert_broken(Rule::PartialGrant, |history| {
        *history.answer(FAY, 0) = granted(&[("p", 100)], true, 0);
    });
    assert_broken(Rule::PartialGrant, |history| {
        history.views[2].holders.clear()
    });
}

#[test]
fn a_lease_without_an_owner_is_rejected() {
    assert_broken(Rule::Orphan, |history| {
        history.left_over.push("a".to_owned())
    });
    // Ben's stream was closed two seconds and more before.
    assert_broken(Rule::UnownedHold, |history| {
        history
            .views
            .push(view("a", 6_000 * MS, &[("ben", 200)], &[]));
    });
    assert_broken(Rule::UnownedHold, |history| {
        history.claims.push(claim("gus", &["a"], Mode::Exclusive));
        let refused = refused(423, "lock_held");
        history.ask(6, Action::Acquire { wait: 0 }, 1_000, 1_010, refused);
        history
            .views
            .push(view("a", 12_000 * MS, &[("gus", 900)], &[]));
    });
}

#[test]
fn a_free_lock_that_a_waiter_does_not_get_is_rejected() {
    assert_broken(Rule::Ghost, |history| {
        history.claims.push(claim("gus", &["a"], Mode::Exclusive));
        let wait = Action::Acquire { wait: 9 * SECOND };
        history.ask(6, wait, 5_000, 14_000, refused(423, "wait_timeout"));
        let views = (0..20).map(|turn| view("a", (7_000 + turn * 150) * MS, &[], &["gus"]));
        history.views.extend(views);
    });
}

#[test]
fn a_grant_without_an_event_is_rejected() {
    assert_broken(Rule::LostEvent, |history| {
        history.watches[0].entries.remove(2);
    });
    // A lease that begins after a reset must be reported, whatever was missed before.
    assert_broken(Rule::LostEvent, |history| {
        let entries = &mut history.watches[0].entries;
        entries.retain(|(_, entry)| !matches!(entry, WatchEntry::Acquired { .. }));
        entries.insert(1, (1_150 * MS, WatchEntry::Reset));
    });
}

#[test]
fn a_dead_grant_a_late_one_and_a_failure_without_a_reason_are_rejected() {
    assert_broken(Rule::DeadGrant, |history| {
        if let Answer::Granted { leases, .. } = history.answer(DEE, 0) {
            leases[0].expires_in = 0;
        }
    });
    assert_broken(Rule::Late, |history| {
        history.request(CID, 0).action = Action::Acquire { wait: SECOND };
    });
    assert_broken(Rule::WrongFailure, |history| {
        *history.answer(DEE, 0) = refused(500, "internal");
    });
    assert_broken(Rule::WrongFailure, |history| {
        *history.answer(DEE, 0) = refused(503, "store_unavailable");
    });
}

#[test]
fn new_grants_that_wait_for_leases_although_nothing_was_lost_are_rejected() {
    let history = |effect: Effect| {
        let mut history = valid();
        history.outages.push(outage(effect, 1_600, 1_900));
        history.claims.push(claim("gus", &["b"], Mode::Exclusive));
        let waits = refused(503, "recovering");
        history.ask(6, Action::Acquire { wait: 0 }, 8_000, 8_010, waits);
        history
    };
    let is_rejected = |effect: Effect| {
        let (found, _) = judge(&history(effect));
        let mut rules = found.iter().map(|violation| violation.rule);
        rules.any(|rule| rule == Rule::WrongFailure)
    };
    assert!(is_rejected(Effect::Away), "its data were kept");
    assert!(!is_rejected(Effect::Loss), "its data were lost");
}

#[test]
fn a_clock_that_jumps_ends_what_it_ends_and_no_more() {
    let history = |by: i64| {
        let mut history = valid();
        history.clock_steps.push(ClockStep {
            before: 300 * MS,
            after: 310 * MS,
            by,
        });
        // Dee's lease was to last until 5.1 s.
        refused_at(&mut history, DEE, 2_000, "lease_expired");
        history
    };
    let is_rejected = |by: i64| {
        let (found, _) = judge(&history(by));
        found
            .iter()
            .any(|violation| violation.rule == Rule::EarlyLoss)
    };
    assert!(!is_rejected(60_000_000), "a jump by a minute ends it");
    assert!(is_rejected(1_000_000), "a jump by a second does not");
    assert!(is_rejected(-60_000_000), "a jump back does not, either");
}

#[test]
fn a_grant_without_a_majority_and_none_with_one_are_rejected() {
    let absent = |from: Micros, until: Micros, is_minority: bool| Absence {
        from: from * MS,
        until: until * MS,
        is_minority,
    };
    assert_broken(Rule::NoMajority, |history| {
        history.absences.push(absent(0, 10_000, false));
    });
    assert_broken(Rule::Standstill, |history| {
        history.absences.push(absent(20_000, 24_000, true));
    });
    let mut history = valid();
    history.absences = vec![absent(0, 10_000, true), absent(20_000, 24_000, false)];
    let (found, _) = judge(&history);
    assert!(found.is_empty(), "{found:#?}");
}

/// Cid's lease begins while that of Ann lasts, because a former primary granted it.
#[test]
fn what_a_former_primary_reports_is_counted_unless_replicas_confirm() {
    let judged = |effect: Effect, is_confirmed: bool| {
        let mut history = valid();
        let cid = history.request(CID, 0);
        cid.arrivals[0].0 = 1_900 * MS;
        cid.end = Some((1_900 * MS, End::Answered));
        history.outages.push(outage(effect, 1_800, 1_950));
        history.bounds.is_confirmed = is_confirmed;
        let (found, counts) = judge(&history);
        let overlaps = found.iter().filter(|it| it.rule == Rule::Overlap).count();
        let is_explained = linear::check(&history).is_empty();
        (overlaps > 0, counts.former_primary_overlaps, is_explained)
    };
    assert_eq!(judged(Effect::FormerPrimary, false), (false, 2, true));
    assert_eq!(judged(Effect::FormerPrimary, true), (true, 0, false));
    let no_longer_runs = judged(Effect::Failover, false);
    assert_eq!(no_longer_runs, (true, 0, false));
}

#[test]
fn a_lease_that_a_failover_loses_is_rejected_if_replicas_have_confirmed_it() {
    let is_rejected = |is_confirmed: bool| {
        let mut history = valid();
        history.outages.push(outage(Effect::Failover, 1_600, 1_900));
        history.bounds.is_confirmed = is_confirmed;
        refused_at(&mut history, DEE, 2_000, "lease_lost");
        let (found, _) = judge(&history);
        found.iter().any(|it| it.rule == Rule::EarlyLoss)
    };
    assert!(is_rejected(true));
    assert!(!is_rejected(false));
}
