//! Several processes on one Redis: whether they get in each other's way.
//!
//! They are also measured with a Redis each, where they share nothing but the cores. If they are as fast as one then, what
//! several lose on one Redis is lost there.

use super::{Plan, ratios, redis_pid, redis_url};
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{Load, Script, Wrk};

const NAME: &str = "processes";
/// So many processes, and so many Redis for all of them.
const SETTINGS: [(usize, usize); 5] = [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3)];
const CONNECTIONS: usize = 66;

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let mut measured = SETTINGS.map(|setting| (setting, Rounds::default()));
    for round in 1..=plan.rounds {
        eprintln!("  round {round}");
        for ((processes, redises), rounds) in &mut measured {
            let (processes, redises) = (*processes, *redises);
            let measure = async || Measured::of(processes, redises, plan.seconds).await;
            rounds.add(&undisturbed(measure).await);
        }
    }
    let [(_, alone), ..] = &measured;
    let mut findings = Vec::new();
    for ((processes, redises), rounds) in &measured {
        let of = |figure: &str| format!("{processes} processes on {redises} Redis: {figure}");
        let over = ratios(&rounds.rates, &alone.rates);
        let over = Finding::new(NAME, of("acquires over those of one"), "", over);
        findings.push(match redises {
            1 => over,
            _ => over.at_least(0.95),
        });
        let redis_us = rounds.redis_us.clone();
        findings.push(Finding::new(
            NAME,
            of("CPU of Redis for each"),
            "µs",
            redis_us,
        ));
        let service_us = rounds.service_us.clone();
        let figure = of("CPU of the processes for each");
        findings.push(Finding::new(NAME, figure, "µs", service_us));
    }
    findings
}

/// What one setting came to, round by round.
#[derive(Default)]
struct Rounds {
    rates: Vec<f64>,
    redis_us: Vec<f64>,
    service_us: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, measured: &Measured) {
        let requests: f64 = measured.loads.iter().map(Load::requests).sum();
        self.rates
            .push(measured.loads.iter().map(Load::per_second).sum());
        self.redis_us.push(measured.redis_seconds / requests * 1e6);
        self.service_us
            .push(measured.service_seconds / requests * 1e6);
    }
}

/// What some processes did in one round.
struct Measured {
    loads: Vec<Load>,
    /// User and system time that went by, of all of them.
    service_seconds: f64,
    redis_seconds: f64,
}

impl Measured {
    async fn of(processes: usize, redises: usize, seconds: f64) -> Self {
        let mut redis = Vec::new();
        for _ in 0..redises {
            redis.push(RedisServer::start(RedisOptions::forgetful()).await);
        }
        let served: Vec<_> = (0..processes)
            .map(|number| Served::leasehold(&redis_url(&redis[number % redises]), &[]))
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
        let mut redis_pids = Vec::new();
        for redis in &redis {
            redis_pids.push(redis_pid(redis).await);
        }
        let used = || {
            let service: f64 = served.iter().map(|served| cpu_seconds(served.pid())).sum();
            let redis: f64 = redis_pids.iter().map(|pid| cpu_seconds(*pid)).sum();
            (service, redis)
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
