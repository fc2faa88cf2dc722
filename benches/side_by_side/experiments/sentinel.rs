//! A primary with two replicas and three Sentinels: what following the Sentinels costs, and what it costs if all replicas
//! have to confirm what is reported. Both beside a process that knows the address of the same primary.
//!
//! All processes run at once and take turns, so all of them have the same replicas. Turns are short and many, because the
//! first difference is smaller than what the machine drifts by.

use super::{Plan, ratios, redis_pid, redis_url};
use crate::eventually;
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::sentinels::{PRIMARY, Sentinels};
use crate::wrk::{Load, Script, Wrk};

const NAME: &str = "sentinel";
const CONNECTIONS: usize = 64;
const WARM_UP_SECONDS: f64 = 1.0;
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// Longer than Redis is ever silent here. A failover would end the measurement.
const DOWN_AFTER_MS: &str = "30000";
/// How many short rounds there are instead of a long one, and how much shorter they are.
const SHORT_ROUNDS: usize = 3;
const SHORTER: f64 = 2.0;

/// Each with its name.
const ALL: [&str; 3] = ["redis://", "fast", "safe"];

#[derive(Default)]
struct Series {
    per_second: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    /// Of a request that is alone.
    alone_p50_us: Vec<f64>,
    service_us: Vec<f64>,
    primary_us: Vec<f64>,
    replicas_us: Vec<f64>,
}

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let watched = Watched::start().await;
    let sentinel_url = watched.url();
    let confirmed = [
        "--redis-wait-replicas",
        &REPLICAS.to_string(),
        // Shorter than an operation may take. All processes share a few cores, so replicas may be late here.
        "--redis-wait-timeout",
        "900ms",
    ];
    let served = [
        Served::leasehold(&redis_url(&watched.primary), &[]),
        Served::leasehold(&sentinel_url, &[]),
        Served::leasehold(&sentinel_url, &confirmed),
    ];
    for served in &served {
        load(served, CONNECTIONS, WARM_UP_SECONDS);
    }
    let mut all: [Series; ALL.len()] = Default::default();
    let seconds = (plan.seconds / SHORTER).floor().max(1.0);
    for round in 1..=plan.rounds * SHORT_ROUNDS {
        eprintln!("  round {round}");
        // Locks of a turn expire during the turns that follow it, so none of them may always follow the same one.
        let mut turns: Vec<usize> = (0..ALL.len()).collect();
        if round % 2 == 0 {
            turns.reverse();
        }
        for turn in turns {
            let measure = async || watched.measure(&served[turn], seconds).await;
            all[turn].push(&undisturbed(measure).await);
        }
    }
    findings(&all)
}

fn load(served: &Served, connections: usize, seconds: f64) -> Load {
    Wrk::start(Script::Acquire, &served.url(), connections, seconds, "").finish()
}

/// A primary, its replicas, and those who watch them.
struct Watched {
    primary: RedisServer,
    replicas: Vec<RedisServer>,
    sentinels: Sentinels,
}

/// What one process did in one round.
struct Measured {
    many: Load,
    alone: Load,
    service_seconds: f64,
    primary_seconds: f64,
    replicas_seconds: f64,
}

impl Watched {
    async fn start() -> Self {
        let options = RedisOptions::forgetful();
        let primary = RedisServer::start(options.clone()).await;
        let mut replicas = Vec::new();
        for _ in 0..REPLICAS {
            let replica = RedisServer::start(options.clone()).await;
            replica.follow(primary.port()).await;
            primary.is_in_step_with(&replica).await;
            replicas.push(replica);
        }
        primary.is_confirmed_by(REPLICAS).await;
        let sentinels = Sentinels::watch(primary.port(), SENTINELS, None).await;
        for address in sentinels.addresses() {
            let client = redis::Client::open(format!("redis://{address}")).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            let mut set = redis::cmd("SENTINEL");
            set.arg(&["SET", PRIMARY, "down-after-milliseconds", DOWN_AFTER_MS]);
            set.exec_async(&mut connection).await.unwrap();
        }
        eventually("the Sentinels know all of them", async || {
            sentinels.settled_primary(REPLICAS).await
        })
        .await;
        Self {
            primary,
            replicas,
            sentinels,
        }
    }

    fn url(&self) -> String {
        let addresses = self.sentinels.addresses().join(",");
        format!("redis+sentinel://{addresses}/{PRIMARY}/0")
    }

    async fn measure(&self, served: &Served, seconds: f64) -> Measured {
        let primary = redis_pid(&self.primary).await;
        let mut replicas = Vec::new();
        for replica in &self.replicas {
            replicas.push(redis_pid(replica).await);
        }
        let used = || {
            let replicas: f64 = replicas.iter().map(|pid| cpu_seconds(*pid)).sum();
            [cpu_seconds(served.pid()), cpu_seconds(primary), replicas]
        };
        let before = used();
        let many = load(served, CONNECTIONS, seconds);
        let after = used();
        let [service_seconds, primary_seconds, replicas_seconds] =
            [0, 1, 2].map(|of| after[of] - before[of]);
        Measured {
            many,
            alone: load(served, 1, 1.0),
            service_seconds,
            primary_seconds,
            replicas_seconds,
        }
    }
}

impl Series {
    fn push(&mut self, measured: &Measured) {
        let each = |seconds: f64| seconds / measured.many.requests() * 1e6;
        self.per_second.push(measured.many.per_second());
        self.p50_us.push(measured.many.p50_us);
        self.p99_us.push(measured.many.p99_us);
        self.alone_p50_us.push(measured.alone.p50_us);
        self.service_us.push(each(measured.service_seconds));
        self.primary_us.push(each(measured.primary_seconds));
        self.replicas_us.push(each(measured.replicas_seconds));
    }

    /// Each of its figures with a name and a unit.
    fn figures(&self) -> [(&'static str, &'static str, &[f64]); 7] {
        [
            ("acquires", "/s", &self.per_second),
            ("p50", "µs", &self.p50_us),
            ("p99", "µs", &self.p99_us),
            ("p50 of a request alone", "µs", &self.alone_p50_us),
            ("CPU of the process for each", "µs", &self.service_us),
            ("CPU of the primary for each", "µs", &self.primary_us),
            ("CPU of the replicas for each", "µs", &self.replicas_us),
        ]
    }
}

fn findings(all: &[Series; ALL.len()]) -> Vec<Finding> {
    let [direct, others @ ..] = all;
    let mut findings = Vec::new();
    for (name, series) in ALL[1..].iter().zip(others) {
        let pairs = series.figures().into_iter().zip(direct.figures());
        for ((figure, _, samples), (_, _, of_direct)) in pairs {
            let over = ratios(samples, of_direct);
            let over = Finding::new(NAME, format!("{name} over redis://: {figure}"), "", over);
            findings.push(match (*name, figure) {
                ("fast", "acquires") => over.at_least(0.95),
                _ => over,
            });
        }
    }
    for (name, series) in ALL.into_iter().zip(all) {
        for (figure, unit, samples) in series.figures() {
            let figure = format!("{name}: {figure}");
            findings.push(Finding::new(NAME, figure, unit, samples.to_vec()));
        }
    }
    findings
}
