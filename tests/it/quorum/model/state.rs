//! The state of nodes and claims, and what each step does to it.

use super::{Mistake, Protocol, Scenario};

pub(super) const NODES: usize = 3;
pub(super) const CLAIMS: usize = 2;
pub(super) const MAJORITY: usize = 2;
pub(super) const TICKS: u8 = 2;

/// How much time a tick takes on clocks: more than those of nodes differ.
pub(super) const TICK: u8 = 20;
const AHEAD: [u8; NODES] = [10, 0, 1];

/// The requests of a claim to a node: the first asks for the lock. In two phases the second has a token recorded; in one
/// round it asks again, with a larger token.
pub(super) const REQUESTS: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) holder: Option<usize>,
    pub(super) counter: u8,
    pub(super) has_no_vote: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// Its first requests are on their way.
    Asks,
    /// Its second requests are, too.
    Decided,
    Granted,
    Ended,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) phase: Phase,
    /// The tick in which it began.
    pub(super) began: u8,
    /// The token of its latest request.
    pub(super) token: u8,
    /// The token of its first request, in one round.
    pub(super) first_token: u8,
    /// Which requests nodes have executed, and which of those succeeded.
    pub(super) executed: [[bool; NODES]; REQUESTS],
    pub(super) accepted: [[bool; NODES]; REQUESTS],
    /// What nodes answered to the first request: the token that they propose, or the counter by which they refuse one.
    pub(super) answered: [u8; NODES],
    /// The largest token that had been reported when it began.
    pub(super) reported_before: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) tick: u8,
    pub(super) losses: u8,
    pub(super) nodes: [Node; NODES],
    pub(super) claims: [Claim; CLAIMS],
    /// The largest token that has been reported; the resource knows it.
    pub(super) reported: u8,
    /// Set when a claim is reported as granted with a token that breaks the order.
    pub(super) is_disordered: bool,
    /// Set when a claim is reported while another holds that has a smaller token.
    pub(super) is_disobeyed: bool,
    /// Set when a claim is reported while another holds.
    pub(super) are_two: bool,
}

impl Claim {
    /// The nodes that are known to have granted it the lock for good.
    pub(super) fn has_majority(&self, scenario: &Scenario) -> bool {
        let [first, second] = self.accepted;
        let counts = |node: &usize| match (scenario.protocol, self.phase) {
            (_, Phase::Decided) => second[*node],
            (Protocol::OneRound, Phase::Asks) => first[*node],
            (_, _) => false,
        };
        (0..NODES).filter(counts).count() >= MAJORITY
    }

    pub(super) fn is_late(&self, tick: u8) -> bool {
        self.began != tick
    }
}

impl State {
    /// Whether the claim was reported as granted, and its holder still relies on it.
    fn holds(&self, claim: usize) -> bool {
        let claim = &self.claims[claim];
        claim.phase == Phase::Granted && !claim.is_late(self.tick)
    }

    fn clock(&self) -> u8 {
        1 + self.tick * TICK
    }

    pub(super) fn begin(&mut self, claim: usize, scenario: &Scenario) {
        let token = match scenario.protocol {
            Protocol::TwoPhases => 0,
            Protocol::OneRound => self.clock() + scenario.ahead[claim],
        };
        self.claims[claim] = Claim {
            phase: Phase::Asks,
            began: self.tick,
            token,
            first_token: token,
            reported_before: self.reported,
            ..Claim::default()
        };
    }

    /// A node executes a request.
    pub(super) fn execute(
        &mut self,
        claim: usize,
        node: usize,
        request: usize,
        scenario: &Scenario,
    ) {
        self.claims[claim].executed[request][node] = true;
        self.claims[claim].accepted[request][node] = match (scenario.protocol, request) {
            (Protocol::TwoPhases, 0) => self.propose(claim, node),
            (Protocol::TwoPhases, _) => self.record(claim, node, scenario.mistake),
            (Protocol::OneRound, _) => self.accept(claim, node, request, scenario.mistake),
        };
    }

    fn propose(&mut self, claim: usize, node: usize) -> bool {
        let clock = self.clock() + AHEAD[node];
        let (of_claim, at) = (&mut self.claims[claim], &mut self.nodes[node]);
        let is_free = at.holder.is_none() && !at.has_no_vote;
        if is_free {
            at.holder = Some(claim);
            at.counter = clock.max(at.counter + 1);
            of_claim.answered[node] = at.counter;
        }
        is_free
    }

