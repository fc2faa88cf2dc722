//! Runs of the code are recorded, and each of their steps has to be one that the model permits and that leads to the recorded
//! state: so the model cannot differ from the code without a test that fails.
//!
//! `run` records what the service asks of the memory store, on a stopped clock, while clients wait, hang up, come again
//! and release at random. `replay` follows that in the model. Only one process is recorded, because an embedded store has
//! only one; `contract::two_processes` and the histories have several.

mod replay;
mod run;

use std::collections::BTreeMap;

use super::calls::{Call, Outcome};
use super::scenario::{CLAIMS, Scenario};
use crate::model::sequences;
use replay::{Event, Recorded, replay};

/// A scenario of one process, at random.
fn scenario(chance: &mut fastrand::Rng) -> Scenario {
    let mut some = || [(); CLAIMS].map(|()| chance.bool());
    Scenario {
        homes: [0; CLAIMS],
        returns_home: true,
        shares: some(),
        is_impatient: some(),
        may_hang_up: [true; CLAIMS],
        may_come_again: [true; CLAIMS],
        ..Scenario::default()
    }
}

/// A recorded run, the same for the same seed but for the jitter of polls.
fn recorded(seed: u64) -> (Scenario, Vec<Recorded>) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let scenario = scenario(&mut chance);
    (scenario, run::record(scenario, chance))
}

fn kind_of(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Call(Call::Acquire(_, _, Outcome::Granted)) => "granted",
        Event::Call(Call::Acquire(_, _, Outcome::Waiting)) => "queued",
        Event::Call(Call::Suspend(_)) => "suspended",
        Event::Call(Call::Withdraw(..)) => "withdrawn",
        Event::Call(Call::Release(_)) => "released",
        Event::HangsUp(_) => "hung up",
        Event::IsAway(_) => "timed out",
        Event::Holds(_) => "reported",
        Event::TimePasses => "time",
        Event::Call(Call::Acquire(..)) | Event::HasEnded(_) => return None,
    })
}

#[test]
fn every_step_of_the_code_is_one_of_the_model() {
    let mut kinds = BTreeMap::<_, usize>::new();
    for seed in 0..sequences(200).into() {
        let (scenario, history) = recorded(seed);
        if let Err(problem) = replay(&scenario, &history) {
            let events = history.iter().map(|it| format!("{:?}", it.event));
            let events: Vec<_> = events.collect();
            panic!(
                "seed {seed}: {problem}\n{scenario:?}\n{}",
                events.join("\n")
            );
        }
        for kind in history.iter().filter_map(|it| kind_of(&it.event)) {
            *kinds.entry(kind).or_default() += 1;
        }
    }
    println!("{kinds:?}");
    assert_eq!(kinds.len(), 9, "every kind of step was recorded: {kinds:?}");
}

/// Changes one step of a recorded run so that it is wrong, if it has such a step.
type Change = fn(Vec<Recorded>) -> Option<Vec<Recorded>>;

const CHANGES: [(&str, Change); 5] = [
    (
        "a waiter is granted the lock before the first one",
        overtake,
    ),
    (
        "a claim is not suspended when its wait is over",
        keep_waiting,
    ),
    ("an undelivered grant is not rolled back", keep_grant),
    ("the lock is granted to two", grant_to_two),
    ("a waiter is granted the lock that is held", grant_at_once),
];

fn overtake(mut history: Vec<Recorded>) -> Option<Vec<Recorded>> {
    let is_turn_of_first = |index: &usize| {
        let Event::Call(Call::Acquire(claim, _, Outcome::Granted)) = history[*index].event else {
            return false;
        };
        let before = history[index - 1].lock.as_ref();
        before.is_some_and(|lock| lock.first == Some(claim) && lock.waiting > 1)
    };
    let index = (1..history.len()).find(is_turn_of_first)?;
    let Recorded { event, lock } = &mut history[index];
    let Event::Call(Call::Acquire(claim, _, _)) = event else {
        return None;
    };
    let holders = &mut lock.as_mut()?.holders;
    holders.remove(claim);
    *claim = (*claim + 1) % CLAIMS;
    holders.insert(*claim);
    Some(history)
}

fn keep_waiting(mut history: Vec<Recorded>) -> Option<Vec<Recorded>> {
    let index = history.windows(2).position(|pair| match pair[0].event {
        Event::Call(Call::Suspend(claim)) => pair[1].event == Event::IsAway(claim),
        _ => false,
    })?;
    history.remove(index);
    Some(history)
}

/// Before time passes, the service owes it.
fn keep_grant(mut history: Vec<Recorded>) -> Option<Vec<Recorded>> {
    let is_tick = |it: &Recorded| it.event == Event::TimePasses;
    let last_tick = history.iter().rposition(is_tick)?;
    let is_undo = |it: &Recorded| matches!(it.event, Event::Call(Call::Withdraw(..)));
    let index = history[..last_tick].iter().position(is_undo)?;
    history.remove(index);
    Some(history)
}

fn grant_to_two(mut history: Vec<Recorded>) -> Option<Vec<Recorded>> {
    let mut locks = history.iter_mut().filter_map(|it| it.lock.as_mut());
    let lock = locks.find(|lock| lock.holders.len() == 1)?;
    let other = (0..CLAIMS).find(|claim| !lock.holders.contains(claim))?;
    lock.holders.insert(other);
    Some(history)
}

fn grant_at_once(mut history: Vec<Recorded>) -> Option<Vec<Recorded>> {
    let mut events = history.iter_mut().map(|it| &mut it.event);
    let answer = events.find_map(|event| match event {
        Event::Call(Call::Acquire(_, _, answer)) if *answer == Outcome::Waiting => Some(answer),
        _ => None,
    })?;
    *answer = Outcome::Granted;
    Some(history)
}

#[test]
fn a_step_that_the_model_does_not_permit_is_noticed() {
    let mut noticed = BTreeMap::<_, usize>::new();
    for seed in 0..40 {
        let (scenario, history) = recorded(seed);
        for (what, change) in CHANGES {
            if let Some(changed) = change(history.clone()) {
                let followed = replay(&scenario, &changed);
                assert!(followed.is_err(), "seed {seed}, {what}: {changed:?}");
                *noticed.entry(what).or_default() += 1;
            }
        }
    }
    assert_eq!(noticed.len(), CHANGES.len(), "{noticed:?}");
}
