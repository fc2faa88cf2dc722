//! The nodes, and how an operation is put to all of them: at once, with as many answers awaited as decide it. What the
//! answers mean together is not known here.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::drift::TokenLead;
use super::follow_ups::{FollowUps, confirm};
use super::merge::majority_of;
use super::turns::{NodeTurn, NodeTurns};
use crate::domain::Token;
use crate::store::assignment::AssignFences;
use crate::store::{Fault, StoreError, StoreHealth, StoreResult};
use crate::telemetry::traces;

/// How long an operation waits for the rest once a majority has answered without deciding it. A node that is slower than
/// that has no say in it.
const LATE_ANSWERS_MAX: Duration = Duration::from_millis(100);

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

/// The answers of the nodes to one operation.
pub(super) struct NodeAnswers<T> {
    receiver: mpsc::UnboundedReceiver<(usize, StoreResult<T>)>,
    by_node: Vec<Option<StoreResult<T>>>,
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

impl<T> NodeAnswers<T> {
    /// The answers of `nodes` nodes, and where they are sent.
    pub(super) fn of(nodes: usize) -> (mpsc::UnboundedSender<(usize, StoreResult<T>)>, Self) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let by_node = (0..nodes).map(|_| None).collect();
        (sender, Self { receiver, by_node })
    }

    /// Collects answers until they decide the operation. Returns what there is when all nodes have answered, when the
    /// deadline has passed, or when a majority has answered and the rest does not.
    pub(super) async fn until(
        self,
        deadline: Instant,
        is_decided: impl Fn(&ByNode<T>) -> bool,
    ) -> ByNode<T> {
        self.until_also(Duration::ZERO, deadline, is_decided).await
    }

    /// The answers of all nodes that answer by the deadline.
    pub(super) async fn of_all(mut self, deadline: Instant) -> ByNode<T> {
        while self.by_node.iter().any(Option::is_none) {
            match timeout_at(deadline, self.receiver.recv()).await {
                Ok(Some((index, answer))) => self.by_node[index] = Some(answer),
                Ok(None) | Err(_) => break,
            }
        }
        ByNode(self.by_node)
    }

    /// As [`until`](Self::until), but waits for the rest this long when the operation is decided.
    pub(super) async fn until_also(
        mut self,
        rest_max: Duration,
        deadline: Instant,
        is_decided: impl Fn(&ByNode<T>) -> bool,
    ) -> ByNode<T> {
        let mut until = deadline;
        loop {
            let votes = ByNode(self.by_node);
            let is_decided = is_decided(&votes);
            if votes.missing() == 0 || is_decided && rest_max.is_zero() {
                return votes;
            }
            if is_decided {
                until = until.min(Instant::now() + rest_max);
            } else if votes.received().count() >= votes.majority() {
                until = until.min(Instant::now() + LATE_ANSWERS_MAX);
            }
            self.by_node = votes.0;
            match timeout_at(until, self.receiver.recv()).await {
                Ok(Some((index, answer))) => self.by_node[index] = Some(answer),
                // Every node sends one answer, so it ends without one only if the node's task panicked.
                Ok(None) | Err(_) => return ByNode(self.by_node),
            }
        }
    }
}

/// The answers so far: by node, none for a node that has not answered.
#[derive(Debug)]
pub(super) struct ByNode<T>(pub(super) Vec<Option<StoreResult<T>>>);

impl<T> ByNode<T> {
    pub(super) fn majority(&self) -> usize {
        majority_of(self.0.len())
    }

    /// How many nodes have neither answered nor failed.
    pub(super) fn missing(&self) -> usize {
        self.0.iter().filter(|answer| answer.is_none()).count()
    }

    /// The answers so far.
    pub(super) fn received(&self) -> impl Iterator<Item = &T> {
        self.0
            .iter()
            .filter_map(|answer| answer.as_ref()?.as_ref().ok())
    }

    /// The same with the number of each node.
    pub(super) fn by_index(&self) -> impl Iterator<Item = (usize, &T)> {
        let answers = self.0.iter().enumerate();
        answers.filter_map(|(index, answer)| Some((index, answer.as_ref()?.as_ref().ok()?)))
    }

    /// Whether a majority has answered.
    pub(super) fn has_majority(&self) -> bool {
        self.received().count() >= self.majority()
    }

    /// What a majority lacks. As many of the nodes that failed as it lacks have to be well again, and the first that are
    /// decide. So one of several that is full does not make the store full. A node that has not answered in time comes
    /// after those that have failed.
    pub(super) fn fault(&self) -> Fault {
        let failures = self.0.iter().flatten();
        let failures = failures.filter_map(|answer| answer.as_ref().err());
        let mut faults: Vec<_> = failures.map(StoreError::fault).collect();
        faults.resize(faults.len() + self.missing(), Fault::Timeout);
        faults.sort_by_key(|fault| lasts(*fault));
        let lacking = self.majority().saturating_sub(self.received().count());
        let decisive = faults.get(lacking.saturating_sub(1)).copied();
        let mut faults = faults.into_iter();
        faults
            .find(|fault| decisive.is_some_and(|decisive| lasts(decisive) == lasts(*fault)))
            .unwrap_or(Fault::Timeout)
    }

    /// The answers, if a majority has answered.
    ///
    /// # Errors
    /// There is no majority.
    pub(super) fn of_majority(self, effect: Effect) -> StoreResult<Vec<T>> {
        if !self.has_majority() {
            return Err(self.no_majority(effect));
        }
        Ok(self.0.into_iter().flatten().flatten().collect())
    }

    /// The error of an operation that a majority did not answer.
    pub(super) fn no_majority(&self, effect: Effect) -> StoreError {
        let (nodes, answered) = (self.0.len(), self.received().count());
        let failures = || {
            self.0
                .iter()
                .flatten()
                .filter_map(|answer| answer.as_ref().err())
        };
        let fault = self.fault();
        let details = failures().map(|failure| format!("; {}", failure.detail()));
        let details: String = details.collect();
        let detail = format!("{answered} of {nodes} nodes have answered in time{details}");
        let may_be_done = failures().any(|failure| matches!(failure, StoreError::Unknown { .. }))
            || self.missing() > 0
            || answered > 0;
        match effect {
            Effect::MayBeDone if may_be_done => StoreError::unknown(fault, detail),
            Effect::MayBeDone | Effect::None => StoreError::unavailable(fault, detail),
        }
    }
}

/// How long a fault lasts, compared with others: until the node answers again, until something is released there, or until
/// somebody changes the configuration.
fn lasts(fault: Fault) -> (bool, bool) {
    (fault.is_lasting(), fault.is_full())
}

/// What an operation may have done that did not get the answers of a majority.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// It changes nothing, or is undone.
    None,
    /// It may have been done.
    MayBeDone,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A client may then go on elsewhere, and need not repeat the request with its token.
    #[test]
    fn nothing_is_done_if_all_nodes_say_so() {
        let refused = || Some(Err(StoreError::unavailable(Fault::Full, "full")));
        let error = |answers: [Option<StoreResult<()>>; 3]| {
            ByNode(answers.into()).no_majority(Effect::MayBeDone)
        };
        let is_unknown = |error| matches!(error, StoreError::Unknown { .. });
        assert!(!is_unknown(error([refused(), refused(), refused()])));
        assert!(is_unknown(error([refused(), refused(), None])));
        assert!(is_unknown(error([refused(), refused(), Some(Ok(()))])));
        let unknown = Some(Err(StoreError::unknown(Fault::Io, "lost")));
        assert!(is_unknown(error([refused(), refused(), unknown])));
    }
}
