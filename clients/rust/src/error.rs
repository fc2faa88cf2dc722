//! What can go wrong.

use std::fmt;

use serde_json::Value;

use crate::claim::Answer;

/// Why there is no lock, or no lease any more.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else has the lock, and the wait is over.
    Held(Problem),
    /// The lease is not ours any more: stop working.
    Lost(Problem),
    /// No useful answer for as long as the client retries. What was granted meanwhile is released, or expires.
    Unavailable(Problem),
    /// The request is wrong or not allowed, so that a retry cannot help.
    Refused(Problem),
}

/// What the service said.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Problem {
    /// The HTTP status, 0 if there was no answer.
    pub status: u16,
    /// What happened, for programs, such as `lock_held`; never renamed. Empty if the service did not say. A lease that
    /// could not be renewed in time has `lease_expired`.
    pub code: String,
    /// What happened, for people.
    pub detail: String,
    /// All members of the answer, such as `holders` of a lock that is held.
    pub body: Value,
}

impl Error {
    /// What the service said.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        match self {
            Self::Held(problem)
            | Self::Lost(problem)
            | Self::Unavailable(problem)
            | Self::Refused(problem) => problem,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.problem().detail)
    }
}

impl std::error::Error for Error {}

impl Problem {
    /// A problem that the service did not report.
    pub(crate) fn local(code: &str, detail: impl Into<String>) -> Self {
        Self {
            status: 0,
            code: code.to_owned(),
            detail: detail.into(),
            body: Value::Null,
        }
    }
}

impl From<Answer> for Problem {
    fn from(answer: Answer) -> Self {
        let text = |name: &str| answer.body[name].as_str().map(str::to_owned);
        Self {
            status: answer.status,
            code: text("code").unwrap_or_default(),
            detail: text("detail")
                .unwrap_or_else(|| format!("the service answered {}", answer.status)),
            body: answer.body,
        }
    }
}
