//! The properties: what must always hold, what must eventually hold, and what must happen at least once for the others
//! to be meaningful.
//!
//! The checker evaluates `eventually` only at the ends of paths, and does not explore a visited state again. This is
//! sound here: a settled state stays settled, no state in which a step is possible is an end, and no path is infinite,
//! because requests, leases and kept places all end, and a lock that stays idle ends the path.

use stateright::Property;

use super::scenario::{CLAIMS, Scenario};
use super::state::{Client, Phase, State};

pub(super) const ALONE: &str = "no two clients hold the lock unless they share it";
pub(super) const ROLLED_BACK: &str = "every grant is reported or rolled back";
pub(super) const ONE_RESERVATION: &str = "at most one waiter can take the lock";
pub(super) const IN_ORDER: &str = "no claim overtakes an earlier waiter";
pub(super) const IN_TIME: &str = "no claim is granted after its wait timed out";
pub(super) const RESERVED: &str = "a step that opens the lock reserves it";
pub(super) const NOT_IDLE: &str = "an open lock with waiters is soon held";
pub(super) const SETTLED: &str = "every claim ends";
const PASSED_OVER: &str = "a process lets a reservation lapse";

pub(super) fn all() -> Vec<Property<Scenario>> {
    vec![
        Property::always(ALONE, are_apart),
        Property::always(ROLLED_BACK, |_, state| are_somebodys(state)),
        Property::always(ONE_RESERVATION, is_reserved_once),
        Property::always(IN_ORDER, |_, state: &State| !state.seen.overtook),
        Property::always(IN_TIME, |_, state: &State| !state.seen.granted_late),
        Property::always(RESERVED, |_, state: &State| !state.seen.is_unreserved),
        Property::always(NOT_IDLE, |scenario, state| {
            !is_idle_for_long(scenario, state)
        }),
        Property::eventually(SETTLED, |_, state| are_settled(state)),
        Property::sometimes(PASSED_OVER, |_, state: &State| {
            state.store.has_passed_over()
        }),
    ]
}

/// Whether to stop exploring this path.
pub(super) fn is_lost(scenario: &Scenario, state: &State) -> bool {
    has_broken_a_rule(state) || is_idle_for_long(scenario, state)
}

pub(super) fn is_settled(client: Client) -> bool {
    match client {
        Client::Done => true,
        Client::Away { may_come_again } => !may_come_again,
        Client::Idle | Client::Waiting(_) | Client::Holding => false,
    }
}

/// Whether the lock that the first live waiter wants is free.
pub(super) fn is_idle(scenario: &Scenario, state: &State) -> bool {
    let live = state.live_waiters();
    let live = live.filter(|(.., process)| state.runs(*process));
    let Some((_, first, _)) = live.min() else {
        return false;
    };
    let mut leases = state.store.leases.iter().enumerate();
    leases.all(|(claim, lease)| {
        lease.is_none_or(|lease| {
            let is_nobodys = claim < CLAIMS && !is_somebodys(state, claim);
            is_nobodys || lease.shared && scenario.shares[first]
        })
    })
}

/// When every message is lost, a reservation may lapse before its process polls, and the next one too. Any other fault
/// may cost one step more.
fn is_idle_for_long(scenario: &Scenario, state: &State) -> bool {
    let failures = scenario.delays + u8::from(scenario.may_crash) + u8::from(scenario.may_pause);
    state.seen.idle_for > 2 + failures
}

fn has_broken_a_rule(state: &State) -> bool {
    state.seen.overtook || state.seen.granted_late || state.seen.is_unreserved
}

/// A path that ended because it broke a rule fails by that rule, not by this one.
fn are_settled(state: &State) -> bool {
    has_broken_a_rule(state) || state.clients.into_iter().all(is_settled)
}

fn are_apart(scenario: &Scenario, state: &State) -> bool {
    let clients = state.clients.iter().zip(scenario.shares);
    let mut holding = clients.filter(|(client, _)| **client == Client::Holding);
    holding.clone().count() <= 1 || holding.all(|(_, shares)| shares)
}

fn are_somebodys(state: &State) -> bool {
    (0..CLAIMS).all(|claim| state.store.leases[claim].is_none() || is_somebodys(state, claim))
}

/// Whether a client or process knows of the lease, or is about to learn of it.
fn is_somebodys(state: &State, claim: usize) -> bool {
    let mut requests = state.requests[claim].iter();
    let is_handled = requests.any(|request| match request.phase {
        Phase::Waiting | Phase::Answering | Phase::Withdrawing { .. } => true,
        Phase::Suspending { then_withdraws } => then_withdraws,
        Phase::Over => false,
    });
    is_handled || state.clients[claim] == Client::Holding || state.seen.is_undelivered[claim]
}

/// At most one of the claims in the queue would be granted the lock if it polled now.
fn is_reserved_once(scenario: &Scenario, state: &State) -> bool {
    let takers = state.live_waiters().filter(|(_, claim, process)| {
        let (claim, process) = (*claim, *process);
        let (shares, mistake) = (scenario.shares[claim], scenario.mistake);
        state.store.waits_for(process, claim)
            && state.store.would_grant(claim, process, shares, mistake)
    });
    takers.count() <= 1
}
