//! Tests of this judge: views and evictions that are in flight while something else changes the lock. They may come before
//! it, and then so must the end of a lease that nothing else shows.

use super::super::record::{Action, Answer, End, History, Micros, View};
use super::super::valid::{MS, claim, granted, valid, view};
use super::cases::{GUS, HAL, NOW, READER, evict, two_claims, unanswered};
use super::check;

/// One more claim.
const IDA: usize = 8;

/// Which of the two that share the lock is seen alone: the one with the first token, or with the second.
const BOTH: [usize; 2] = [GUS, HAL];

/// Gus and Hal share a lock with a lease of five seconds each. The lease of one of them may end from `ends` on, if it does.
fn sharing(alone: usize, ends: Option<Micros>) -> History {
    let mut history = valid();
    two_claims(&mut history);
    history.claims.push(claim("ida", &["b"], READER));
    for (claim, fence) in [(GUS, 100), (HAL, 200)] {
        history.claims[claim].mode = READER;
        history.ask(claim, NOW, 5_000, 5_010, granted(&[("b", fence)], true, 0));
    }
    if let Some(ends) = ends {
        unanswered(&mut history, GUS + HAL - alone, Action::Release, ends);
    }
    history
}

/// A view of the lease of this claim alone.
fn seen_alone(history: &mut History, alone: usize, sent: Micros, at: Micros) {
    let holder = if alone == GUS {
        ("gus", 100)
    } else {
        ("hal", 200)
    };
    let view = view("b", sent * MS, &[holder], &[]);
    history.views.push(View {
        at: at * MS,
        ..view
    });
}

fn fence_of(claim: usize) -> u64 {
    if claim == GUS { 100 } else { 200 }
}

/// The lease that nobody sees has ended before the view, and the other one after it.
#[test]
fn a_lease_may_be_seen_alone_while_it_is_released() {
    for alone in BOTH {
        let is_accepted = |ends: Option<Micros>, seen: Micros| {
            let mut history = sharing(alone, ends);
            history.ask(alone, Action::Release, 5_150, 5_160, Answer::Freed);
            seen_alone(&mut history, alone, seen, 5_300);
            check(&history).is_empty()
        };
        assert!(is_accepted(Some(5_050), 5_100), "{alone}");
        assert!(is_accepted(Some(5_155), 5_100), "{alone}");
        assert!(!is_accepted(None, 5_100), "{alone}: both hold");
        assert!(!is_accepted(Some(5_170), 5_100), "{alone}: too late");
        assert!(!is_accepted(Some(5_050), 5_170), "{alone}: it is released");
    }
}

/// The same with a stream, whose connection is closed. No answer shows that its lease has ended.
#[test]
fn a_lease_may_be_seen_alone_after_the_stream_of_the_other_was_closed() {
    let is_accepted = |closed: Micros| {
        let mut history = valid();
        two_claims(&mut history);
        for claim in BOTH {
            history.claims[claim].mode = READER;
        }
        let answer = granted(&[("b", 100)], true, 0);
        let stream = history.ask(GUS, Action::Hold { wait: 0 }, 4_607, 4_714, answer);
        history.requests[stream].end = Some((closed * MS, End::HungUp));
        history.ask(HAL, NOW, 4_633, 4_739, granted(&[("b", 200)], true, 0));
        history.ask(HAL, Action::Release, 4_910, 4_918, Answer::Freed);
        seen_alone(&mut history, HAL, 4_911, 4_930);
        check(&history).is_empty()
    };
    assert!(is_accepted(4_781));
    assert!(!is_accepted(4_925), "Hal's was released before");
}

#[test]
fn a_lease_may_be_seen_alone_while_another_one_is_granted() {
    for alone in BOTH {
        let is_accepted = |ends: Option<Micros>, asked: Micros, seen: Micros| {
            let mut history = sharing(alone, ends);
            let answer = granted(&[("b", 300)], true, 0);
            history.ask(IDA, NOW, asked, asked + 10, answer);
            seen_alone(&mut history, alone, seen, 5_300);
            check(&history).is_empty()
        };
        assert!(is_accepted(Some(5_050), 5_150, 5_100), "{alone}");
        assert!(!is_accepted(None, 5_150, 5_100), "{alone}: both hold");
        assert!(!is_accepted(Some(5_050), 5_080, 5_100), "{alone}: all hold");
    }
}

#[test]
fn a_lease_may_be_evicted_alone_while_another_one_is_granted() {
    for alone in BOTH {
        let is_accepted = |ends: Option<Micros>, asked: Micros| {
            let mut history = sharing(alone, ends);
            let answer = granted(&[("b", 300)], true, 0);
            history.ask(IDA, NOW, asked, asked + 10, answer);
            evict(&mut history, 5_100, 5_300, &[fence_of(alone)]);
            check(&history).is_empty()
        };
        assert!(is_accepted(Some(5_050), 5_150), "{alone}");
        assert!(!is_accepted(None, 5_150), "{alone}: both hold");
        assert!(!is_accepted(Some(5_050), 5_080), "{alone}: all hold");
    }
}
