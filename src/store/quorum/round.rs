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

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep};

use super::answers::{ByNode, NodeAnswers};
use super::attempts::Attempts;
use super::decision::{Assignment, Decision};
use super::drift::{TOO_FAR_AHEAD, TokenLead};
use super::follow_ups::{FollowUps, confirm};
use super::late_changes::of_acquire;
use super::nodes::{NodeStore, Nodes, answered_by};
use super::recording::{Recorded, Recording, changes, recorded};
use super::turns::NodeTurn;
use super::verdict::fences;
use crate::domain::{
    Acquired, Attempt, Claim, Fence, GrantKind, Granted, HoldCount, QueueRequest, Rollback, Ticket,
};
use crate::store::assignment::{Assigned, FenceChange};
use crate::store::{Fault, StoreError, StoreResult};
use crate::telemetry::traces;

/// When a node that did not grant what a majority has granted is asked again: what was in the way there is mostly the lease
/// of a contender that is being rolled back.
const CATCH_UP_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(150)];

/// How long one step of catching up may take.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);

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

/// The part of one node.
struct RoundPart {
    index: usize,
    node: NodeStore,
    turn: NodeTurn,
    follow_ups: FollowUps,
    token_lead: TokenLead,
    attempts: Attempts,
    ask: Ask,
    decision: watch::Receiver<Decision>,
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
        let (vote, votes) = NodeAnswers::of(count);
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

