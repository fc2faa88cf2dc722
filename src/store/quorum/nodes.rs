//! The nodes, and how an operation is put to all of them, at once. How long their answers are waited for is in `answers`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use super::answers::NodeAnswers;
use super::drift::TokenLead;
use super::follow_ups::{FollowUps, confirm};
use super::merge::majority_of;
use super::turns::{NodeTurn, NodeTurns};
use crate::domain::Token;
use crate::store::assignment::AssignFences;
use crate::store::{Fault, StoreError, StoreHealth, StoreResult};
use crate::telemetry::traces;

/// One node.
pub(super) type NodeStore = Arc<dyn AssignFences>;

/// An operation at one node, with its deadline.
pub(super) type NodeOperation<T> =
    Arc<dyn Fn(NodeStore, Instant) -> BoxFuture<'static, StoreResult<T>> + Send + Sync>;

/// All nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: Vec<NodeStore>,
    follow_ups: Vec<FollowUps>,
    token_leads: Vec<TokenLead>,
    turns: NodeTurns,
}

/// One node, with the turn of an operation there.
pub(super) struct NodeInTurn {
    pub(super) index: usize,
    pub(super) store: NodeStore,
    pub(super) turn: NodeTurn,
    pub(super) follow_ups: FollowUps,
    pub(super) token_lead: TokenLead,
}

/// How an operation on a claim is carried out at a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tries {
    /// Until the deadline, because nothing may be done later.
    Once,
    /// Until the node has confirmed it, or until this long after the deadline, when there is nothing left to do.
    UntilConfirmed(Duration),
}

impl Nodes {
    pub(super) fn new(nodes: Vec<NodeStore>) -> Self {
        Self {
            follow_ups: nodes.iter().map(|_| FollowUps::new()).collect(),
            token_leads: nodes.iter().map(|_| TokenLead::default()).collect(),
            nodes,
            turns: NodeTurns::default(),
        }
    }

    pub(super) fn all(&self) -> &[NodeStore] {
        &self.nodes
    }

    /// How many operations each node has left to follow.
    pub(super) fn left_to_follow(&self) -> impl Iterator<Item = usize> {
        self.follow_ups.iter().map(FollowUps::left)
    }

    /// How many nodes decide.
    pub(super) fn majority(&self) -> usize {
        majority_of(self.nodes.len())
    }

    /// How many operations are still in progress at nodes.
    pub(super) fn in_progress(&self) -> usize {
        self.turns.count()
    }

    /// The nodes with the turns of an operation on a claim.
    pub(super) fn in_turn(&self, token: Token) -> impl Iterator<Item = NodeInTurn> {
        let turns = self.turns.next(self.nodes.len(), token);
        turns
            .into_iter()
            .enumerate()
            .map(|(index, turn)| NodeInTurn {
                index,
                store: Arc::clone(&self.nodes[index]),
                turn,
                follow_ups: self.follow_ups[index].clone(),
                token_lead: self.token_leads[index].clone(),
            })
    }

    /// What each node says of its health, and what its tokens say at the time `now_us` of this process.
    pub(super) fn healths(&self, now_us: u64) -> Vec<StoreHealth> {
        let nodes = self.nodes.iter().zip(&self.token_leads);
        nodes
            .map(|(node, lead)| lead.judged(node.health(), now_us))
            .collect()
    }

    /// For each node, what its tokens have been.
    pub(super) fn token_leads(&self) -> impl Iterator<Item = &TokenLead> {
        self.token_leads.iter()
    }

    /// For each node, how many operations were dropped that were to follow.
    pub(super) fn dropped(&self) -> impl Iterator<Item = u64> {
        self.follow_ups.iter().map(FollowUps::dropped)
    }

    /// Puts an operation that concerns no claim to all nodes.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        deadline: Instant,
        operation: &NodeOperation<T>,
    ) -> NodeAnswers<T> {
        self.ask_each(deadline, |_, node| operation(node, deadline))
    }

    /// The same with an operation that differs by the number of the node.
    pub(super) fn ask_each<T: Send + 'static>(
        &self,
        deadline: Instant,
        operation: impl Fn(usize, NodeStore) -> BoxFuture<'static, StoreResult<T>>,
    ) -> NodeAnswers<T> {
        let (sender, answers) = NodeAnswers::of(self.nodes.len());
        for (index, node) in self.nodes.iter().cloned().enumerate() {
            let (sender, answer) = (sender.clone(), operation(index, node));
            tokio::spawn(traces::inherit(async move {
                let answer = answered_by(deadline, answer).await;
                // The operation may have been decided without this node.
                let _ = sender.send((index, answer));
            }));
        }
        answers
    }

    /// Has a node carry out an operation of which it does not matter when it arrives.
    pub(super) fn follow<T: Send + 'static>(
        &self,
        index: usize,
        until: Instant,
        operation: NodeOperation<T>,
    ) {
        if let Some(follow_up) = self.follow_ups[index].begin() {
            let node = Arc::clone(&self.nodes[index]);
            tokio::spawn(traces::inherit(async move {
                let carry_out = |try_until| operation(Arc::clone(&node), try_until);
                confirm(until, carry_out).await;
                drop(follow_up);
            }));
        }
    }

    /// Puts an operation on a claim to all nodes, at each in its turn.
    ///
    /// # Cancel safety
    /// The nodes carry it out, whatever happens to the answers.
    pub(super) fn ask_in_turn<T: Send + 'static>(
        &self,
        token: Token,
        tries: Tries,
        deadline: Instant,
        operation: &NodeOperation<T>,
    ) -> NodeAnswers<T> {
        let (sender, answers) = NodeAnswers::of(self.nodes.len());
        for mut node in self.in_turn(token) {
            let (sender, operation) = (sender.clone(), Arc::clone(operation));
            tokio::spawn(traces::inherit(async move {
                let in_turn = async {
                    node.turn.begins().await;
                    operation(Arc::clone(&node.store), deadline).await
                };
                let answer = answered_by(deadline, in_turn).await;
                let is_confirmed = answer.is_ok();
                // The operation may have been decided without this node.
                let _ = sender.send((node.index, answer));
                let Tries::UntilConfirmed(until) = tries else {
                    return;
                };
                if !is_confirmed && let Some(_follow_up) = node.follow_ups.begin() {
                    node.turn.begins().await;
                    confirm(deadline + until, |try_until| {
                        operation(Arc::clone(&node.store), try_until)
                    })
                    .await;
                }
            }));
        }
        answers
    }
}

/// The answer, or that there was none in time.
pub(super) async fn answered_by<T>(
    deadline: Instant,
    answer: impl Future<Output = StoreResult<T>>,
) -> StoreResult<T> {
    let in_time = timeout_at(deadline, answer).await;
    in_time.unwrap_or_else(|_| {
        let detail = "a node did not answer in time";
        Err(StoreError::unknown(Fault::Timeout, detail))
    })
}
