//! Repeating a request that got no useful answer.

use std::time::Duration;

use tokio::time::Instant;

use super::{Call, Client, NoAnswer, ServiceAnswer};
use crate::backoff::{Backoff, jittered};

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request is repeated: a restart of the service takes less.
const REPEAT_MAX: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// When a request may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Also if it may have been executed: a second execution changes nothing.
    Always,
    /// Only if it was certainly not executed.
    IfNotExecuted,
    /// Not at all: what goes wrong is the answer.
    Never,
}

/// The pauses between the attempts.
#[derive(Debug, Default)]
pub(crate) struct RetryPauses(Backoff);

impl RetryPauses {
    /// The pause before the next attempt. It is as long as the answer asks for, if there is one.
    pub(crate) fn next(&mut self, answer: Option<&ServiceAnswer>) -> Duration {
        let asked = answer.and_then(|answer| answer.retry_after);
        jittered(self.0.next(PAUSE_MIN, PAUSE_MAX)).max(asked.unwrap_or_default())
    }

    /// Whether the last attempt failed.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.last().is_some()
    }

    /// Begins again with the shortest pause.
    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }
}

impl RetryPolicy {
    fn allows(self, answered: &Result<ServiceAnswer, NoAnswer>) -> bool {
        match (self, answered) {
            (_, Ok(answer)) if !answer.is_temporary() => false,
            (Self::Never, _) => false,
            (_, Err(error)) if error.is_final() => false,
            (Self::Always, _) => true,
            (Self::IfNotExecuted, Ok(answer)) => answer.body["outcome"] == "nothing_done",
            (Self::IfNotExecuted, Err(error)) => error.was_not_sent(),
        }
    }
}

impl Client {
    /// Sends a request, and repeats it while there is no useful answer, for ten seconds at most.
    ///
    /// # Errors
    /// There was no answer to the last attempt.
    ///
    /// # Cancel safety
    /// As of [`send`](Self::send).
    pub async fn send_repeatedly(
        &mut self,
        call: &Call,
        repeat: RetryPolicy,
    ) -> Result<ServiceAnswer, NoAnswer> {
        let give_up = Instant::now() + REPEAT_MAX;
        let mut pauses = RetryPauses::default();
        loop {
            // A kept connection that breaks is replaced, which repeats a request that may have been executed.
            if repeat == RetryPolicy::IfNotExecuted {
                self.connection = None;
            }
            let answered = self.send(call, ATTEMPT_TIMEOUT).await;
            if !repeat.allows(&answered) {
                return answered;
            }
            let pause = pauses.next(answered.as_ref().ok());
            if Instant::now() + pause > give_up {
                return answered;
            }
            tokio::time::sleep(pause).await;
        }
    }
}
