//! Several processes on one Redis: whether they get in each other's way.

use super::{Plan, ratios, redis_pid, redis_url};
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{Load, Script, Wrk};

const NAME: &str = "processes";
const MOST: usize = 3;
const CONNECTIONS: usize = 66;

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let mut rates: [Vec<f64>; MOST] = Default::default();
    let mut redis_us: [Vec<f64>; MOST] = Default::default();
    let mut service_us: [Vec<f64>; MOST] = Default::default();
    for round in 1..=plan.rounds {
        eprintln!("  round {round}");
        for index in 0..MOST {
            let measure = async || Measured::of(index + 1, plan.seconds).await;
            let measured = undisturbed(measure).await;
            let requests: f64 = measured.loads.iter().map(Load::requests).sum();
            rates[index].push(measured.loads.iter().map(Load::per_second).sum());
            redis_us[index].push(measured.redis_seconds / requests * 1e6);
            service_us[index].push(measured.service_seconds / requests * 1e6);
        }
    }
    let mut findings = Vec::new();
    for index in 0..MOST {
        let of = |figure: &str| format!("{} processes: {figure}", index + 1);
        let over = ratios(&rates[index], &rates[0]);
        findings.push(Finding::new(
            NAME,
            of("acquires over those of one"),
            "",
            over,
        ));
        let samples = std::mem::take(&mut redis_us[index]);
        findings.push(Finding::new(
            NAME,
            of("CPU of Redis for each"),
            "µs",
            samples,
        ));
        let samples = std::mem::take(&mut service_us[index]);
        findings.push(Finding::new(
            NAME,
            of("CPU of the processes for each"),
            "µs",
            samples,
        ));
    }
    findings
}

/// What some processes did in one round.
struct Measured {
    loads: Vec<Load>,
    /// User and system time that went by, of all of them.
    service_seconds: f64,
    redis_seconds: f64,
}

impl Measured {
    async fn of(processes: usize, seconds: f64) -> Self {
        let redis = RedisServer::start(RedisOptions::forgetful()).await;
        let served: Vec<_> = (0..processes)
            .map(|_| Served::leasehold(&redis_url(&redis), &[]))
            .collect();
        let load = |seconds: f64| -> Vec<Load> {
            let connections = CONNECTIONS / processes;
            let start = |served: &Served| {
                Wrk::start(Script::Acquire, &served.url(), connections, seconds, "")
            };
            let running: Vec<_> = served.iter().map(start).collect();
            running.into_iter().map(Wrk::finish).collect()
        };
        load(1.0);
        let redis_pid = redis_pid(&redis).await;
        let used = || {
            let service: f64 = served.iter().map(|served| cpu_seconds(served.pid())).sum();
            (service, cpu_seconds(redis_pid))
        };
        let before = used();
        let loads = load(seconds);
        let after = used();
        Self {
            loads,
            service_seconds: after.0 - before.0,
            redis_seconds: after.1 - before.1,
        }
    }
}
