//! CPU time of a request in the service and in Redis, beside handlers that are built as the service is and do the least:
//! `{"ttl":"10s"}` is read, four fields are answered, without middleware and limits.

use super::{Plan, redis_pid, redis_url};
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{Script, Wrk};

const NAME: &str = "cpu_time";
const CONNECTIONS: usize = 64;
const WARM_UP_SECONDS: f64 = 1.0;
/// Acquires that may have been on their way when their clients ended, so that they were rolled back.
const UNFINISHED_MAX: f64 = 1_000.0;
/// More locks than a run acquires.
const LOCKS_MAX: u64 = 100_000_000;

/// What one kind of request takes, in one round.
struct Cost {
    service_us: f64,
    redis_us: f64,
    per_second: f64,
}

/// What all of them take, one after the other.
struct Round {
    plain: Cost,
    memory: Cost,
    script: Cost,
    acquire: Cost,
    renew: Cost,
    release: Cost,
    ten_lines: Cost,
}

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let mut rounds = Vec::new();
    for round in 1..=plan.rounds {
        eprintln!("  round {round}");
        let handler = async |name| {
            let start = |url: &str| Served::contestant(name, url);
            undisturbed(async || Measured::start(start).await.acquires(plan.seconds)).await
        };
        let plain = handler("plain").await;
        let in_memory = async || {
            let start = |_: &str| Served::leasehold("memory:", &[]);
            Measured::start(start).await.acquires(plan.seconds)
        };
        let memory = undisturbed(in_memory).await;
        let script = handler("script").await;
        let on_redis = async || {
            let start = |url: &str| Served::leasehold(url, &[]);
            let measured = Measured::start(start).await;
            let acquire = measured.acquires(plan.seconds);
            let [renew, release] = measured.renewals_and_releases(plan.seconds);
            [acquire, renew, release]
        };
        let [acquire, renew, release] = undisturbed(on_redis).await;
        rounds.push(Round {
            plain,
            memory,
            script,
            acquire,
            renew,
            release,
            ten_lines: handler("ten-lines").await,
        });
    }
    findings(&rounds)
}

/// A new process with a new Redis, which some of them use.
struct Measured {
    served: Served,
    _redis: RedisServer,
    redis_pid: u32,
}

impl Measured {
    async fn start(start: impl Fn(&str) -> Served) -> Self {
        let redis = RedisServer::start(RedisOptions::forgetful()).await;
        Self {
            served: start(&redis_url(&redis)),
            redis_pid: redis_pid(&redis).await,
            _redis: redis,
        }
    }

    /// Acquires of fresh names.
    fn acquires(&self, seconds: f64) -> Cost {
        self.load(Script::Acquire, WARM_UP_SECONDS, "");
        self.load(Script::Acquire, seconds, "").0
    }

    /// Renewals and releases of locks that were acquired before.
    fn renewals_and_releases(&self, seconds: f64) -> [Cost; 2] {
        // Releases are not twice as fast as acquires, so there are enough locks for them.
        let seconds = (seconds / 2.0).round().max(1.0);
        let salt = &uuid::Uuid::new_v4().simple().to_string()[..8];
        let argument = |method: &str, count: u64| format!("{method} {salt} {count}");
        let (_, acquired) = self.load(Script::Held, 2.0 * seconds, &argument("POST", LOCKS_MAX));
        let held = (acquired - UNFINISHED_MAX) as u64;
        ["PUT", "DELETE"].map(|method| self.load(Script::Held, seconds, &argument(method, held)).0)
    }

    /// What a request takes, and how many there were.
    fn load(&self, script: Script, seconds: f64, argument: &str) -> (Cost, f64) {
        let pids = [self.served.pid(), self.redis_pid];
        let before = pids.map(cpu_seconds);
        let url = self.served.url();
        let load = Wrk::start(script, &url, CONNECTIONS, seconds, argument).finish();
        let requests = load.requests();
        let [service_us, redis_us] =
            [0, 1].map(|of| (cpu_seconds(pids[of]) - before[of]) / requests * 1e6);
        let cost = Cost {
            service_us,
            redis_us,
            per_second: load.per_second(),
        };
        (cost, requests)
    }
}

fn findings(rounds: &[Round]) -> Vec<Finding> {
    let figure = |name: &str, unit, of: &dyn Fn(&Round) -> f64| {
        Finding::new(NAME, name, unit, rounds.iter().map(of).collect())
    };
    let ratio = |name: &str, of: &dyn Fn(&Round) -> f64| figure(name, "", of);
    let micros = |name: &str, of: &dyn Fn(&Round) -> f64| figure(name, "µs", of);
    vec![
        ratio(
            "acquire on memory: over a handler without a store",
            &|round| round.memory.service_us / round.plain.service_us,
        )
        .at_most(1.5),
        ratio(
            "acquire on redis:// over a handler with a script",
            &|round| round.acquire.service_us / round.script.service_us,
        )
        .at_most(1.15),
        ratio(
            "Redis: acquire over a script of GET, SET and TIME",
            &|round| round.acquire.redis_us / round.script.redis_us,
        )
        .at_most(1.2),
        ratio("Redis: renewal over that script", &|round| {
            round.renew.redis_us / round.script.redis_us
        })
        .at_most(1.0),
        ratio("Redis: release over that script", &|round| {
            round.release.redis_us / round.script.redis_us
        })
        .at_most(1.0),
        ratio("acquires on redis:// over those of ten lines", &|round| {
            round.acquire.per_second / round.ten_lines.per_second
        })
        .at_least(1.8),
        micros("a handler without a store", &|round| round.plain.service_us),
        micros("acquire on memory:", &|round| round.memory.service_us),
        micros("a handler with a script", &|round| round.script.service_us),
        micros("acquire on redis://", &|round| round.acquire.service_us),
        micros("renewal on redis://", &|round| round.renew.service_us),
        micros("release on redis://", &|round| round.release.service_us),
        micros("ten lines", &|round| round.ten_lines.service_us),
        micros("Redis: that script", &|round| round.script.redis_us),
        micros("Redis: acquire", &|round| round.acquire.redis_us),
        micros("Redis: renewal", &|round| round.renew.redis_us),
        micros("Redis: release", &|round| round.release.redis_us),
        micros("Redis: ten lines", &|round| round.ten_lines.redis_us),
        figure("acquires on redis://", "/s", &|round| {
            round.acquire.per_second
        }),
        figure("acquires of ten lines", "/s", &|round| {
            round.ten_lines.per_second
        }),
    ]
}
