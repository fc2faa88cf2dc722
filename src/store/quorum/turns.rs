//! Turns: the operations on one claim reach each node in the order in which they began, one after the other.
//!
//! A node that is slow carries out an operation long after the others have decided it. Its part in the next operation must
//! not begin before: a release that overtook the grant would leave a lease that nobody releases, and an attempt that came
//! between a grant and the assignment of its fencing token would report another token than the first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::domain::Token;

/// The operations in progress at all nodes.
#[derive(Debug, Default)]
pub(super) struct Turns(Arc<Mutex<Queues>>);

#[derive(Debug, Default)]
struct Queues {
    /// What follows the last operation on each claim, by node.
    last: HashMap<(usize, Token), (u64, oneshot::Receiver<()>)>,
    next_number: u64,
}

/// The turn of one operation at one node. It ends when this is dropped, which must not be before it [begins](Self::begins):
/// the next one would overtake those before.
#[derive(Debug)]
pub(super) struct Turn {
    of: (usize, Token),
    number: u64,
    before: Option<oneshot::Receiver<()>>,
    queues: Arc<Mutex<Queues>>,
    /// Dropped with the turn, which is what the next one waits for.
    _ends: oneshot::Sender<()>,
}

impl Turns {
    /// The next turn at each of `nodes` nodes. No other operation comes between, so all nodes have the same order.
    pub(super) fn next(&self, nodes: usize, token: Token) -> Vec<Turn> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = (0..nodes).map(|node| self.enqueue(&mut queues, (node, token)));
        turns.collect()
    }

    fn enqueue(&self, queues: &mut Queues, of: (usize, Token)) -> Turn {
        let (ends, ended) = oneshot::channel();
        let number = queues.next_number;
        queues.next_number += 1;
        let before = queues.last.insert(of, (number, ended));
        Turn {
            of,
            number,
            before: before.map(|(_, ended)| ended),
            queues: Arc::clone(&self.0),
            _ends: ends,
        }
    }

    /// For how many operations at nodes there is a turn that has not ended, or one after it.
    pub(super) fn count(&self) -> usize {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues.last.len()
    }
}

impl Turn {
    /// Waits until the operation before has ended at this node.
    ///
    /// # Cancel safety
    /// The turn waits on.
    pub(super) async fn begins(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: the sender is dropped.
            let _ = before.await;
        }
        self.before = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, _)) = queues.last.get(&self.of)
            && *number == self.number
        {
            queues.last.remove(&self.of);
        }
    }
}
