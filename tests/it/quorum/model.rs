//! Exhaustive model checking of a grant by majority: three nodes, two claims on one lock, and the steps of their requests
//! in every order, with a node that loses its data and a clock that is ahead.
//!
//! A lease lasts until the next tick, and an execution ends with the second one. A request, its effect and its answer are one
//! step: no answer is lost, and no request arrives after its claim has ended. The model shares no code with the store, so it
//! proves the design only. The tests also check that the properties are effective: each [`Mistake`] breaks one.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const CLAIMS: usize = 2;
const MAJORITY: usize = 2;
const TICKS: u8 = 2;

/// How much time a tick takes on the clocks of nodes: more than they differ.
const TICK: u8 = 20;
const AHEAD: [u8; NODES] = [10, 0, 1];

const ORDER: &str = "a later grant has a larger token";
const OBEYED: &str = "no token is larger than that of the claim that holds";
const ALONE: &str = "at most one claim holds";

/// Deliberate mistakes in the protocol.
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
}

/// What the checker explores.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    losses: u8,
    mistake: Option<Mistake>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    holder: Option<usize>,
    counter: u8,
    has_no_vote: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Asks,
    Records,
    Granted,
    Ended,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Claim {
    phase: Phase,
    /// The tick of its first request, none before that.
    began: Option<u8>,
    asked: [bool; NODES],
    proposed: [u8; NODES],
    recorded: [bool; NODES],
    token: u8,
    /// The largest token that had been reported when it began.
    reported_before: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    tick: u8,
    losses: u8,
    nodes: [Node; NODES],
    claims: [Claim; CLAIMS],
    /// Set when a claim is reported as granted with a token that breaks the order.
    is_disordered: bool,
    /// Set when a claim is reported while another holds that has a smaller token.
    is_disobeyed: bool,
    /// Set when a claim is reported while another holds.
    are_two: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Ask(usize, usize),
    Decide(usize),
    Record(usize, usize),
    Report(usize),
    /// The claim is released, or its request given up.
    End(usize),
    /// The end arrives at a node.
    Free(usize, usize),
    Lose(usize),
    Tick,
}

impl Claim {
    fn votes(&self) -> usize {
        self.proposed.iter().filter(|token| **token > 0).count()
    }
}

impl State {
    /// Whether the claim was reported as granted, and its holder still relies on it.
    fn holds(&self, claim: usize) -> bool {
        let claim = &self.claims[claim];
        claim.phase == Phase::Granted && claim.began == Some(self.tick)
    }

    fn clock(&self, node: usize) -> u8 {
        1 + self.tick * TICK + AHEAD[node]
    }

    fn reported(&self) -> u8 {
        let reported = self
            .claims
            .iter()
            .filter(|claim| claim.phase == Phase::Granted);
        reported.map(|claim| claim.token).max().unwrap_or_default()
    }

    fn ask(&mut self, claim: usize, node: usize) {
        let (clock, tick, reported) = (self.clock(node), self.tick, self.reported());
        let (of_claim, at) = (&mut self.claims[claim], &mut self.nodes[node]);
        if of_claim.began.is_none() {
            of_claim.began = Some(tick);
            of_claim.reported_before = of_claim.reported_before.max(reported);
        }
        of_claim.asked[node] = true;
        if at.holder.is_none() && !at.has_no_vote {
            at.holder = Some(claim);
            at.counter = clock.max(at.counter + 1);
            of_claim.proposed[node] = at.counter;
        }
    }

    fn record(&mut self, claim: usize, node: usize, mistake: Option<Mistake>) {
        let (of_claim, at) = (&mut self.claims[claim], &mut self.nodes[node]);
        let is_held = at.holder == Some(claim);
        if is_held || mistake == Some(Mistake::RecordsUnconditionally) {
            at.counter = at.counter.max(of_claim.token);
            of_claim.recorded[node] = true;
        }
    }

    fn report(&mut self, claim: usize) {
        let token = self.claims[claim].token;
        let others = (0..CLAIMS).filter(|other| *other != claim && self.holds(*other));
        for other in others.collect::<Vec<_>>() {
            self.are_two |= self.claims[claim].began == Some(self.tick);
            self.is_disobeyed |= token >= self.claims[other].token;
        }
        self.is_disordered |= token <= self.claims[claim].reported_before;
        self.claims[claim].phase = Phase::Granted;
    }

    fn tick(&mut self) {
        self.tick += 1;
        for node in &mut self.nodes {
            node.holder = None;
            node.has_no_vote = false;
        }
    }
}

