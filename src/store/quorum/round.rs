//! One round of an acquire: all nodes are asked at once, a majority decides, and every node follows the decision.
//!
//! Phase 1 asks each node to grant the locks; its lease has a fencing token that the node proposes. Phase 2 records the
//! largest proposal F at a majority, at nodes that still hold the lease of phase 1.
//!
//! Why the tokens are ordered: let A and B be two grants that exclude each other and succeeded. The majorities of their
//! second phases have a common node. It held A's lease from A's phase 1 to A's phase 2, and B's from B's phase 1 to B's
//! phase 2; it cannot have held both, so one of the two, say A's, came first. When the node proposed a token to B, its
//! counter had reached F of A, so F of B is larger. This needs no clock, and no bound on delays. It does need that nodes do
//! not forget, which is why a node that has lost its data has no vote until every lease that it may have forgotten has
//! ended.
//!
//! If a majority has the claim's leases from before, nothing is granted: a node that lacked them, and has granted them by this
//! request, does not count, and gets them as that majority has them. Otherwise what a claim has asked for first, like its
//! `max_hold`, would not last.
//!
//! A client may repeat its request at another process. Then two rounds decide on the token of one lease, each by what it knows
//! of the nodes. A node changes the token only for the attempt that has received the lease last. So what a round has
//! recorded at a majority is not changed by what an earlier one still sends.
//!
//! Claims that share a lock hold it together and are not ordered, but their tokens differ: a node gives no token twice.
//! What it records for such a claim is the token that the lease has there already, or one above its counter. If too few
//! nodes can record F, a larger token is decided, above their counters.
//!
//! A variant takes one round trip: the process proposes its time to all nodes, and a node accepts a token above its counter.
//! The model in the tests has both, and finds the same promises kept while nodes remember. But a node that has forgotten its
//! counter accepts what any process proposes: then one whose clock is behind by more than the grace breaks the order. Here a
//! node proposes, by its own clock, which its grace has brought past what the others have recorded. That is what the second
//! round trip pays for; when a majority proposes the same token, it is left out.

mod part;

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use self::part::RoundPart;
use super::answers::{ByNode, NodeAnswers};
use super::attempts::Attempts;
use super::decision::{Assignment, Decision, Kept};
use super::nodes::Nodes;
use super::recording::{Recording, recorded};
use super::restoring::HeldBefore;
use super::verdict;
use crate::domain::{Acquired, Attempt, Claim, Fence, QueueRequest, Ticket};
use crate::telemetry::traces;

/// What the nodes are asked.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// The claim as the nodes get it.
    pub(super) claim: Arc<Claim>,
    /// The attempt of the client's request.
    pub(super) requested: Attempt,
    /// What the nodes know it by.
    pub(super) attempt: Attempt,
    pub(super) request: Option<QueueRequest>,
    /// When the nodes no longer grant it anything.
    pub(super) deadline: Instant,
    /// When the round is over. To record a token changes nothing that a later request could have changed.
    pub(super) ends: Instant,
    /// The time of this process's clock, in microseconds since 1970.
    pub(super) now_us: u64,
}

/// A round in progress. Dropped, it is rolled back.
pub(super) struct Round {
    decision: watch::Sender<Decision>,
    assignments: u8,
    nodes: usize,
    ends: Instant,
}

impl Ask {
    /// Has the next round ask with another attempt, because nodes refuse this one from now on.
    pub(super) fn rename(&self, attempts: &Attempts) {
        attempts.rename(self.claim.token, self.requested, self.attempt);
    }

    /// Asks from this place in the queues.
    pub(super) fn take_place(&mut self, sequence: u64) {
        if let Some(request) = &mut self.request {
            let until = request.ticket.and_then(|ticket| ticket.until);
            request.ticket = Some(Ticket { sequence, until });
        }
    }
}

impl Round {
    /// Asks all nodes. Also returns where their votes come, and where those come that follow [`place`](Self::place).
    pub(super) fn begin(
        nodes: &Nodes,
        attempts: &Attempts,
        ask: &Ask,
    ) -> (Self, [NodeAnswers<Acquired>; 2]) {
        let (decision, decided) = watch::channel(Decision::Open);
        let count = nodes.all().len();
        let (vote, votes) = NodeAnswers::waiting_for(verdict::rest_max, count);
        let (vote_again, votes_at_place) = NodeAnswers::of(count);
        for at_node in nodes.in_turn(ask.claim.token) {
            let index = at_node.index;
            let part = RoundPart {
                index,
                node: at_node.store,
                turn: at_node.turn,
                follow_ups: at_node.follow_ups,
                token_lead: at_node.token_lead,
                attempts: attempts.clone(),
                ask: ask.clone(),
                decision: decided.clone(),
            };
            let (vote, vote_again) = (vote.clone(), vote_again.clone());
            // The round may be over before a node answers.
            let vote = move |answer| drop(vote.send((index, answer)));
            let vote_again = move |answer| drop(vote_again.send((index, answer)));
            tokio::spawn(traces::inherit(part.run(vote, vote_again)));
        }
        let round = Self {
            decision,
            assignments: 0,
            nodes: count,
            ends: ask.ends,
        };
        (round, [votes, votes_at_place])
    }

    /// Has the claim enqueued at one place at all nodes, which vote again then.
    pub(super) fn place(&self, sequence: u64) {
        self.decision.send_replace(Decision::Place(sequence));
    }

    /// Has the tokens recorded, only by nodes that have the leases from before if a majority does. Returns what each node has
    /// done.
    pub(super) async fn record(&mut self, decided: &[Fence], were_held: bool) -> ByNode<Recording> {
        let (sender, answers) = NodeAnswers::of(self.nodes);
        self.decision.send_replace(Decision::Assign(Assignment {
            number: self.assignments,
            decided: decided.into(),
            were_held,
            answers: sender,
        }));
        self.assignments += 1;
        let is_decided = |answers: &ByNode<Recording>| {
            let recorded = recorded(answers).count();
            let majority = answers.majority();
            recorded >= majority || recorded + answers.missing() < majority
        };
        answers.until(self.ends, is_decided).await
    }

    /// Ends the round: the claim holds its locks with these tokens, and has held them before in this way.
    pub(super) fn keep(self, decided: &[Fence], held_before: Option<HeldBefore>) {
        self.decision.send_replace(Decision::Keep(Kept {
            decided: decided.into(),
            held_before: held_before.map(Arc::new),
        }));
    }

    /// Ends the round: whatever nodes have granted is rolled back. If the claim waits, it does so at this place.
    pub(super) fn roll_back(self, place: Option<u64>) {
        self.decision.send_replace(Decision::RollBack(place));
    }
}
