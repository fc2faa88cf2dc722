//! The answers of the nodes to one operation: how long they are waited for, and what there is without a majority. What they
//! mean together is said where the operation is.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::merge::majority_of;
use crate::store::{Fault, StoreError, StoreResult};

/// How long an operation waits for the rest once a majority has answered without deciding it. A node that is slower than
/// that has no say in it.
pub(super) const LATE_ANSWERS_MAX: Duration = Duration::from_millis(100);

/// The answers of the nodes to one operation.
pub(super) struct NodeAnswers<T> {
    receiver: mpsc::UnboundedReceiver<(usize, StoreResult<T>)>,
    by_node: Vec<Option<StoreResult<T>>>,
    /// How much longer slow nodes are waited for, if not until the deadline.
    rest_max: fn(&ByNode<T>) -> Option<Duration>,
}

impl<T> NodeAnswers<T> {
    /// The answers of `nodes` nodes, and where they are sent. Those of any majority are an answer to give.
    pub(super) fn of(nodes: usize) -> (mpsc::UnboundedSender<(usize, StoreResult<T>)>, Self) {
        Self::waiting_for(
            |votes| votes.has_majority().then_some(LATE_ANSWERS_MAX),
            nodes,
        )
    }

    /// The same, if it takes more than the answers of any majority: with each, this tells how much longer the rest is waited for, if
    /// not until the deadline.
    pub(super) fn waiting_for(
        rest_max: fn(&ByNode<T>) -> Option<Duration>,
        nodes: usize,
    ) -> (mpsc::UnboundedSender<(usize, StoreResult<T>)>, Self) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let answers = Self {
            receiver,
            by_node: (0..nodes).map(|_| None).collect(),
            rest_max,
        };
        (sender, answers)
    }

    /// Collects answers until they decide the operation. Returns what there is when all nodes have answered, when the
    /// deadline has passed, or when there is an answer of a majority and the rest does not come.
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
            } else if let Some(rest_max) = (self.rest_max)(&votes) {
                until = until.min(Instant::now() + rest_max);
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

    /// The error of an operation that a majority did not answer. Its detail names nodes by their place in the configuration,
    /// from 1.
    pub(super) fn no_majority(&self, effect: Effect) -> StoreError {
        let (nodes, answered) = (self.0.len(), self.received().count());
        let failures = || {
            self.0
                .iter()
                .flatten()
                .filter_map(|answer| answer.as_ref().err())
        };
        let fault = self.fault();
        let details = self.0.iter().zip(1..).filter_map(|(answer, number)| {
            let detail = match answer {
                Some(Ok(_)) => return None,
                Some(Err(failure)) => failure.detail(),
                None => "no answer",
            };
            Some(format!("; node {number}: {detail}"))
        });
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

    #[test]
    fn the_detail_tells_which_nodes_have_not_answered_and_why() {
        let full = Some(Err(StoreError::unavailable(Fault::Full, "full")));
        let error = ByNode(vec![Some(Ok(())), full, None]).no_majority(Effect::None);
        let expected = "1 of 3 nodes have answered in time; node 2: full; node 3: no answer";
        assert_eq!(error.detail(), expected);
    }
}
