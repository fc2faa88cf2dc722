//! Tests of this judge: histories that one order explains, and the same after one change that no order explains.

use super::super::judge::Rule;
use super::super::record::{Action, Answer, ClockStep, Effect, End, History, Micros, Mode, SECOND};
use super::super::valid::{
    ANN, CID, DEE, EVA, FAY, MS, claim, granted, outage, refused, valid, view,
};
use super::{CONFIGURATIONS_MAX, check, check_within};

/// A claim that a case adds.
pub(super) const GUS: usize = 6;
/// Another one.
pub(super) const HAL: usize = 7;

pub(super) const NOW: Action = Action::Acquire { wait: 0 };

/// What a case does with the valid history.
type Change = fn(&mut History);

/// Histories that one order explains.
const ACCEPTED: [(&str, Change); 15] = [
    ("nothing is changed", |_| {}),
    (
        "a release without an answer is followed by a grant",
        |history| {
            two_claims(history);
            history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
            unanswered(history, GUS, Action::Release, 5_100);
            history.ask(HAL, NOW, 5_200, 5_210, granted(&[("b", 200)], true, 0));
        },
    ),
    (
        "a renewal succeeds beside a release without an answer",
        |history| {
            two_claims(history);
            history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
            unanswered(history, GUS, Action::Release, 5_100);
            history.ask(
                GUS,
                Action::Renew,
                5_200,
                5_210,
                granted(&[("b", 100)], false, 0),
            );
        },
    ),
    (
        "an acquire without an answer is seen, rolled back, and followed by a grant",
        |history| {
            two_claims(history);
            unanswered(history, GUS, NOW, 5_000);
            history
                .views
                .push(view("b", 5_100 * MS, &[("gus", 100)], &[]));
            history.ask(HAL, NOW, 5_200, 5_210, granted(&[("b", 200)], true, 0));
        },
    ),
    ("an expired lease is followed by a grant", |history| {
        two_claims(history);
        history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
        history.ask(HAL, NOW, 10_000, 10_010, granted(&[("b", 200)], true, 0));
    }),
    (
        "a renewal is answered after a grant that follows the lease",
        |history| {
            two_claims(history);
            history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
            unanswered(history, GUS, Action::Release, 5_100);
            history.ask(
                GUS,
                Action::Renew,
                5_050,
                5_500,
                granted(&[("b", 100)], false, 0),
            );
            history.ask(HAL, NOW, 5_200, 5_210, granted(&[("b", 200)], true, 0));
        },
    ),
    (
        "a release is answered before the acquire that it ends",
        |history| {
            two_claims(history);
            history.ask(GUS, NOW, 5_000, 5_500, granted(&[("b", 100)], true, 0));
            history.ask(GUS, Action::Release, 5_100, 5_110, Answer::Freed);
            history.ask(HAL, NOW, 5_200, 5_210, granted(&[("b", 200)], true, 0));
        },
    ),
    (
        "an eviction of nobody is answered after a release and a grant",
        |history| {
            two_claims(history);
            history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
            history.ask(GUS, Action::Release, 5_110, 5_120, Answer::Freed);
            evict(history, 5_100, 5_200, &[]);
            history.ask(HAL, NOW, 5_130, 5_140, granted(&[("b", 200)], true, 0));
        },
    ),
    ("an evicted holder is refused", |history| {
        two_claims(history);
        history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
        evict(history, 5_100, 5_200, &[100]);
        history.ask(HAL, NOW, 5_120, 5_130, granted(&[("b", 200)], true, 0));
        history.ask(
            GUS,
            Action::Renew,
            5_140,
            5_150,
            refused(412, "lease_evicted"),
        );
    }),
    (
        "a writer that steps down is joined by a reader",
        |history| {
            two_claims(history);
            history.claims[HAL].mode = READER;
            history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
            history.ask(
                GUS,
                Action::StepDown,
                5_100,
                5_200,
                granted(&[("b", 100)], false, 0),
            );
            history.ask(HAL, NOW, 5_110, 5_120, granted(&[("b", 200)], true, 0));
        },
    ),
    ("a holder is refused after a loss of data", |history| {
        history.outages.push(outage(Effect::Loss, 1_000, 1_100));
        history.ask(DEE, Action::Renew, 1_200, 1_210, refused(412, "lease_lost"));
    }),
    (
        "a lease ends early because the clock steps forward",
        |history| {
            history.clock_steps.push(ClockStep {
                before: 1_000 * MS,
                after: 1_010 * MS,
                by: 60_000_000,
            });
            history.ask(
                DEE,
                Action::Renew,
                1_200,
                1_210,
                refused(412, "lease_expired"),
            );
        },
    ),
    ("permits that may have ended make room", |history| {
        history
            .claims
            .push(claim("gus", &["s"], history.claims[DEE].mode));
        history.ask(GUS, NOW, 5_250, 5_260, granted(&[("s", 300)], true, 0));
        // Either of two leases may have ended, and it was Dee's.
        history.ask(
            EVA,
            Action::Renew,
            5_255,
            5_300,
            granted(&[("s", 200)], false, 0),
        );
    }),
    (
        "a refused release of several locks ends what its claim still holds",
        |history| {
            let evicted = refused(412, "lease_evicted");
            history.ask(FAY, Action::Release, 2_100, 2_110, evicted);
            history.views.push(view("q", 2_200 * MS, &[], &[]));
        },
    ),
    ("answers of nothing but failures", |history| {
        two_claims(history);
        history.ask(GUS, NOW, 5_000, 5_010, refused(503, "store_unavailable"));
        history.ask(
            GUS,
            Action::Release,
            5_100,
            5_110,
            refused(503, "store_unavailable"),
        );
        history.ask(HAL, NOW, 5_200, 5_210, granted(&[("b", 200)], true, 0));
    }),
];