    /// Has the tokens recorded. Returns what each node has done.
    pub(super) async fn record(&mut self, decided: &[Fence]) -> ByNode<Recording> {
        let (sender, answers) = NodeAnswers::of(self.nodes);
        self.decision.send_replace(Decision::Assign(Assignment {
            number: self.assignments,
            decided: decided.into(),
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

    /// Ends the round: the claim holds its locks.
    pub(super) fn keep(self, decided: &[Fence]) {
        self.decision.send_replace(Decision::Keep(decided.into()));
    }

    /// Ends the round: whatever nodes have granted is rolled back. If the claim waits, it does so at this place.
    pub(super) fn roll_back(self, place: Option<u64>) {
        self.decision.send_replace(Decision::RollBack(place));
    }
}

impl RoundPart {
    /// Takes part in the round at one node, from the request to the end that was decided.
    async fn run(
        mut self,
        vote: impl FnOnce(StoreResult<Acquired>) + Send,
        vote_again: impl FnOnce(StoreResult<Acquired>) + Send,
    ) {
        let mut answer = self.acquire().await;
        let mut may_hold = may_hold(&answer);
        vote(answer.clone());
        // The majority does not wait for a node that has not answered.
        let follow_up = answer.is_err().then(|| self.follow_ups.begin());
        if let Some(None) = follow_up {
            return;
        }
        let follow_up = follow_up.flatten();
        self.turn.begins().await;
        let mut decision = self.decided(0).await;
        if let Decision::Place(sequence) = decision {
            self.ask.take_place(sequence);
            self.ask.deadline = of_acquire(&self.ask.claim, self.ask.ends);
            answer = self.acquire().await;
            may_hold |= self::may_hold(&answer);
            vote_again(answer.clone());
            decision = self.decided(1).await;
        }
        let granted = match &answer {
            Ok(Acquired::Granted(granted)) => Some(granted.clone()),
            Ok(_) | Err(_) => None,
        };
        let mut present = granted.as_ref().map(fences);
        let mut is_recorded = false;
        while let Decision::Assign(assignment) = &decision {
            let decided = &assignment.decided;
            let recording = match (&granted, &present) {
                (Some(granted), Some(present)) => self.record(granted, present, decided).await,
                (_, _) => Ok(Recording::NotHeld),
            };
            is_recorded = matches!(recording, Ok(Recording::Recorded(_)));
            if is_recorded {
                present = Some(decided.to_vec());
            }
            // The round may be over before a node answers.
            let _ = assignment.answers.send((self.index, recording));
            decision = self.decided(decision.stage()).await;
        }
        match decision {
            // A node that proposed the tokens that were decided has nothing to catch up with.
            Decision::Keep(decided) if !is_recorded && present.as_deref() != Some(&*decided) => {
                if let Some(_permit) = follow_up.or_else(|| self.follow_ups.begin()) {
                    self.catch_up(present, &decided).await;
                }
            }
            Decision::Keep(_) => {}
            Decision::RollBack(place) => self.end(may_hold, &answer, place, follow_up).await,
            Decision::Open | Decision::Place(_) | Decision::Assign(_) => {
                self.end(may_hold, &answer, None, follow_up).await;
            }
        }
    }

    /// Ends the part of a node in a round that has granted nothing. `follow_up` is its permit to go on alone, if it has one.
    async fn end(
        &mut self,
        may_hold: bool,
        answer: &StoreResult<Acquired>,
        place: Option<u64>,
        follow_up: Option<OwnedSemaphorePermit>,
    ) {
        if may_hold {
            // The next round, or the next poll of a request that waits, asks this node again.
            self.ask.rename(&self.attempts);
            if let Some(_permit) = follow_up.or_else(|| self.follow_ups.begin()) {
                self.roll_back().await;
            }
            return;
        }
        // A node that was late still has the claim at a place of its own.
        let (Ok(Acquired::Waiting(waiting)), Some(place)) = (answer, place) else {
            return;
        };
        if waiting.ticket.sequence != place {
            self.ask.take_place(place);
            self.ask.deadline = Instant::now() + CATCH_UP_MAX;
            let answer = self.acquire().await;
            if self::may_hold(&answer) {
                self.roll_back().await;
            }
        }
    }

    async fn acquire(&mut self) -> StoreResult<Acquired> {
        let Ask {
            claim,
            attempt,
            request,
            deadline,
            now_us,
            requested: _,
            ends: _,
        } = self.ask.clone();
        let in_turn = async {
            self.turn.begins().await;
            let answer = self
                .node
                .acquire(&claim, attempt, request.as_ref(), deadline);
            answer.await
        };
        let answer = answered_by(deadline, in_turn).await?;
        let Acquired::Granted(granted) = &answer else {
            return Ok(answer);
        };
        if self.token_lead.is_too_far(&granted.leases, now_us) {
            self.roll_back().await;
            return Err(StoreError::unavailable(Fault::Corrupt, TOO_FAR_AHEAD));
        }
        Ok(answer)
    }

    async fn record(
        &self,
        granted: &Granted,
        present: &[Fence],
        decided: &[Fence],
    ) -> StoreResult<Recording> {
        let changes = changes(present, decided, false, Some(self.ask.attempt));
        Ok(match self.assign(&changes, self.ask.ends).await? {
            Assigned::Held(permits_used) => Recording::Recorded(Recorded {
                granted: granted.clone(),
                permits_used,
            }),
            Assigned::NotHeld => Recording::NotHeld,
            Assigned::Taken(counters) => Recording::Taken(counters),
        })
    }

    async fn assign(&self, changes: &[FenceChange], deadline: Instant) -> StoreResult<Assigned> {
        let assigned = self.node.assign_fences(&self.ask.claim, changes, deadline);
        answered_by(deadline, assigned).await
    }

    /// The next decision after one of this stage. A round whose request is gone is rolled back.
    async fn decided(&mut self, stage: u8) -> Decision {
        let is_next = |decision: &Decision| decision.stage() > stage;
        let decision = self.decision.wait_for(is_next).await;
        decision.map_or(Decision::RollBack(None), |decision| decision.clone())
    }

    /// Brings a node to what a majority has decided that has no part in it yet.
    async fn catch_up(&self, mut proposed: Option<Vec<Fence>>, decided: &[Fence]) {
        // The claim has its locks, whoever waits for them here. How deep, a renewal brings: by now it may have been
        // answered that it stepped back.
        let claim = Claim {
            fair: false,
            hold_count: HoldCount::ONE,
            ..Claim::clone(&self.ask.claim)
        };
        let to_decided =
            |present: &[Fence]| changes(present, decided, true, Some(self.ask.attempt));
        for pause in CATCH_UP_PAUSES {
            let deadline = Instant::now() + CATCH_UP_MAX;
            if let Some(present) = &proposed {
                match self.assign(&to_decided(present), deadline).await {
                    Ok(Assigned::Held(_) | Assigned::Taken(_)) => return,
                    // It has lost what it had granted, or a later attempt has received that.
                    Ok(Assigned::NotHeld) => proposed = None,
                    Err(_) => {}
                }
            }
            if proposed.is_none() {
                sleep(pause).await;
                let again = self.node.acquire(&claim, self.ask.attempt, None, deadline);
                if let Ok(Acquired::Granted(granted)) = answered_by(deadline, again).await {
                    let present = fences(&granted);
                    let is_larger = present.iter().zip(decided).any(|(has, it)| has > it);
                    if granted.kind != GrantKind::New && is_larger {
                        // Another attempt has got it here, and its process may have decided on this token since.
                        return;
                    }
                    proposed = Some(present);
                }
            }
        }
        if let Some(proposed) = &proposed {
            // A node that does not answer keeps the token that it proposed, until a renewal finds it.
            let deadline = Instant::now() + CATCH_UP_MAX;
            let _ = self.assign(&to_decided(proposed), deadline).await;
        }
    }

    /// Rolls back what the node has granted, or may yet grant, until it has confirmed that or the lease has ended.
    async fn roll_back(&self) {
        let until = Instant::now() + self.ask.claim.ttl.get();
        confirm(until, |try_until| {
            let (node, ask) = (Arc::clone(&self.node), self.ask.clone());
            Box::pin(async move {
                let withdrawn = node.withdraw(&ask.claim, ask.attempt, Rollback::Undo, try_until);
                withdrawn.await
            })
        })
        .await;
    }
}

/// Whether the node may have granted the locks, or may yet.
fn may_hold(answer: &StoreResult<Acquired>) -> bool {
    match answer {
        Ok(answer) => matches!(answer, Acquired::Granted(_)),
        Err(error) => matches!(error, StoreError::Unknown { .. }),
    }
}
