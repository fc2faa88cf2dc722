//! Follows a recorded run in the model: which states it can be in, and what of the run no step of it explains.

use std::collections::{BTreeSet, HashSet};

use stateright::Model;

use crate::ticket_queue::calls::{Call, Outcome};
use crate::ticket_queue::model::Action;
use crate::ticket_queue::scenario::Scenario;
use crate::ticket_queue::state::{Client, State};

/// Something that happened in a run, and the lock after it if nothing else can have happened meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) event: Event,
    pub(super) lock: Option<LockSeen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The service asks the store.
    Call(Call),
    /// A client disconnects.
    HangsUp(usize),
    /// A client has the answer that it holds the lock.
    Holds(usize),
    /// A client has the answer that its wait timed out.
    IsAway(usize),
    /// A client has the answer that its claim has ended.
    HasEnded(usize),
    /// As much time passes as in one step of the model.
    TimePasses,
}

/// What everybody sees of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockSeen {
    pub(super) holders: BTreeSet<usize>,
    pub(super) waiting: usize,
    pub(super) first: Option<usize>,
}

/// A state that the model may be in, and what the rest of its last step will ask of the store.
type Place = (State, Vec<Call>);

/// Follows the run. Fails if the model has no such steps, or would be in another state after one.
pub(super) fn replay(scenario: &Scenario, history: &[Recorded]) -> Result<(), String> {
    let start = scenario.init_states().into_iter();
    let mut places: Vec<Place> = start.map(|state| (state, Vec::new())).collect();
    for (index, recorded) in history.iter().enumerate() {
        let next = follow(scenario, &places, recorded.event);
        if next.is_empty() {
            return Err(format!(
                "step {index}, {:?}: the model does not permit it",
                recorded.event
            ));
        }
        places = next;
        places.retain(|(state, rest)| {
            let seen = recorded.lock.as_ref();
            !rest.is_empty() || seen.is_none_or(|seen| *seen == lock(state))
        });
        if places.is_empty() {
            let seen = &recorded.lock;
            return Err(format!(
                "step {index}, {:?}: the model is not at {seen:?} after it",
                recorded.event
            ));
        }
    }
    Ok(())
}

fn follow(scenario: &Scenario, places: &[Place], event: Event) -> Vec<Place> {
    let mut next = Vec::new();
    for (state, rest) in places {
        match (rest.split_first(), event) {
            (Some((expected, rest)), Event::Call(call)) if *expected == call => {
                next.push((*state, rest.to_vec()));
            }
            (Some(_), _) => {}
            (None, event) => {
                for state in unrecorded(scenario, *state) {
                    next.extend(steps(scenario, &state, event));
                }
            }
        }
    }
    let mut known = HashSet::new();
    next.retain(|(state, rest)| known.insert((*state, rest.len())));
    next
}

/// The states that the model may be in after steps that nobody can record.
fn unrecorded(scenario: &Scenario, state: State) -> HashSet<State> {
    let (mut reached, mut ahead) = (HashSet::new(), vec![state]);
    while let Some(state) = ahead.pop() {
        if reached.insert(state) {
            let silent = actions(scenario, &state).into_iter().filter(|action| {
                matches!(
                    action,
                    Action::Notice(..) | Action::TimeOut(..) | Action::Report(..) | Action::Lose(_)
                )
            });
            ahead.extend(silent.map(|action| scenario.after(&state, action)));
        }
    }
    reached
}

/// The steps of the model that the event may be.
fn steps(scenario: &Scenario, state: &State, event: Event) -> Vec<Place> {
    let is = |client: usize, wanted: &dyn Fn(Client) -> bool| {
        let is_there = wanted(state.clients[client]);
        is_there.then(|| (*state, Vec::new())).into_iter().collect()
    };
    match event {
        Event::Call(call) => calling(scenario, state, call),
        Event::HangsUp(claim) => stepping(scenario, state, Action::HangUp(claim)),
        Event::TimePasses => stepping(scenario, state, Action::Tick),
        Event::Holds(claim) => is(claim, &|client| client == Client::Holding),
        Event::IsAway(claim) => is(claim, &|client| matches!(client, Client::Away { .. })),
        Event::HasEnded(claim) => is(claim, &|client| client == Client::Done),
    }
}

fn stepping(scenario: &Scenario, state: &State, action: Action) -> Vec<Place> {
    let is_possible = actions(scenario, state).contains(&action);
    let next = is_possible.then(|| (scenario.after(state, action), Vec::new()));
    next.into_iter().collect()
}

/// The steps that begin with this operation of the store.
fn calling(scenario: &Scenario, state: &State, call: Call) -> Vec<Place> {
    let mut next = Vec::new();
    for action in actions(scenario, state) {
        let after = scenario.after(state, action);
        let calls = after.calls.to_vec();
        if let Some((first, rest)) = calls.split_first()
            && *first == call
        {
            next.push((after, rest.to_vec()));
        }
    }
    // A poll more than the model needs, which changes nothing.
    if let Call::Acquire(claim, attempt, Outcome::Waiting) = call {
        let mut polled = *state;
        let is_waiting = state.requests[claim][attempt].is_waiting_at(0);
        scenario.poll(&mut polled, claim, attempt);
        if is_waiting && polled == *state {
            next.push((*state, Vec::new()));
        }
    }
    next
}

fn actions(scenario: &Scenario, state: &State) -> Vec<Action> {
    let mut actions = Vec::new();
    scenario.actions(state, &mut actions);
    actions
}

fn lock(state: &State) -> LockSeen {
    let leases = state.store.leases.iter().enumerate();
    let waiters = state.store.waiters(0);
    LockSeen {
        holders: leases
            .filter_map(|(claim, lease)| lease.map(|_| claim))
            .collect(),
        waiting: waiters.len(),
        first: waiters.first().copied(),
    }
}
