//! What something adds to an acquire: the rate and the CPU time of the service with it, over those without it in the same
//! round.

use super::{Plan, ratios};
use crate::client::Answered;
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::report::Finding;
use crate::wrk::{Script, Wrk};

const WARM_UP_SECONDS: f64 = 1.0;

/// One of those that take turns.
#[derive(Clone, Copy)]
pub(super) struct Case {
    /// What acquires are made with.
    pub(super) name: &'static str,
    /// The number of the case that it is compared with. The first is compared with none.
    pub(super) over: usize,
    /// How much of the rate has to stay.
    pub(super) least: Option<f64>,
}

/// What one case has cost in one round.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    pub(super) per_second: f64,
    /// CPU time of the service for each acquire, in microseconds.
    pub(super) service_us: f64,
}

impl Cost {
    /// Acquires by wrk, on so many connections, with this key unless it is empty.
    pub(super) fn by_wrk(served: &Served, connections: usize, key: &str, seconds: f64) -> Self {
        let url = served.url();
        let load = |seconds| Wrk::start(Script::Acquire, &url, connections, seconds, key).finish();
        load(WARM_UP_SECONDS);
        let before = cpu_seconds(served.pid());
        let load = load(seconds);
        Self {
            per_second: load.per_second(),
            service_us: (cpu_seconds(served.pid()) - before) / load.requests() * 1e6,
        }
    }

    /// Acquires by the client that is written here, for so many seconds.
    pub(super) async fn by_client(
        served: &Served,
        seconds: f64,
        load: impl AsyncFn(f64) -> Answered,
    ) -> Self {
        load(WARM_UP_SECONDS).await;
        let before = cpu_seconds(served.pid());
        let answered = load(seconds).await;
        Self {
            per_second: answered.requests / answered.seconds,
            service_us: (cpu_seconds(served.pid()) - before) / answered.requests * 1e6,
        }
    }
}

/// Measures every case in every round, each by its number.
pub(super) async fn of(
    experiment: &'static str,
    plan: Plan,
    cases: &[Case],
    measure: impl AsyncFn(usize) -> Cost,
) -> Vec<Finding> {
    let mut costs = vec![Vec::new(); cases.len()];
    for round in 1..=plan.rounds {
        for (index, case) in cases.iter().enumerate() {
            eprintln!("  round {round}: {}", case.name);
            costs[index].push(undisturbed(async || measure(index).await).await);
        }
    }
    let series = |index: usize, figure: fn(&Cost) -> f64| -> Vec<f64> {
        costs[index].iter().map(figure).collect()
    };
    let per_second = |index| series(index, |cost| cost.per_second);
    let service_us = |index| series(index, |cost| cost.service_us);
    let mut findings = Vec::new();
    for (index, case) in cases.iter().enumerate().skip(1) {
        let (name, over) = (case.name, cases[case.over].name);
        let kept = ratios(&per_second(index), &per_second(case.over));
        let figure = format!("acquires with {name}, over {over}");
        let finding = Finding::new(experiment, figure, "", kept);
        findings.push(match case.least {
            Some(least) => finding.at_least(least),
            None => finding,
        });
        let more = ratios(&service_us(index), &service_us(case.over));
        let figure = format!("CPU of the process with {name}, over {over}");
        findings.push(Finding::new(experiment, figure, "", more));
        let pairs = service_us(index).into_iter().zip(service_us(case.over));
        let added = pairs.map(|(with, without)| with - without).collect();
        let figure = format!("CPU of the process that {name} takes more than {over}");
        findings.push(Finding::new(experiment, figure, "µs", added));
    }
    for (index, case) in cases.iter().enumerate() {
        let figure = format!("acquires with {}", case.name);
        findings.push(Finding::new(experiment, figure, "/s", per_second(index)));
        let figure = format!("CPU of the process with {}", case.name);
        findings.push(Finding::new(experiment, figure, "µs", service_us(index)));
    }
    findings
}
