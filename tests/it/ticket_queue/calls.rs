//! What a step asks of the store, and what the store answers: what the model and a recorded run have in common.

use std::hash::{Hash, Hasher};

use super::store::Answer;

/// The most operations of one step.
const CALLS_MAX: usize = 12;

/// One operation of the store, on behalf of a claim and, where it matters, of its request with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Acquire(usize, usize, Outcome),
    Suspend(usize),
    Withdraw(usize, usize),
    Release(usize),
}

/// What the store answers to a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The claim holds the lock, from now on or already.
    Granted,
    Waiting,
    Overdue,
    Ended,
}

/// The operations of a step, in order. They are how a state was reached, and no part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    made: [Option<Call>; CALLS_MAX],
    count: usize,
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Granted | Answer::Replayed => Self::Granted,
            Answer::Waiting { .. } => Self::Waiting,
            Answer::Overdue => Self::Overdue,
            Answer::Ended => Self::Ended,
        }
    }
}

impl Calls {
    pub(super) fn add(&mut self, call: Call) {
        self.made[self.count] = Some(call);
        self.count += 1;
    }

    pub(super) fn to_vec(self) -> Vec<Call> {
        self.made.into_iter().flatten().collect()
    }
}

impl PartialEq for Calls {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Calls {}

impl Hash for Calls {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