impl Model for Scenario {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (number, claim) in state.claims.iter().enumerate() {
            // Claims that have not begun are alike.
            let is_next = number == 0 || state.claims[number - 1].began.is_some();
            let is_late = claim.began != Some(state.tick);
            let ignores_time = matches!(
                self.mistake,
                Some(Mistake::IgnoresTheTime | Mistake::RecordsUnconditionally)
            );
            for node in 0..NODES {
                match claim.phase {
                    Phase::Asks if is_next && !claim.asked[node] => {
                        steps.push(Step::Ask(number, node));
                    }
                    Phase::Records if claim.proposed[node] > 0 && !claim.recorded[node] => {
                        steps.push(Step::Record(number, node));
                    }
                    Phase::Ended if state.nodes[node].holder == Some(number) => {
                        steps.push(Step::Free(number, node));
                    }
                    Phase::Asks | Phase::Records | Phase::Granted | Phase::Ended => {}
                }
            }
            let recorded = claim.recorded.iter().filter(|recorded| **recorded);
            match claim.phase {
                Phase::Asks if claim.votes() >= MAJORITY => steps.push(Step::Decide(number)),
                Phase::Records if recorded.count() >= MAJORITY && (!is_late || ignores_time) => {
                    steps.push(Step::Report(number));
                }
                Phase::Asks | Phase::Records | Phase::Granted | Phase::Ended => {}
            }
            if claim.began.is_some() && claim.phase != Phase::Ended {
                steps.push(Step::End(number));
            }
        }
        if state.losses < self.losses {
            steps.extend((0..NODES).map(Step::Lose));
        }
        if state.tick + 1 < TICKS {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = *state;
        match step {
            Step::Ask(claim, node) => next.ask(claim, node),
            Step::Decide(claim) => {
                let claim = &mut next.claims[claim];
                let proposed = claim.proposed.iter().copied().filter(|token| *token > 0);
                claim.token = match self.mistake {
                    Some(Mistake::TakesAnyToken) => proposed.min()?,
                    _ => proposed.max()?,
                };
                claim.phase = Phase::Records;
            }
            Step::Record(claim, node) => next.record(claim, node, self.mistake),
            Step::Report(claim) => next.report(claim),
            Step::End(claim) => {
                // What was reported stays known to the resource.
                let reported = next.reported();
                for later in next.claims.iter_mut().filter(|claim| claim.began.is_none()) {
                    later.reported_before = later.reported_before.max(reported);
                }
                next.claims[claim].phase = Phase::Ended;
            }
            Step::Free(_, node) => next.nodes[node].holder = None,
            Step::Lose(node) => {
                next.losses += 1;
                next.nodes[node] = Node {
                    has_no_vote: self.mistake != Some(Mistake::NoGrace),
                    ..Node::default()
                };
            }
            Step::Tick => next.tick(),
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, state: &State| !state.is_disordered),
            Property::always(OBEYED, |_, state: &State| !state.is_disobeyed),
            Property::always(ALONE, |_, state: &State| !state.are_two),
            Property::sometimes(
                "two claims are granted one after the other",
                |_, state: &State| {
                    state.claims[1].phase == Phase::Granted && state.claims[0].phase != Phase::Asks
                },
            ),
        ]
    }
}

/// Explores every state of the scenario.
fn holds(scenario: Scenario) {
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    println!("{} states: {scenario:?}", checker.unique_state_count());
    checker.assert_properties();
}

/// Searches for a path on which the mistake breaks the property.
fn is_broken(property: &'static str, mistake: Mistake, losses: u8) {
    let scenario = Scenario {
        losses,
        mistake: Some(mistake),
    };
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = scenario.checker().threads(2).finish_when(found);
    let checker = checker.spawn_bfs().join();
    let way = checker.discovery(property);
    let way = way.unwrap_or_else(|| panic!("{mistake:?} does no harm"));
    println!("{mistake:?}, {property}? {:?}", way.into_actions());
}

#[test]
fn tokens_are_ordered_and_claims_alone_whatever_the_order_of_steps() {
    holds(Scenario {
        losses: 0,
        mistake: None,
    });
}

#[test]
fn tokens_are_ordered_and_claims_alone_when_a_node_loses_its_data() {
    holds(Scenario {
        losses: 1,
        mistake: None,
    });
}

/// The order of tokens depends on no clock.
#[test]
fn tokens_are_ordered_though_nobody_checks_the_time() {
    holds(Scenario {
        losses: 0,
        mistake: Some(Mistake::IgnoresTheTime),
    });
}

#[test]
fn a_second_phase_without_condition_lets_a_claim_overtake_its_successor() {
    is_broken(OBEYED, Mistake::RecordsUnconditionally, 0);
}

#[test]
fn a_token_that_is_not_the_largest_breaks_the_order() {
    is_broken(ORDER, Mistake::TakesAnyToken, 0);
}

#[test]
fn a_node_that_votes_without_its_data_lets_two_claims_hold() {
    is_broken(ALONE, Mistake::NoGrace, 1);
}