    fn record(&mut self, claim: usize, node: usize, mistake: Option<Mistake>) -> bool {
        let at = &mut self.nodes[node];
        let is_held = at.holder == Some(claim);
        let records = is_held || mistake == Some(Mistake::RecordsUnconditionally);
        if records {
            at.counter = at.counter.max(self.claims[claim].token);
        }
        records
    }

    fn accept(
        &mut self,
        claim: usize,
        node: usize,
        request: usize,
        mistake: Option<Mistake>,
    ) -> bool {
        let (of_claim, at) = (&mut self.claims[claim], &mut self.nodes[node]);
        let token = [of_claim.first_token, of_claim.token][request];
        let is_free = at.holder.is_none_or(|holder| holder == claim) && !at.has_no_vote;
        let is_larger = token > at.counter || mistake == Some(Mistake::AcceptsAnyToken);
        if is_free && is_larger {
            at.holder = Some(claim);
            at.counter = at.counter.max(token);
        } else if is_free && request == 0 {
            of_claim.answered[node] = at.counter;
        }
        is_free && is_larger
    }

    /// The process decides on a token by the answers of these nodes to its first requests.
    pub(super) fn decide(&mut self, claim: usize, answers: &[usize], scenario: &Scenario) {
        let of_claim = &mut self.claims[claim];
        let answered = answers.iter().map(|node| of_claim.answered[*node]);
        let largest = answered.clone().max().unwrap_or_default();
        of_claim.phase = Phase::Decided;
        of_claim.token = match (scenario.protocol, scenario.mistake) {
            (Protocol::TwoPhases, Some(Mistake::TakesAnyToken)) => {
                answered.min().unwrap_or_default()
            }
            (Protocol::TwoPhases, _) => largest,
            (Protocol::OneRound, _) => largest + 1,
        };
        let agree = |node: &&usize| of_claim.answered[**node] == of_claim.token;
        let agreed: Vec<usize> = answers.iter().filter(agree).copied().collect();
        if scenario.protocol == Protocol::TwoPhases && agreed.len() >= MAJORITY {
            // A majority has the token already.
            for node in agreed {
                of_claim.executed[1][node] = true;
                of_claim.accepted[1][node] = true;
            }
        }
    }

    pub(super) fn report(&mut self, claim: usize) {
        let Claim {
            token,
            reported_before,
            ..
        } = self.claims[claim];
        let others = (0..CLAIMS).filter(|other| *other != claim && self.holds(*other));
        for other in others.collect::<Vec<_>>() {
            self.are_two |= !self.claims[claim].is_late(self.tick);
            self.is_disobeyed |= token >= self.claims[other].token;
        }
        self.is_disordered |= token <= reported_before;
        self.reported = self.reported.max(token);
        self.claims[claim].phase = Phase::Granted;
    }

    pub(super) fn lose(&mut self, node: usize, mistake: Option<Mistake>) {
        self.losses += 1;
        self.nodes[node] = Node {
            has_no_vote: mistake != Some(Mistake::NoGrace),
            ..Node::default()
        };
    }

    /// Drops details that cannot matter any more, so that states that differ only in these become equal.
    pub(super) fn forget(&mut self, is_unreliable: [bool; CLAIMS]) {
        for (claim, is_unreliable) in self.claims.iter_mut().zip(is_unreliable) {
            let is_over = matches!(claim.phase, Phase::Granted | Phase::Ended);
            if claim.phase == Phase::Decided || is_over {
                claim.answered = [0; NODES];
            }
            if claim.phase == Phase::Ended {
                (claim.began, claim.reported_before) = (0, 0);
            }
            if is_over && !is_unreliable {
                *claim = Claim {
                    phase: claim.phase,
                    began: claim.began,
                    token: claim.token,
                    reported_before: claim.reported_before,
                    ..Claim::default()
                };
            }
        }
    }

    pub(super) fn tick(&mut self) {
        self.tick += 1;
        for node in &mut self.nodes {
            node.holder = None;
            node.has_no_vote = false;
        }
    }
}
