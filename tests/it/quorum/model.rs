//! Exhaustive model checking of a grant by majority: three nodes, two claims on one lock, and the steps of their requests
//! in every order, with a node that loses its data, and clocks that differ.
//!
//! Both protocols are checked for the same properties: the [two phases](Protocol::TwoPhases) of the store, and
//! [one round](Protocol::OneRound), which the store could use instead; [redlock.md] says why it does not. `state` has what
//! a step does, `steps` which steps are possible.
//!
//! A lease lasts until the next tick, and an execution ends with the second one. Where the network is unreliable, a request
//! arrives at any time or never, even after its claim has ended, and an answer arrives or is lost. The model shares no code
//! with the store, so it proves the design only. The tests also check that the properties are effective: each [`Mistake`]
//! breaks one, and the [mistakes of the code] that correspond to them fail tests of the code.
//!
//! [redlock.md]: ../../../docs/explanation/redlock.md
//! [mistakes of the code]: ../../mistakes.toml

mod state;
mod steps;

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use state::{CLAIMS, TICK};
use steps::{ALONE, OBEYED, ORDER};

/// How a claim gets a token that is larger than those of earlier claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// Each node proposes a token, and the largest proposal of a majority is recorded by a majority.
    TwoPhases,
    /// The process proposes its time. A node accepts what is larger than its counter, and otherwise shows the counter. Then
    /// the process proposes a token that is larger than the counters that it was shown.
    OneRound,
}

/// Deliberate mistakes in the protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// The second phase succeeds at nodes that do not hold the claim's lease any more, and nobody checks the time after it.
    RecordsUnconditionally,
    /// The token is that of one node, instead of the largest of a majority.
    TakesAnyToken,
    /// A node that has lost its data votes at once.
    NoGrace,
    /// A claim that was granted too late counts as granted. This alone does not break the order of tokens.
    IgnoresTheTime,
    /// In one round: a node accepts a token that is not larger than its counter.
    AcceptsAnyToken,
}

/// What the checker explores.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    protocol: Protocol,
    /// How often a node loses its data.
    losses: u8,
    /// The claims of which requests may arrive late or never, and answers be lost.
    is_unreliable: [bool; CLAIMS],
    /// By how much the clock of each claim's process is ahead. Two phases use no clock of a process.
    ahead: [u8; CLAIMS],
    mistake: Option<Mistake>,
}

/// Clocks of processes that differ by less than a tick, which is the length of the grace.
const CLOSE: [[u8; CLAIMS]; 2] = [[TICK / 2, 0], [0, TICK / 2]];

/// Clocks of processes that differ by more.
const FAR: [[u8; CLAIMS]; 2] = [[TICK * 3 / 2, 0], [0, TICK * 3 / 2]];

impl Scenario {
    fn two_phases() -> Self {
        Self {
            protocol: Protocol::TwoPhases,
            losses: 0,
            is_unreliable: [false; CLAIMS],
            ahead: [0; CLAIMS],
            mistake: None,
        }
    }

    /// The same by one round. The claims are not alike, so both orders of their clocks are checked.
    fn one_round(clocks: [[u8; CLAIMS]; 2]) -> [Self; 2] {
        clocks.map(|ahead| Self {
            protocol: Protocol::OneRound,
            ahead,
            ..Self::two_phases()
        })
    }

    fn with_a_loss(self) -> Self {
        Self { losses: 1, ..self }
    }

    fn unreliable_for(self, is_unreliable: [bool; CLAIMS]) -> Self {
        Self {
            is_unreliable,
            ..self
        }
    }

    fn with(self, mistake: Mistake) -> Self {
        Self {
            mistake: Some(mistake),
            ..self
        }
    }
}

/// Whether the run takes minutes rather than seconds, by `LEASEHOLD_QUORUM_MODEL=full`.
#[allow(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
fn explores_all() -> bool {
    std::env::var("LEASEHOLD_QUORUM_MODEL").is_ok_and(|extent| extent == "full")
}

/// Explores every state of the scenario.
fn holds(scenario: Scenario) {
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    println!("{} states: {scenario:?}", checker.unique_state_count());
    checker.assert_properties();
}

/// Searches for a path on which the property is broken.
fn is_broken(property: &'static str, scenario: Scenario) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = scenario.checker().threads(2).finish_when(found);
    let checker = checker.spawn_bfs().join();
    let way = checker.discovery(property);
    let way = way.unwrap_or_else(|| panic!("no harm is done by {scenario:?}"));
    println!("{property}? {scenario:?}: {:?}", way.into_actions());
}

#[test]
fn tokens_are_ordered_and_claims_alone_whatever_the_order_of_steps() {
    holds(Scenario::two_phases());
}

#[test]
fn tokens_are_ordered_and_claims_alone_when_a_node_loses_its_data() {
    holds(Scenario::two_phases().with_a_loss());
}

/// The order of tokens depends on no clock.
#[test]
fn tokens_are_ordered_though_nobody_checks_the_time() {
    holds(Scenario::two_phases().with(Mistake::IgnoresTheTime));
}

/// Of one claim, or, in a hundred times as many states, of both and when a node loses its data.
#[test]
fn tokens_are_ordered_and_claims_alone_whatever_is_late_or_lost() {
    let [ahead, behind] = Scenario::one_round(CLOSE);
    for scenario in [Scenario::two_phases(), ahead, behind] {
        if explores_all() {
            holds(scenario.unreliable_for([true; CLAIMS]).with_a_loss());
        } else {
            holds(scenario.unreliable_for([true, false]));
        }
    }
}

#[test]
fn one_round_is_as_good_while_the_clocks_of_processes_are_close() {
    for scenario in Scenario::one_round(CLOSE) {
        holds(scenario.with_a_loss());
    }
}

/// How wrong a clock is does not matter to nodes that remember.
#[test]
fn one_round_needs_no_clocks_while_nodes_keep_their_data() {
    for scenario in Scenario::one_round(FAR) {
        holds(scenario);
        holds(scenario.with(Mistake::IgnoresTheTime));
    }
}

/// A node that has forgotten its counter takes any token. In two phases it proposes its own time, which its grace has brought
/// past all tokens of the other nodes: the clocks of processes do not matter there.
#[test]
fn one_round_is_disordered_by_the_clock_of_a_process_when_a_node_loses_its_data() {
    let [behind, _] = Scenario::one_round(FAR);
    is_broken(ORDER, behind.with_a_loss());
}

/// The same of the code: `quorum::tokens::a_claim_that_is_delayed_past_its_lease`.
#[test]
fn a_second_phase_without_condition_lets_a_claim_overtake_its_successor() {
    let mistake = Mistake::RecordsUnconditionally;
    is_broken(OBEYED, Scenario::two_phases().with(mistake));
}

#[test]
fn a_token_that_is_not_the_largest_breaks_the_order() {
    let mistake = Mistake::TakesAnyToken;
    is_broken(ORDER, Scenario::two_phases().with(mistake));
}

/// The same of the code: `faults::quorum::a_node_that_lost_its_data_has_no_vote`.
#[test]
fn a_node_that_votes_without_its_data_lets_two_claims_hold() {
    let [one_round, _] = Scenario::one_round(CLOSE);
    for scenario in [Scenario::two_phases(), one_round] {
        is_broken(ALONE, scenario.with_a_loss().with(Mistake::NoGrace));
    }
}

#[test]
fn a_node_that_accepts_any_token_breaks_the_order() {
    let [behind, _] = Scenario::one_round(CLOSE);
    is_broken(ORDER, behind.with(Mistake::AcceptsAnyToken));
}
