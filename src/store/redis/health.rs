//! The health checks, their results, and the log lines about their changes.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::failure::Failure;
use super::node::Node;
use super::probe;
use crate::domain::duration;
use crate::store::{Fault, Finding};

/// How long a health check may take.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

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
    pub(super) fault: Fault,
    /// Whether it lasts until somebody changes the configuration.
    pub(super) is_lasting: bool,
    /// For everybody who can query the readiness of the process.
    pub(super) explanation: String,
    /// For the log.
    detail: String,
}

impl From<Failure> for CheckFailure {
    fn from(failure: Failure) -> Self {
        Self {
            fault: failure.fault,
            is_lasting: failure.is_lasting(),
            explanation: failure.explanation(),
            detail: failure.detail,
        }
    }
}

impl CheckFailure {
    /// For the operator who starts the process.
    pub(super) fn sentence(&self) -> String {
        format!("{} ({})", self.explanation, self.detail)
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
            Ok(()) => {
                let persistence = findings
                    .iter()
                    .flatten()
                    .find(|finding| finding.topic == "persistence");
                let persistence = persistence.map(|finding| finding.detail.as_str());
                tracing::info!(address, persistence, "the store answers");
            }
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

impl RedisStore {
    /// Checks the store once. The error says why that was not possible.
    pub(super) async fn check(&self) -> Result<(), CheckFailure> {
        let deadline = Instant::now() + CHECK_TIMEOUT;
        // The address may lead to another Redis than before, which existing connections do not notice.
        let connecting = self.node.pool.connect(deadline).await;
        if let Err(failure) = &connecting
            && failure.is_lasting()
            && self.node.recovery.findings().is_none()
        {
            return Err(failure.clone().into());
        }
        if let Ok(mut connection) = connecting {
            self.node.pool.sweep();
            let probing = self.node.messages.probe(connection.socket());
            // Whether messages can be sent is independent of whether the store answers.
            let _ = timeout_at(deadline, probing).await;
            // Opens a pooled connection before a request needs one.
            let _ = self.node.pool.get(deadline).await;
            return self.check_replicas(deadline).await;
        }
        let mut connection = self.node.pool.get(deadline).await?;
        let began = Instant::now();
        let checking = async {
            let verified = self.node.recovery.verify(connection.socket()).await;
            self.node.messages.probe(connection.socket()).await;
            verified
        };
        let trouble = match timeout_at(deadline, checking).await {
            Ok(Ok(_)) => {
                self.node.recovery.note_answer(began);
                // The address may lead to a suitable Redis by now, for example after a failover.
                if self.node.recovery.is_refused() {
                    connection.abandon();
                }
                return Ok(());
            }
            Ok(Err(error)) => Failure::of(&error),
            Err(_) => Failure::timed_out(),
        };
        connection.abandon();
        Err(trouble.into())
    }

    /// Too few replicas are a finding; a missing right lasts until an operator grants it.
    async fn check_replicas(&self, deadline: Instant) -> Result<(), CheckFailure> {
        if let Some(replication) = &self.node.replication
            && let Ok(Err(failure)) = timeout_at(deadline, replication.check()).await
            && failure.is_lasting()
        {
            return Err(failure.into());
        }
        Ok(())
    }

    /// Why the last check did not reach the store, and since when no request has.
    pub(super) fn trouble(&self, last: &HealthCheck) -> Option<String> {
        let trouble = last.last_check.as_ref()?.as_ref().err()?;
        let mut explanation = trouble.explanation.clone();
        let Node { pool, recovery, .. } = &self.node;
        if let (Some(_), Some(silence)) =
            (probe::known_down(pool, recovery), recovery.outage.length())
        {
            let silence = duration::format(Duration::from_secs(silence.as_secs()));
            explanation += &format!(
                "; it has been silent for {silence}, and requests are refused at once until it answers a probe"
            );
        }
        Some(explanation)
    }

    /// The findings, and the offset of the clocks; none before the first contact.
    pub(super) fn findings(&self) -> Option<(Vec<Finding>, i64)> {
        let (mut findings, clock_offset_ms) = self.node.recovery.findings()?;
        findings.push(self.node.messages.finding());
        findings.extend(self.node.replication.as_ref().map(|it| it.finding()));
        Some((findings, clock_offset_ms))
    }

    pub(super) fn log_changes(&self, check: &Result<(), CheckFailure>) {
        let findings = self.findings().map(|(findings, _)| findings);
        let mut last_health = self
            .last_health
            .lock()
            .expect("nobody panics while holding it");
        last_health.log_changes(self.node.pool.address(), check, findings);
    }
}
