//! The protocol of the queue, gone through in full: three claims that wait for one lock on two processes, a store whose
//! steps are atomic, and everything that can happen between them in every order.
//!
//! The model is the queue of the contract of [`LockStore`](leasehold::store::LockStore) and of `src/store/redis/lua`, and the
//! way in which the service asks; it shares no code with them. What is checked is in `properties`, what may go wrong in
//! `scenario`. That the properties mean something is checked as well: each [`Mistake`] breaks one.

mod model;
mod properties;
mod scenario;
mod state;
mod steps;
mod store;

use std::collections::{BTreeSet, HashMap};

use stateright::{Checker, HasDiscoveries, Model};

use scenario::Scenario;

/// Ways to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// Processes wait for messages and do not look by themselves.
    WakesByMessageAlone,
    /// The lock is not offered to the first waiter but granted, without its asking.
    HandsTheLockOver,
    /// An open lock goes to the waiter that asks first.
    OffersToAll,
    /// A waiter that asks is granted the lock though its time is over.
    NoLookAtTheTime,
    /// A waiter that steps out does not pass on what was offered to it.
    ParkKeepsTheOffer,
    /// A claim that is new takes an open lock past those that wait.
    NewcomersBarge,
    /// A process parks a claim of which an ask is under way, and withdraws that only afterwards.
    ParksFirst,
    /// A process asks for its first waiter alone, also when nobody knows what became of another one's ask.
    FirstAloneAsks,
    /// A request goes on as if it had the place that a later request for the same claim has taken along.
    FormerRequestsGoOn,
    /// An attempt that was undone may be granted again when another ask of it arrives late.
    UndoneIsForgotten,
}

/// Goes through every state of the story.
fn holds(scenario: Scenario) {
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, the longest way has {} steps: {scenario:?}",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

/// Looks for a way in which the mistake breaks the property.
fn is_broken(property: &'static str, mistake: Mistake, scenario: Scenario) {
    let scenario = Scenario {
        mistake: Some(mistake),
        ..scenario
    };
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = scenario.checker().threads(2).finish_when(found);
    let checker = checker.spawn_dfs().join();
    let way = checker.discovery(property);
    let way = way.unwrap_or_else(|| panic!("{mistake:?} does no harm in {scenario:?}"));
    println!("{mistake:?}, {property}? {:?}", way.into_actions());
}

/// Whether a path comes back to a state that it has gone through.
fn goes_in_a_circle(scenario: Scenario) -> bool {
    let first = scenario.init_states()[0];
    // Whether the path that is being followed goes through the state.
    let mut is_on_path = HashMap::from([(first, true)]);
    let mut path = vec![(first, scenario.next_states(&first))];
    while let Some((state, ahead)) = path.last_mut() {
        let Some(next) = ahead.pop() else {
            is_on_path.insert(*state, false);
            path.pop();
            continue;
        };
        match is_on_path.insert(next, true) {
            Some(true) => return true,
            Some(false) => drop(is_on_path.insert(next, false)),
            None => path.push((next, scenario.next_states(&next))),
        }
    }
    false
}

/// Else what never comes to be would go unnoticed.
#[test]
fn no_story_goes_on_for_ever() {
    assert!(!goes_in_a_circle(Scenario::calm()));
    assert!(!goes_in_a_circle(Scenario::crash()));
}

#[test]
fn the_queue_holds_whatever_becomes_of_messages() {
    holds(Scenario::calm());
}

#[test]
fn the_queue_holds_when_a_process_dies() {
    holds(Scenario::crash());
}

#[test]
fn the_queue_holds_when_a_process_stands_still() {
    holds(Scenario::pause());
}

#[test]
fn the_queue_holds_when_a_client_moves_to_another_process() {
    holds(Scenario::hang_up());
}

#[test]
fn the_queue_holds_when_a_client_comes_back() {
    holds(Scenario::return_home());
}

#[test]
fn the_queue_holds_when_an_ask_arrives_after_its_client_has_gone() {
    holds(Scenario::late_ask());
}

#[test]
fn the_queue_holds_when_a_wait_goes_on_elsewhere() {
    holds(Scenario::resumed_wait());
}

#[test]
fn the_queue_holds_when_some_share_the_lock() {
    holds(Scenario::sharing());
}

#[test]
fn without_looking_a_lost_message_is_a_lost_wake_up() {
    let mistake = Mistake::WakesByMessageAlone;
    is_broken(properties::SETTLED, mistake, Scenario::calm());
    is_broken(properties::NOT_IDLE, mistake, Scenario::calm());
}

#[test]
fn a_lock_that_is_handed_over_is_nobodys_when_the_process_is_dead() {
    let mistake = Mistake::HandsTheLockOver;
    is_broken(properties::GIVEN_BACK, mistake, Scenario::crash());
}

#[test]
fn without_a_look_at_the_time_a_waiter_is_granted_too_late() {
    let mistake = Mistake::NoLookAtTheTime;
    is_broken(properties::IN_TIME, mistake, Scenario::pause());
}

#[test]
fn an_offer_that_is_not_passed_on_leaves_the_lock_open() {
    let mistake = Mistake::ParkKeepsTheOffer;
    is_broken(properties::OFFERED, mistake, Scenario::hang_up());
}

#[test]
fn a_newcomer_that_barges_overtakes() {
    is_broken(
        properties::IN_ORDER,
        Mistake::NewcomersBarge,
        Scenario::calm(),
    );
}

#[test]
fn an_offer_to_all_is_a_race() {
    is_broken(
        properties::ONE_OFFER,
        Mistake::OffersToAll,
        Scenario::calm(),
    );
}

#[test]
fn parking_before_withdrawing_leaves_a_claim_in_the_queue_that_nobody_asks_for() {
    let mistake = Mistake::ParksFirst;
    is_broken(properties::NOT_IDLE, mistake, Scenario::late_ask());
}

#[test]
fn a_lost_answer_that_nobody_asks_for_again_costs_the_claim_its_turn() {
    let mistake = Mistake::FirstAloneAsks;
    is_broken(properties::IN_ORDER, mistake, Scenario::resumed_wait());
}

#[test]
fn a_former_request_that_goes_on_costs_the_later_one_its_place() {
    let mistake = Mistake::FormerRequestsGoOn;
    is_broken(properties::IN_ORDER, mistake, Scenario::hang_up());
}

#[test]
fn an_undone_attempt_that_is_granted_again_is_nobodys() {
    let mistake = Mistake::UndoneIsForgotten;
    is_broken(properties::GIVEN_BACK, mistake, Scenario::late_ask());
}

/// No step of the model makes two holders of it; this one has to be made by hand.
#[test]
fn two_holders_are_seen() {
    let scenario = Scenario::calm();
    let mut state = scenario.init_states().remove(0);
    state.clients = [
        state::Client::Holding,
        state::Client::Holding,
        state::Client::Idle,
    ];
    let alone = scenario.property(properties::ALONE);
    assert!(!(alone.condition)(&scenario, &state));
}
