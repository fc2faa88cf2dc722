//! The results of the last health check, and the log lines about their changes. What is checked is not known here.

use tokio::time::Instant;

use crate::store::Finding;
use crate::store::redis::check_failure::{CheckFailure, is_as_before};

/// The topic of the primaries of a cluster.
pub(super) const NODE: &str = "node";

/// How many findings about them are logged until all are well: what is found of one may change.
const OF_NODES_MAX: usize = 32;

/// The results of the last health check, except those that `recovery` keeps.
#[derive(Default)]
pub(in crate::store::redis) struct HealthCheck {
    /// Whether the last check reached the store; none before the first.
    pub(in crate::store::redis) last_check: Option<Result<(), CheckFailure>>,
    /// By partition of a cluster, why the last check did not reach it.
    pub(super) troubles: Vec<Option<CheckFailure>>,
    /// What was logged because it was not fine, until its topic is.
    logged: Vec<Finding>,
    pub(in crate::store::redis) held_locks: Option<u64>,
    pub(in crate::store::redis) next_count: Option<Instant>,
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
            _ if before.is_some_and(|before| is_as_before(&before, check)) => {}
            Ok(()) => {
                let persistence = findings
                    .iter()
                    .flatten()
                    .find(|finding| finding.topic == "persistence");
                let persistence = persistence.map(|finding| finding.detail.as_str());
                tracing::info!(address, persistence, "Redis answers");
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
                    "Redis cannot be used: {explanation}; the service repeats its checks{until_then}"
                );
            }
        }
        let news = findings.map(|findings| self.news(findings));
        for news in news.into_iter().flatten() {
            let (topic, detail) = (news.topic, news.detail);
            match news.is_fine {
                true => tracing::info!(address, topic, "{detail}"),
                false => tracing::warn!(address, topic, "{detail}"),
            }
        }
    }

    /// What is to be logged of these findings: each once until its topic is fine again, and then that it is. The primaries of a
    /// cluster share a topic.
    fn news(&mut self, findings: Vec<Finding>) -> Vec<Finding> {
        let (fine, not_fine): (Vec<_>, Vec<_>) = findings.into_iter().partition(|it| it.is_fine);
        let is_fine = |topic| not_fine.iter().all(|finding| finding.topic != topic);
        let mut news = Vec::new();
        self.logged.retain(|logged| {
            let is_over = is_fine(logged.topic);
            if is_over && news.iter().all(|it: &Finding| it.topic != logged.topic) {
                news.push(recovery(logged.topic, &fine));
            }
            !is_over
        });
        for finding in not_fine {
            let known = self.logged.iter().filter(|it| it.topic == finding.topic);
            let known: Vec<_> = known.map(|it| &it.detail).collect();
            let is_new = match finding.topic {
                NODE => known.len() < OF_NODES_MAX && !known.contains(&&finding.detail),
                _ => known.is_empty(),
            };
            if is_new {
                self.logged.push(finding.clone());
                news.push(finding);
            }
        }
        news
    }
}

/// That a topic is fine again.
fn recovery(topic: &'static str, fine: &[Finding]) -> Finding {
    let mut of_topic = fine.iter().filter(|finding| finding.topic == topic);
    let detail = match (of_topic.next(), of_topic.next()) {
        (Some(finding), None) => finding.detail.clone(),
        (Some(_), Some(_)) => "all of them are well again".to_owned(),
        (None, _) => "it is well again".to_owned(),
    };
    Finding {
        topic,
        is_fine: true,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(topic: &'static str, is_fine: bool, detail: &str) -> Finding {
        Finding {
            topic,
            is_fine,
            detail: detail.to_owned(),
        }
    }

    /// What is logged of one check after the other.
    fn logged<const N: usize>(checks: [&[Finding]; N]) -> [Vec<String>; N] {
        let mut results = HealthCheck::default();
        checks.map(|findings| {
            let news = results.news(findings.to_vec()).into_iter();
            news.map(|it| it.detail).collect()
        })
    }

    #[test]
    fn a_finding_is_logged_once_until_its_topic_is_fine_again() {
        let slow = |ms| [finding("clock", false, &format!("{ms} ms ahead"))];
        let fine = [finding("clock", true, "0 ms ahead")];
        let lines = logged([&slow(700), &slow(701), &fine, &fine, &slow(702)]);
        let expected: [&[&str]; 5] = [
            &["700 ms ahead"],
            &[],
            &["0 ms ahead"],
            &[],
            &["702 ms ahead"],
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_is_found_of_each_primary_is_logged_and_what_it_changes_to() {
        let nodes = |first: &str, second: &str| {
            [first, second].map(|detail| finding(NODE, detail.ends_with("answers"), detail))
        };
        let well = nodes("a answers", "b answers");
        let lines = logged([
            &nodes("a is away", "b answers"),
            &nodes("a is silent", "b is away"),
            &nodes("a is away", "b answers"),
            &well,
            &nodes("a is away", "b answers"),
        ]);
        let again = "all of them are well again";
        let expected: [&[&str]; 5] = [
            &["a is away"],
            &["a is silent", "b is away"],
            &[],
            &[again],
            &["a is away"],
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_primary_whose_troubles_keep_changing_does_not_fill_the_log() {
        let mut results = HealthCheck::default();
        let checks = (0..1_000).map(|number| vec![finding(NODE, false, &number.to_string())]);
        assert_eq!(
            checks.map(|it| results.news(it).len()).sum::<usize>(),
            OF_NODES_MAX
        );
    }
}
