//! Several processes on one Redis: whether they get in each other's way.

use super::{Plan, ratios, redis_pid, redis_url};
use crate::machine::{Served, cpu_seconds};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{Script, Wrk};

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
            let redis = RedisServer::start(RedisOptions::forgetful()).await;
            let served: Vec<_> = (0..=index)
                .map(|_| Served::leasehold(&redis_url(&redis), &[]))
                .collect();
            let load = |seconds: f64| {
                let start = |served: &Served| {
                    Wrk::start(
                        Script::Acquire,
                        &served.url(),
                        CONNECTIONS / (index + 1),
                        seconds,
                        "",
                    )
                };
                let running: Vec<_> = served.iter().map(start).collect();
                let loads: Vec<_> = running.into_iter().map(Wrk::finish).collect();
                let rate: f64 = loads.iter().map(|load| load.per_second()).sum();
                let requests: f64 = loads.iter().map(|load| load.requests).sum();
                (rate, requests)
            };
            load(1.0);
            let redis_pid = redis_pid(&redis).await;
            let used = || {
                let service: f64 = served.iter().map(|served| cpu_seconds(served.pid())).sum();
                (cpu_seconds(redis_pid), service)
            };
            let before = used();
            let (rate, requests) = load(plan.seconds);
            let after = used();
            rates[index].push(rate);
            redis_us[index].push((after.0 - before.0) / requests * 1e6);
            service_us[index].push((after.1 - before.1) / requests * 1e6);
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
