//! The results of the health checks, and the log lines about their changes.

use tokio::time::Instant;

use super::pool::Failure;
use crate::store::Finding;

/// The results of the last health check, except those that `recovery` keeps.
#[derive(Default)]
pub(super) struct HealthCheck {
    /// Whether the last check reached the store; none before the first.
    pub(super) last_check: Option<Result<(), CheckFailure>>,
    /// The topics whose findings were not fine.
    not_fine: Vec<&'static str>,
    pub(super) held_locks: Option<u64>,
    pub(super) next_count: Option<Instant>,
}

/// Why a check did not reach the store.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CheckFailure {
    /// For everybody who can query the readiness of the process.
    pub(super) explanation: String,
    /// For the log.
    detail: String,
}

impl From<Failure> for CheckFailure {
    fn from(failure: Failure) -> Self {
        Self {
            explanation: failure.explanation(),
            detail: failure.detail,
        }
    }
}

impl HealthCheck {
    /// Logs what has changed since the last check, but does not repeat every few seconds what has not. `findings` are
    /// none before the first contact; `address` is without credentials.
    pub(super) fn log_changes(
        &mut self,
        address: &str,
        check: &Result<(), CheckFailure>,
        findings: Option<Vec<Finding>>,
    ) {
        let before = self.last_check.replace(check.clone());
        match check {
            _ if before.as_ref() == Some(check) => {}
            Ok(()) => tracing::info!(address, "the store answers"),
            Err(failure) => {
                let explanation = &failure.explanation;
                let until_then = match findings {
                    Some(_) => "",
                    None => ", and is not ready until one succeeds",
                };
                tracing::warn!(
                    address,
                    reason = failure.detail,
                    "the store cannot be used: {explanation}; the service repeats its checks{until_then}"
                );
            }
        }
        let findings = findings.unwrap_or_default().into_iter();
        let not_fine: Vec<_> = findings.filter(|finding| !finding.is_fine).collect();
        for finding in &not_fine {
            if !self.not_fine.contains(&finding.topic) {
                tracing::warn!(topic = finding.topic, "{}", finding.detail);
            }
        }
        self.not_fine = not_fine.iter().map(|finding| finding.topic).collect();
    }
}
