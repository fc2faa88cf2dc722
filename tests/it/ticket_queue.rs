//! Exhaustive model checking of the queue protocol: three claims that wait for one lock on two processes, a store with
//! atomic steps, and all events between them in every order.
//!
//! The model is the queue in the contract of [`LockStore`](leasehold::store::LockStore) and in `src/store/redis/lua`,
//! and the polling of the service. It shares no code with them, but `recorded` has every step of recorded runs of the code
//! follow it, so the two cannot differ for one process; `contract` and `history` test what several do. `properties` has the
//! checked properties, `scenario` the possible faults. The tests also check that the properties are effective: each
//! [`Mistake`] breaks one.

mod calls;
mod model;
mod properties;
mod recorded;
mod scenario;
mod state;
mod steps;
mod store;

use std::collections::{BTreeSet, HashMap};

use stateright::{Checker, HasDiscoveries, Model};

use scenario::Scenario;

/// Deliberate mistakes in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// Processes wait for messages and never poll by themselves.
    WakesByMessageAlone,
    /// The lock is not reserved for the head waiter but granted to it without a poll.
    HandsTheLockOver,
    /// An open lock goes to the waiter that polls first.
    NoReservation,
    /// A waiter that polls is granted the lock although its wait has timed out.
    IgnoresTheTimeout,
    /// A waiter that leaves the queue does not pass on its reservation.
    SuspendKeepsTheReservation,
    /// A new claim takes an open lock before the waiters.
    NewcomersBarge,
    /// A process suspends a claim while a poll of it is in flight, and rolls that back only afterwards.
    SuspendsFirst,
    /// A process polls only for its first waiter, even when the outcome of another waiter's poll is unknown.
    PollsForTheFirstOnly,
    /// A request continues as if it had the place, although a later request of the same claim has taken it over.
    FormerRequestsContinue,
    /// An attempt that was rolled back can be granted again when another poll of it arrives late.
    UndoneIsForgotten,
}

/// Explores every state of the scenario.
fn holds(scenario: Scenario) {
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, the longest way has {} steps: {scenario:?}",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

/// Searches for a path on which the mistake breaks the property.
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

/// Whether a path returns to one of its earlier states.
fn has_cycle(scenario: Scenario) -> bool {
    let first = scenario.init_states()[0];
    // The visited states, and whether each is on the current path.
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

/// Otherwise the check of `eventually` properties would be incomplete.
#[test]
fn no_path_is_infinite() {
    assert!(!has_cycle(Scenario::calm()));
    assert!(!has_cycle(Scenario::crash()));
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
fn the_queue_holds_when_a_process_is_paused() {
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
fn the_queue_holds_when_a_poll_arrives_after_its_client_has_gone() {
    holds(Scenario::late_poll());
}

#[test]
fn the_queue_holds_when_a_wait_is_resumed_elsewhere() {
    holds(Scenario::resumed_wait());
}

#[test]
fn the_queue_holds_when_some_share_the_lock() {
    holds(Scenario::sharing());
}

#[test]
fn without_polling_a_lost_message_is_a_lost_wake_up() {
    let mistake = Mistake::WakesByMessageAlone;
    is_broken(properties::SETTLED, mistake, Scenario::calm());
    is_broken(properties::NOT_IDLE, mistake, Scenario::calm());
}

#[test]
fn a_lock_that_is_handed_over_has_no_owner_when_the_process_is_dead() {
    let mistake = Mistake::HandsTheLockOver;
    is_broken(properties::ROLLED_BACK, mistake, Scenario::crash());
}

#[test]
fn a_store_that_ignores_the_timeout_grants_too_late() {
    let mistake = Mistake::IgnoresTheTimeout;
    is_broken(properties::IN_TIME, mistake, Scenario::pause());
}

#[test]
fn a_reservation_that_is_not_passed_on_leaves_the_lock_open() {
    let mistake = Mistake::SuspendKeepsTheReservation;
    is_broken(properties::RESERVED, mistake, Scenario::hang_up());
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
fn a_lock_without_a_reservation_is_a_race() {
    is_broken(
        properties::ONE_RESERVATION,
        Mistake::NoReservation,
        Scenario::calm(),
    );
}

#[test]
fn suspending_before_rolling_back_leaves_an_abandoned_claim_in_the_queue() {
    let mistake = Mistake::SuspendsFirst;
    is_broken(properties::NOT_IDLE, mistake, Scenario::late_poll());
}

#[test]
fn a_lost_reply_without_another_poll_costs_the_claim_its_turn() {
    let mistake = Mistake::PollsForTheFirstOnly;
    is_broken(properties::IN_ORDER, mistake, Scenario::resumed_wait());
}

#[test]
fn a_former_request_that_continues_costs_the_later_one_its_place() {
    let mistake = Mistake::FormerRequestsContinue;
    is_broken(properties::IN_ORDER, mistake, Scenario::hang_up());
}

#[test]
fn a_rolled_back_attempt_that_is_granted_again_has_no_owner() {
    let mistake = Mistake::UndoneIsForgotten;
    is_broken(properties::ROLLED_BACK, mistake, Scenario::late_poll());
}

/// No step of the model leads to two holders, so this state is made by hand.
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