/// Histories that no order explains.
const REJECTED: [(&str, Change); 19] = [
    ("two hold at once", |history| {
        let cid = history.request(CID, 0);
        cid.arrivals[0].0 = 1_900 * MS;
        cid.end = Some((1_900 * MS, End::Answered));
    }),
    ("a fencing token goes back", |history| {
        history.claims.push(claim("gus", &["a"], Mode::Exclusive));
        history.ask(GUS, NOW, 4_500, 4_510, granted(&[("a", 250)], true, 0));
    }),
    (
        "a fencing token goes back after a loss of all data",
        |history| {
            history.outages.push(outage(Effect::Loss, 3_100, 3_200));
            history.claims.push(claim("gus", &["a"], Mode::Exclusive));
            history.ask(GUS, NOW, 14_000, 14_010, granted(&[("a", 50)], true, 0));
        },
    ),
    ("two grants have one fencing token", |history| {
        history.fence(CID, 0, 200)
    }),
    ("a lease is renewed after its release", |history| {
        history.ask(
            CID,
            Action::Renew,
            3_100,
            3_110,
            granted(&[("a", 300)], false, 0),
        );
    }),
    (
        "a lease is renewed after another claim got the lock",
        |history| {
            history.ask(
                ANN,
                Action::Renew,
                2_700,
                2_710,
                granted(&[("a", 100)], false, 0),
            );
        },
    ),
    ("a lease is renewed after its latest end", |history| {
        history.ask(
            DEE,
            Action::Renew,
            9_000,
            9_010,
            granted(&[("s", 100)], false, 0),
        );
    }),
    (
        "a release is told that its claim does not hold, while it does",
        |history| {
            history.ask(
                DEE,
                Action::Release,
                1_000,
                1_010,
                refused(412, "lease_expired"),
            );
        },
    ),
    ("a renewal is told the same", |history| {
        history.ask(DEE, Action::Renew, 1_000, 1_010, refused(412, "lease_lost"));
    }),
    (
        "a holder that asks again is told that the lock is held",
        |history| {
            history.ask(DEE, NOW, 1_000, 1_010, refused(423, "lock_held"));
        },
    ),
    (
        "a lost grant is seen while another claim holds",
        |history| {
            two_claims(history);
            unanswered(history, GUS, NOW, 5_000);
            history.ask(HAL, NOW, 5_100, 5_110, granted(&[("b", 200)], true, 0));
            history
                .views
                .push(view("b", 5_200 * MS, &[("gus", 100)], &[]));
        },
    ),
    (
        "a lost grant is reported after another claim got the lock",
        |history| {
            two_claims(history);
            unanswered(history, GUS, NOW, 5_000);
            history.ask(HAL, NOW, 5_100, 5_110, granted(&[("b", 200)], true, 0));
            history.ask(GUS, NOW, 5_200, 5_210, granted(&[("b", 100)], false, 0));
        },
    ),
    ("a holder is not seen", |history| {
        history
            .views
            .push(view("s", 2_000 * MS, &[("eva", 200)], &[]));
    }),
    ("a released lease is seen", |history| {
        history
            .views
            .push(view("a", 3_500 * MS, &[("cid", 300)], &[]));
    }),
    (
        "a lease is lost although the clock steps by less than its rest",
        |history| {
            history.clock_steps.push(ClockStep {
                before: 1_000 * MS,
                after: 1_010 * MS,
                by: 1_000_000,
            });
            history.claims.push(claim("gus", &["s"], Mode::Exclusive));
            history.ask(GUS, NOW, 2_000, 2_010, granted(&[("s", 300)], true, 0));
        },
    ),
    ("a claim gets a second lease", |history| {
        history.ask(CID, NOW, 3_500, 3_510, granted(&[("a", 400)], true, 0));
    }),
    ("an evicted lease is renewed", |history| {
        two_claims(history);
        history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
        evict(history, 5_100, 5_200, &[100]);
        history.ask(
            GUS,
            Action::Renew,
            5_300,
            5_310,
            granted(&[("b", 100)], false, 0),
        );
    }),
    ("an eviction leaves a holder out", |history| {
        two_claims(history);
        history.ask(GUS, NOW, 5_000, 5_010, granted(&[("b", 100)], true, 0));
        evict(history, 5_100, 5_200, &[]);
    }),
    ("there is a permit too many", |history| {
        history
            .claims
            .push(claim("gus", &["s"], history.claims[DEE].mode));
        history.ask(GUS, NOW, 1_000, 1_010, granted(&[("s", 300)], true, 0));
    }),
];

