//! The steps that are possible in a state, and the properties.

use stateright::{Model, Property};

use super::state::{CLAIMS, Claim, MAJORITY, NODES, Phase, REQUESTS, State, TICKS};
use super::{Mistake, Protocol, Scenario};

pub(super) const ORDER: &str = "a later grant has a larger token";
pub(super) const OBEYED: &str = "no token is larger than that of the claim that holds";
pub(super) const ALONE: &str = "at most one claim holds";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The claim sends its first request to every node.
    Begin(usize),
    /// A node executes a request of the claim.
    Execute {
        claim: usize,
        node: usize,
        request: usize,
    },
    /// The answers of these nodes to the first request have arrived, and are enough: the second request goes to every node.
    Decide(usize, Nodes),
    Report(usize),
    /// The claim is released, or its request given up.
    End(usize),
    /// The end arrives at a node.
    Free(usize, usize),
    Lose(usize),
    Tick,
}

/// A set of nodes, with a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nodes(u8);

impl Nodes {
    fn all() -> impl Iterator<Item = Self> {
        (1..1 << NODES).map(Self)
    }

    fn to_vec(self) -> Vec<usize> {
        let is_in = |node: &usize| self.0 & 1 << node != 0;
        (0..NODES).filter(is_in).collect()
    }
}

impl Scenario {
    fn of_claim(&self, state: &State, number: usize, steps: &mut Vec<Step>) {
        let claim = &state.claims[number];
        // Claims that have not begun are alike, except for their clocks, of which both orders are checked.
        let is_next = number == 0 || state.claims[number - 1].phase != Phase::Idle;
        if claim.phase == Phase::Idle {
            steps.extend(is_next.then_some(Step::Begin(number)));
            return;
        }
        for node in 0..NODES {
            for request in 0..REQUESTS {
                if self.may_execute(number, claim, node, request) {
                    steps.push(Step::Execute {
                        claim: number,
                        node,
                        request,
                    });
                }
            }
            if claim.phase == Phase::Ended && state.nodes[node].holder == Some(number) {
                steps.push(Step::Free(number, node));
            }
        }
        if claim.phase == Phase::Asks {
            let sets = Nodes::all().filter(|nodes| self.may_decide(number, claim, *nodes));
            steps.extend(sets.map(|nodes| Step::Decide(number, nodes)));
        }
        let ignores_time = matches!(
            self.mistake,
            Some(Mistake::IgnoresTheTime | Mistake::RecordsUnconditionally)
        );
        if claim.has_majority(self) && (!claim.is_late(state.tick) || ignores_time) {
            steps.push(Step::Report(number));
        }
        if claim.phase != Phase::Ended {
            steps.push(Step::End(number));
        }
    }

    /// Whether the request was sent to the node, and may arrive now. Without an unreliable network, a request is executed
    /// while the claim waits for its answer.
    fn may_execute(&self, number: usize, claim: &Claim, node: usize, request: usize) -> bool {
        let is_sent = match (request, self.protocol) {
            (0, _) => true,
            (_, Protocol::TwoPhases) => claim.token > 0 && claim.accepted[0][node],
            (_, Protocol::OneRound) => claim.token != claim.first_token,
        };
        let is_waited_for = claim.phase == [Phase::Asks, Phase::Decided][request];
        is_sent && !claim.executed[request][node] && (is_waited_for || self.is_unreliable[number])
    }

    /// Whether the process may decide by the answers of these nodes. Without an unreliable network, all answers arrive.
    fn may_decide(&self, number: usize, claim: &Claim, nodes: Nodes) -> bool {
        let has_answered = |node: &usize| claim.answered[*node] > 0;
        let nodes = nodes.to_vec();
        let are_all = nodes.len() == (0..NODES).filter(has_answered).count();
        let least = match self.protocol {
            Protocol::TwoPhases => MAJORITY,
            Protocol::OneRound => 1,
        };
        nodes.len() >= least
            && nodes.iter().all(has_answered)
            && (are_all || self.is_unreliable[number])
    }
}

impl Model for Scenario {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for claim in 0..CLAIMS {
            self.of_claim(state, claim, steps);
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
            Step::Begin(claim) => next.begin(claim, self),
            Step::Execute {
                claim,
                node,
                request,
            } => next.execute(claim, node, request, self),
            Step::Decide(claim, nodes) => next.decide(claim, &nodes.to_vec(), self),
            Step::Report(claim) => next.report(claim),
            Step::End(claim) => next.claims[claim].phase = Phase::Ended,
            Step::Free(_, node) => next.nodes[node].holder = None,
            Step::Lose(node) => next.lose(node, self.mistake),
            Step::Tick => next.tick(),
        }
        next.forget(self.is_unreliable);
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
                    let [first, second] = state.claims;
                    second.phase == Phase::Granted
                        && second.reported_before > 0
                        && first.phase == Phase::Ended
                },
            ),
        ]
    }
}
