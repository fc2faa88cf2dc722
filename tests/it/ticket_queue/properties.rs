//! What must always be so, what must come to be, and what must at least happen now and then for the rest to mean
//! something.
//!
//! An `eventually` is judged at the ends of paths alone, and a state that was met before is not gone through again. That is
//! sound here: what is settled stays settled, no state is an end in which anything can still happen, and no path goes on
//! for ever, because requests, leases and kept places all end and a lock that stands idle ends the story.

use stateright::Property;

use super::scenario::{CLAIMS, Scenario};
use super::state::{Client, Phase, State};

pub(super) const ALONE: &str = "no two clients hold the lock that do not share it";
pub(super) const GIVEN_BACK: &str = "what was granted is reported or given back";
pub(super) const ONE_OFFER: &str = "at most one waiter can take the lock";
pub(super) const IN_ORDER: &str = "nobody overtakes a waiter that came before";
pub(super) const IN_TIME: &str = "nothing is granted from a place whose time is over";
pub(super) const OFFERED: &str = "whoever opens the lock offers it";
pub(super) const NOT_IDLE: &str = "an open lock that is waited for is soon held";
pub(super) const SETTLED: &str = "every claim comes to an end";
const PASSED_OVER: &str = "a process lets an offer lapse";

pub(super) fn all() -> Vec<Property<Scenario>> {
    vec![
        Property::always(ALONE, are_apart),
        Property::always(GIVEN_BACK, |_, state| are_somebodys(state)),
        Property::always(ONE_OFFER, is_offered_once),
        Property::always(IN_ORDER, |_, state: &State| !state.seen.overtook),
        Property::always(IN_TIME, |_, state: &State| !state.seen.granted_late),
        Property::always(OFFERED, |_, state: &State| !state.seen.kept_secret),
        Property::always(NOT_IDLE, |scenario, state| {
            !is_idle_for_long(scenario, state)
        }),
        Property::eventually(SETTLED, |_, state| are_settled(state)),
        Property::sometimes(PASSED_OVER, |_, state: &State| {
            state.store.has_passed_over()
        }),
    ]
}

/// Whether there is no use in going on.
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

/// Whether nobody holds the lock that the first live waiter wants.
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

/// When every message is lost, an offer may lapse before its process looks, and the next one too. Whatever else goes wrong
/// may cost one step more.
fn is_idle_for_long(scenario: &Scenario, state: &State) -> bool {
    let failures =
        scenario.delays + u8::from(scenario.may_crash) + u8::from(scenario.may_stand_still);
    state.seen.idle_for > 2 + failures
}

fn has_broken_a_rule(state: &State) -> bool {
    state.seen.overtook || state.seen.granted_late || state.seen.kept_secret
}

/// A story that ended because it broke a rule is judged by that rule.
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

/// Whether somebody knows of a lease, or is about to find out.
fn is_somebodys(state: &State, claim: usize) -> bool {
    let mut requests = state.requests[claim].iter();
    let is_looked_after = requests.any(|request| match request.phase {
        Phase::Waiting | Phase::Answering | Phase::Withdrawing { .. } => true,
        Phase::Parking { then_withdraws } => then_withdraws,
        Phase::Over => false,
    });
    is_looked_after || state.clients[claim] == Client::Holding || state.seen.is_untold[claim]
}

/// Of the claims that stand in the queue, at most one would be granted the lock if it asked now.
fn is_offered_once(scenario: &Scenario, state: &State) -> bool {
    let takers = state.live_waiters().filter(|(_, claim, process)| {
        let (claim, process) = (*claim, *process);
        let (shares, mistake) = (scenario.shares[claim], scenario.mistake);
        state.store.waits_for(process, claim)
            && state.store.would_grant(claim, process, shares, mistake)
    });
    takers.count() <= 1
}