pub(super) const READER: Mode = Mode::Shared {
    limit: None,
    permits: 1,
};

/// Two more claims, on a lock of their own.
pub(super) fn two_claims(history: &mut History) {
    for owner in ["gus", "hal"] {
        history.claims.push(claim(owner, &["b"], Mode::Exclusive));
    }
}

pub(super) fn unanswered(history: &mut History, claim: usize, action: Action, sent: Micros) {
    let request = history.ask(claim, action, sent, sent, Answer::Queued);
    history.requests[request].arrivals.clear();
    history.requests[request].end = Some((sent * MS, End::Broken));
}

pub(super) fn evict(history: &mut History, sent: Micros, at: Micros, fences: &[u64]) {
    let answer = Answer::Evicted(fences.to_vec());
    let request = history.ask(GUS, Action::Evict, sent, at, answer);
    history.requests[request].claim = None;
}

fn changed(change: Change) -> History {
    let mut history = valid();
    change(&mut history);
    history
}

#[test]
fn a_history_that_one_order_explains_is_accepted() {
    for (what, change) in ACCEPTED {
        let found = check(&changed(change));
        assert!(found.is_empty(), "{what}: {found:#?}");
    }
}

#[test]
fn a_history_that_no_order_explains_is_rejected() {
    for (what, change) in REJECTED {
        let found = check(&changed(change));
        let rules: Vec<_> = found.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, [Rule::Linearizability], "{what}");
    }
}

#[test]
fn a_search_that_gives_up_is_a_failure() {
    let found = check_within(&valid(), 3);
    assert!(!found.is_empty() && found.iter().all(|it| it.rule == Rule::Undecided));
}

/// Many overlapping requests, of which none settles the order of the others.
#[test]
fn a_long_history_takes_little_work() {
    let mut history = valid();
    for number in 0..200 {
        let owner = format!("many-{number}");
        history.claims.push(claim(&owner, &["b"], Mode::Exclusive));
        let claim = GUS + number;
        let at = 5_000 + 10 * number as Micros;
        history.ask(claim, NOW, 5_000, at, granted(&[("b", at)], true, 0));
        unanswered(&mut history, claim, Action::Release, at);
        let holder = [(owner.as_str(), at)];
        let view = view("b", 5_000 * MS, &holder, &[]);
        let at = 9 * SECOND;
        history
            .views
            .push(super::super::record::View { at, ..view });
    }
    let found = check_within(&history, CONFIGURATIONS_MAX / 100);
    assert!(found.is_empty(), "{found:#?}");
}
