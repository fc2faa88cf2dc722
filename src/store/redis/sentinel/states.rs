//! What each Sentinel answered when it was last asked, for health checks: most of them are enough to find the primary, so
//! nobody else would notice that one is missing.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::NamedPrimaries;
use crate::store::Finding;
use crate::store::redis::UNPOISONED;
use crate::store::redis::transport::Endpoint;

/// At how many health checks in a row a Sentinel has to be silent, or to name another primary, until that is reported: it may
/// be slow once, or learn of a failover a moment after the others.
const REPORTED_AFTER: u32 = 2;

/// The Sentinels that the last health check has asked. Connections are opened as soon as most have answered, which shows
/// nothing about the others.
#[derive(Default)]
pub(in crate::store::redis) struct SentinelStates(Mutex<RoundStates>);

#[derive(Default)]
struct RoundStates {
    by_endpoint: BTreeMap<Endpoint, SentinelState>,
    /// The primary of the last round that found one.
    primary: Option<Endpoint>,
}

#[derive(Default)]
struct SentinelState {
    /// At how many health checks in a row it had not named the primary.
    deviations: u32,
    last: Option<Result<Endpoint, String>>,
}

impl SentinelStates {
    /// The answers to one health check, and the primary, if most of them agree on one.
    pub(in crate::store::redis) fn note(
        &self,
        answers: NamedPrimaries,
        primary: Option<&Endpoint>,
    ) {
        let mut states = self.0.lock().expect(UNPOISONED);
        if let Some(primary) = primary {
            states.primary = Some(primary.clone());
        }
        let mut before = std::mem::take(&mut states.by_endpoint);
        for (endpoint, answer) in answers {
            let mut state = before.remove(&endpoint).unwrap_or_default();
            let names_another =
                |named: &Endpoint| states.primary.as_ref().is_some_and(|it| it != named);
            state.deviations = match &answer {
                Ok(named) if !names_another(named) => 0,
                Ok(_) | Err(_) => state.deviations.saturating_add(1),
            };
            state.last = Some(answer.map_err(|failure| failure.explanation()));
            states.by_endpoint.insert(endpoint, state);
        }
    }

    /// The primary that most of them named last.
    pub(in crate::store::redis) fn primary(&self) -> Option<Endpoint> {
        self.0.lock().expect(UNPOISONED).primary.clone()
    }

    pub(in crate::store::redis) fn finding(&self) -> Finding {
        let states = self.0.lock().expect(UNPOISONED);
        let deviating = states.by_endpoint.iter();
        let deviating = deviating.filter(|(_, state)| state.deviations >= REPORTED_AFTER);
        let deviating: Vec<_> = deviating
            .map(|(endpoint, state)| match &state.last {
                Some(Ok(named)) => {
                    format!("{} names {} as the primary", place(endpoint), place(named))
                }
                Some(Err(why)) => format!("{} does not answer: {why}", place(endpoint)),
                None => format!("{} was not asked", place(endpoint)),
            })
            .collect();
        let primary = states.primary.as_ref().map_or_else(String::new, place);
        let count = states.by_endpoint.len();
        let is_fine = deviating.is_empty();
        let detail = match is_fine {
            true => format!("Sentinels that name {primary} as the primary: {count}"),
            false => format!("{}; the primary is {primary}", deviating.join("; ")),
        };
        Finding {
            topic: "sentinels",
            is_fine,
            detail,
        }
    }
}

fn place((host, port): &Endpoint) -> String {
    format!("{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::failure::Failure;

    fn endpoint(port: u16) -> Endpoint {
        ("127.0.0.1".to_owned(), port)
    }

    #[test]
    fn a_sentinel_that_is_silent_or_names_another_primary_is_named_after_two_rounds() {
        let states = SentinelStates::default();
        let round = |third: Result<u16, Failure>| {
            let answers = [(1, Ok(10)), (2, Ok(10)), (3, third)];
            let answers = answers.map(|(port, answer)| (endpoint(port), answer.map(endpoint)));
            states.note(answers.into(), Some(&endpoint(10)));
            states.finding()
        };
        assert!(round(Ok(10)).is_fine);
        assert!(round(Err(Failure::timed_out())).is_fine);
        let silent = round(Err(Failure::timed_out()));
        assert!(!silent.is_fine);
        assert!(
            silent.detail.starts_with("127.0.0.1:3 does not answer: "),
            "{silent:?}"
        );
        let disagreeing = round(Ok(11));
        assert!(!disagreeing.is_fine);
        let named = "127.0.0.1:3 names 127.0.0.1:11 as the primary; the primary is 127.0.0.1:10";
        assert_eq!(disagreeing.detail, named);
        assert!(round(Ok(10)).is_fine);
    }

    #[test]
    fn a_sentinel_that_is_no_longer_asked_is_forgotten() {
        let states = SentinelStates::default();
        for _ in 0..REPORTED_AFTER {
            let silent = (endpoint(1), Err(Failure::timed_out()));
            states.note([silent].into(), None);
        }
        assert!(!states.finding().is_fine);
        states.note(
            [(endpoint(2), Ok(endpoint(10)))].into(),
            Some(&endpoint(10)),
        );
        assert!(states.finding().is_fine);
    }
}
