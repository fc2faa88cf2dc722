//! Why a Sentinel does not answer, and why the answers of all of them show no primary.

use std::collections::HashMap;

use super::{NamedPrimaries, SentinelAnswer, total};
use crate::store::Fault;
use crate::store::redis::failure::{Execution, Failure};
use crate::store::redis::transport::Endpoint;

/// Why too few answer. It lasts if so many refuse this process for good that the others cannot be most of them.
pub(super) fn too_few(
    answers: &HashMap<String, SentinelAnswer>,
    asked: &NamedPrimaries,
) -> Failure {
    match refusal(asked) {
        Some(refusal) if is_refused_by_most(answers, asked) => refusal,
        Some(_) | None => {
            let detail = format!("{} Sentinels answer ({})", answers.len(), details(asked));
            Failure::new(Fault::Io, Execution::NotDone, detail)
                .because("too few of its Sentinels answer, so its primary is not known")
                .passing()
        }
    }
}

/// The Sentinels that answer know only earlier failovers than one that answered before.
pub(super) fn outdated(asked: &NamedPrimaries) -> Failure {
    let detail = format!("the last failover is not known ({})", details(asked));
    Failure::new(Fault::Io, Execution::NotDone, detail)
        .because(
            "a Sentinel that does not answer now knew a later failover than those that answer, so the primary is not known",
        )
        .passing()
}

/// No primary has the most votes.
pub(super) fn disagreeing() -> Failure {
    let detail = "the Sentinels disagree about the primary";
    Failure::new(Fault::Io, Execution::NotDone, detail)
        .because("equally many of its Sentinels name different primaries")
        .passing()
}

/// What the first Sentinel says that refuses this process for good, with its address.
fn refusal(asked: &NamedPrimaries) -> Option<Failure> {
    let mut failures = failures(asked);
    let ((host, port), failure) = failures.find(|(_, failure)| failure.is_lasting())?;
    let mut refusal = failure.clone();
    refusal.detail = format!("{host}:{port}: {}", failure.detail);
    Some(refusal)
}

/// Whether those that refuse this process for good leave no majority. If none answers, it is not known how many there are
/// beside those of the URL, so all of these have to refuse it.
fn is_refused_by_most(answers: &HashMap<String, SentinelAnswer>, asked: &NamedPrimaries) -> bool {
    if answers.is_empty() {
        return failures(asked).all(|(_, failure)| failure.is_lasting());
    }
    // A certificate may be for the name of a Sentinel in the URL, and not for the address by which another one knows it.
    let refuses = |other: &Endpoint| {
        let failure = asked.get(other).and_then(|it| it.as_ref().err());
        failure.is_some_and(|failure| failure.is_lasting() && failure.fault != Fault::Tls)
    };
    let total = total(answers);
    answers.values().any(|answer| {
        let refusing = answer.others.iter().filter(|other| refuses(other)).count();
        total.saturating_sub(refusing) <= total / 2
    })
}

fn details(asked: &NamedPrimaries) -> String {
    let details = failures(asked).map(|(_, failure)| failure.detail.as_str());
    details.collect::<Vec<_>>().join("; ")
}

fn failures(asked: &NamedPrimaries) -> impl Iterator<Item = (&Endpoint, &Failure)> {
    let failures = asked.iter();
    failures.filter_map(|(endpoint, named)| Some((endpoint, named.as_ref().err()?)))
}

pub(super) fn refused(error: &redis::RedisError) -> Failure {
    let failure = Failure::of_first(error).before_any_command();
    let mentions = |text| failure.detail.contains(text);
    if mentions("No such master") {
        let lasting = Failure::new(Fault::Database, Execution::NotDone, failure.detail);
        lasting.because("its Sentinels watch no primary of the name in the store's URL")
    } else if mentions("unknown command") {
        let lasting = Failure::new(Fault::Protocol, Execution::NotDone, failure.detail);
        lasting.because(
            "the server that answers is no Sentinel; check hosts and ports in the store's URL",
        )
    } else {
        denied(failure)
    }
}

/// The Redis that they watch may have other users, so an operator has to know who refuses.
pub(super) fn denied(failure: Failure) -> Failure {
    let asks = failure.detail.contains("NOAUTH");
    let reason = if failure.fault == Fault::Permission {
        "the user may not ask a Sentinel; docs/how-to/redis.md lists the rights that it needs"
    } else if failure.fault != Fault::Auth {
        return failure;
    } else if asks {
        "a Sentinel asks for a password; write it to a file and set redis.sentinel_password_file \
         (--redis-sentinel-password-file, LEASEHOLD_REDIS_SENTINEL_PASSWORD_FILE), or set \
         LEASEHOLD_REDIS_SENTINEL_PASSWORD"
    } else {
        "a Sentinel refuses the user or the password; check redis.sentinel_username and redis.sentinel_password, \
         which are not those of Redis"
    };
    failure.because(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> Endpoint {
        ("127.0.0.1".to_owned(), port)
    }

    fn of(fault: Fault) -> Failure {
        Failure::new(fault, Execution::NotDone, "it refuses")
    }

    /// Why too few answer: the first one does and knows those at these ports; each of these fails in this way.
    fn with_one_answer(others: &[(u16, Failure)]) -> Failure {
        let answer = SentinelAnswer {
            id: "a".to_owned(),
            epoch: 0,
            primary: endpoint(10),
            others: others.iter().map(|(port, _)| endpoint(*port)).collect(),
            quorum: 2,
        };
        let failing = others.iter().cloned();
        let failing = failing.map(|(port, failure)| (endpoint(port), Err(failure)));
        let asked = [(endpoint(1), Ok(endpoint(10)))].into_iter().chain(failing);
        too_few(&HashMap::from([("a".to_owned(), answer)]), &asked.collect())
    }

    #[test]
    fn a_refusal_by_so_many_that_the_others_are_no_majority_lasts() {
        let refused = with_one_answer(&[(2, of(Fault::Auth)), (3, of(Fault::Permission))]);
        assert!(refused.is_lasting(), "{refused:?}");
        assert_eq!(refused.detail, "127.0.0.1:2: it refuses");
        for passing in [Failure::timed_out(), of(Fault::Tls)] {
            let failure = with_one_answer(&[(2, of(Fault::Auth)), (3, passing)]);
            assert!(!failure.is_lasting(), "{failure:?}");
        }
    }

    #[test]
    fn if_none_answers_all_have_to_refuse() {
        let all = |failures: [Failure; 2]| {
            let asked = [1, 2].map(endpoint).into_iter().zip(failures.map(Err));
            too_few(&HashMap::new(), &asked.collect()).is_lasting()
        };
        assert!(all([of(Fault::Auth), of(Fault::Tls)]));
        assert!(!all([of(Fault::Auth), Failure::timed_out()]));
    }
}
