//! Acquires of fresh names on 64 connections: what each contestant does in a second, beside the others in the same round.

use super::{Plan, ratios, redis_floor, redis_pid, redis_url};
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{Load, Script, Wrk};

const NAME: &str = "throughput";
const CONNECTIONS: usize = 64;
const WARM_UP_SECONDS: f64 = 1.0;

#[derive(Clone, Copy, PartialEq)]
enum Contestant {
    Bare,
    Memory,
    Redis,
    /// The Redis syncs its log to disk before each answer.
    RedisSynced,
    TenLines,
    /// Syncs to disk, too.
    Etcd,
}

const ALL: [(Contestant, &str); 6] = [
    (Contestant::Bare, "bare handler"),
    (Contestant::Memory, "memory:"),
    (Contestant::Redis, "redis://"),
    (Contestant::RedisSynced, "redis://, appendfsync always"),
    (Contestant::TenLines, "ten-line handler, bb8-redis"),
    (Contestant::Etcd, "etcd lock (syncs to disk)"),
];

/// What one contestant did in all rounds.
#[derive(Default)]
struct Series {
    per_second: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    service_us: Vec<f64>,
    redis_us: Vec<f64>,
}

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let mut all: [Series; ALL.len()] = Default::default();
    let mut floors = [Vec::new(), Vec::new()];
    for round in 1..=plan.rounds {
        for ((contestant, name), series) in ALL.iter().zip(&mut all) {
            eprintln!("  round {round}: {name}");
            let measure = async || Measured::of(*contestant, plan.seconds).await;
            series.push(&undisturbed(measure).await);
        }
        eprintln!("  round {round}: redis-benchmark");
        let measure = async || redis_floor::measure(plan.seconds).await;
        let [plain, pipelined] = undisturbed(measure).await;
        floors[0].push(plain);
        floors[1].push(pipelined);
    }
    findings(&all, floors)
}

/// What one contestant did in one round.
struct Measured {
    load: Load,
    /// User and system time that went by.
    service_seconds: f64,
    redis_seconds: f64,
}

impl Measured {
    async fn of(contestant: Contestant, seconds: f64) -> Self {
        let options = if contestant == Contestant::RedisSynced {
            RedisOptions::default()
        } else {
            RedisOptions::forgetful()
        };
        let redis = RedisServer::start(options).await;
        let url = redis_url(&redis);
        let (served, argument) = match contestant {
            Contestant::Bare => (Served::contestant("bare", ""), String::new()),
            Contestant::Memory => (Served::leasehold("memory:", &[]), String::new()),
            Contestant::Redis | Contestant::RedisSynced => {
                (Served::leasehold(&url, &[]), String::new())
            }
            Contestant::TenLines => (Served::contestant("ten-lines", &url), String::new()),
            Contestant::Etcd => Served::etcd(tempfile::tempdir().unwrap()).await,
        };
        let script = if contestant == Contestant::Etcd {
            Script::Etcd
        } else {
            Script::Acquire
        };
        let load =
            |seconds| Wrk::start(script, &served.url(), CONNECTIONS, seconds, &argument).finish();
        load(WARM_UP_SECONDS);
        let pids = [served.pid(), redis_pid(&redis).await];
        let before = pids.map(cpu_seconds);
        let load = load(seconds);
        let [service_seconds, redis_seconds] = [0, 1].map(|of| cpu_seconds(pids[of]) - before[of]);
        Self {
            load,
            service_seconds,
            redis_seconds,
        }
    }
}

impl Series {
    fn push(&mut self, measured: &Measured) {
        let load = &measured.load;
        self.per_second.push(load.per_second());
        self.p50_us.push(load.p50_us);
        self.p99_us.push(load.p99_us);
        let each = |seconds: f64| seconds / load.requests() * 1e6;
        self.service_us.push(each(measured.service_seconds));
        self.redis_us.push(each(measured.redis_seconds));
    }

    fn findings(&self, contestant: Contestant, name: &str) -> Vec<Finding> {
        let finding = |what: &str, unit, samples: &[f64]| {
            Finding::new(NAME, format!("{name}: {what}"), unit, samples.to_vec())
        };
        let mut findings = vec![
            finding("acquires", "/s", &self.per_second),
            finding("p50", "µs", &self.p50_us),
            finding("p99", "µs", &self.p99_us),
            finding("CPU of the process for each", "µs", &self.service_us),
        ];
        let has_redis = matches!(
            contestant,
            Contestant::Redis | Contestant::RedisSynced | Contestant::TenLines
        );
        if has_redis {
            findings.push(finding("CPU of Redis for each", "µs", &self.redis_us));
        }
        findings
    }
}

fn findings(all: &[Series; ALL.len()], floors: [Vec<f64>; 2]) -> Vec<Finding> {
    let of = |contestant| {
        let index = ALL.iter().position(|(other, _)| *other == contestant);
        all[index.expect("all are there")].per_second.as_slice()
    };
    let (bare, redis, etcd) = (
        of(Contestant::Bare),
        of(Contestant::Redis),
        of(Contestant::Etcd),
    );
    let (ten_lines, synced) = (of(Contestant::TenLines), of(Contestant::RedisSynced));
    let [plain, pipelined] = floors;
    let ratio = |name: &str, over, under| Finding::new(NAME, name, "", ratios(over, under));
    let mut findings = vec![
        ratio("redis:// over bare handler", redis, bare).at_least(0.65),
        ratio("redis:// over ten-line handler", redis, ten_lines).at_least(1.8),
        ratio("memory: over bare handler", of(Contestant::Memory), bare).at_least(0.90),
        ratio("redis:// over etcd, which syncs to disk", redis, etcd).at_least(10.0),
        ratio("redis:// synced to disk over etcd", synced, etcd),
        ratio("ten-line handler over bare handler", ten_lines, bare),
        ratio(
            "redis:// over redis-benchmark, pipelined",
            redis,
            &pipelined,
        ),
    ];
    for ((contestant, name), series) in ALL.into_iter().zip(all) {
        findings.extend(series.findings(contestant, name));
    }
    findings.push(Finding::new(
        NAME,
        "redis-benchmark of the acquire script",
        "/s",
        plain,
    ));
    findings.push(Finding::new(
        NAME,
        "redis-benchmark of it, pipelined by 16",
        "/s",
        pipelined,
    ));
    findings
}
