//! Turns: the operations on one claim reach each node in the order in which they began, one after the other.
//!
//! A node that is slow carries out an operation long after the others have decided it. Its part in the next operation must
//! not begin before: a release that overtook the grant would leave a lease that nobody releases, and an attempt that came
//! between a grant and the assignment of its fencing token would report another token than the first.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::domain::Token;
use crate::sync::Mutex;

/// The operations in progress at all nodes.
#[derive(Debug, Default)]
pub(super) struct NodeTurns(Arc<Mutex<Queues>>);

#[derive(Debug, Default)]
struct Queues {
    /// The last operation on each claim, by node.
    last: HashMap<(usize, Token), Predecessor>,
    next_number: u64,
}

/// An operation that another one follows.
#[derive(Debug)]
struct Predecessor {
    number: u64,
    /// Closed when its turn ends. A turn that was given up sends what it waited for.
    ended: oneshot::Receiver<Box<Predecessor>>,
    /// Dropped when another operation follows. Only for a turn that waits for that.
    is_last: Option<oneshot::Sender<Infallible>>,
}

/// The turn of one operation at one node. It ends when this is dropped. If it has not [begun](Self::begins) by then, the
/// next one waits for those before.
#[derive(Debug)]
pub(super) struct NodeTurn {
    of: (usize, Token),
    number: u64,
    before: Option<Predecessor>,
    queues: Arc<Mutex<Queues>>,
    ends: Option<oneshot::Sender<Box<Predecessor>>>,
}

impl NodeTurns {
    /// The next turn at each of `nodes` nodes. No other operation comes between, so all nodes have the same order.
    pub(super) fn next(&self, nodes: usize, token: Token) -> Vec<NodeTurn> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = (0..nodes).map(|node| self.enqueue(&mut queues, (node, token)));
        turns.collect()
    }

    fn enqueue(&self, queues: &mut Queues, of: (usize, Token)) -> NodeTurn {
        let (ends, ended) = oneshot::channel();
        let number = queues.next_number;
        queues.next_number += 1;
        let last = Predecessor {
            number,
            ended,
            is_last: None,
        };
        let mut before = queues.last.insert(of, last);
        if let Some(before) = &mut before {
            before.is_last = None;
        }
        NodeTurn {
            of,
            number,
            before,
            queues: Arc::clone(&self.0),
            ends: Some(ends),
        }
    }

    /// For how many operations at nodes there is a turn that has not ended, or one after it.
    pub(super) fn count(&self) -> usize {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues.last.len()
    }
}

impl Predecessor {
    /// The operation in progress that has to end first, if there is one: those between may have been given up.
    fn in_progress(mut self) -> Option<Self> {
        loop {
            match self.ended.try_recv() {
                Ok(before) => self = *before,
                Err(TryRecvError::Empty) => return Some(self),
                Err(TryRecvError::Closed) => return None,
            }
        }
    }
}

impl NodeTurn {
    /// Waits until the operation before has ended at this node.
    ///
    /// # Cancel safety
    /// The turn waits on.
    pub(super) async fn begins(&mut self) {
        while let Some(before) = &mut self.before {
            let given_up = (&mut before.ended).await.ok();
            self.before = given_up.map(|before| *before);
        }
    }

    /// Waits until another operation on the claim waits for its turn at this node, or has done so.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn is_followed(&self) {
        let (is_last, is_followed) = oneshot::channel();
        {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            match queues.last.get_mut(&self.of) {
                Some(last) if last.number == self.number => last.is_last = Some(is_last),
                _ => return,
            }
        }
        let _: Result<Infallible, _> = is_followed.await;
    }
}

impl Drop for NodeTurn {
    fn drop(&mut self) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = (queues.last.get(&self.of)).is_some_and(|last| last.number == self.number);
        // No turn ends meanwhile. One that was given up must not stay the last: nothing would remove it.
        let before = self.before.take().and_then(Predecessor::in_progress);
        match (before, self.ends.take()) {
            (Some(before), _) if is_last => {
                queues.last.insert(self.of, before);
            }
            // The next turn may be over too.
            (Some(before), Some(ends)) => drop(ends.send(Box::new(before))),
            _ if is_last => {
                queues.last.remove(&self.of);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    /// The second is given up before the third can notice that.
    #[test]
    fn turns_that_are_given_up_together_leave_nothing_behind() {
        let turns = NodeTurns::default();
        let token = Token::random();
        let [first, second, third] = [(); 3].map(|()| turns.next(1, token));
        assert_eq!(turns.count(), 1);
        drop(second);
        drop(third);
        assert_eq!(turns.count(), 1, "the first has not ended");
        drop(first);
        assert_eq!(turns.count(), 0);
    }

    #[tokio::test]
    async fn a_turn_is_told_that_another_one_follows_and_not_that_one_did_before() {
        let turns = NodeTurns::default();
        let (token, other) = (Token::random(), Token::random());
        let next = |token| turns.next(1, token).pop().expect("there is one node");
        let _before = next(token);
        let turn = next(token);
        let mut is_followed = pin!(turn.is_followed());
        let _of_other = next(other);
        assert!(poll!(is_followed.as_mut()).is_pending());
        let follower = next(token);
        assert!(poll!(is_followed.as_mut()).is_ready());
        assert!(poll!(pin!(turn.is_followed())).is_ready());
        assert!(poll!(pin!(follower.is_followed())).is_pending());
    }
}
