//! A Redis Cluster of three primaries beside one Redis: what a grant takes in Redis, and how evenly the primaries share the
//! work. A primary gets a part of the requests, so it reads fewer of them at once and takes more time for each; therefore
//! the cluster is measured with as many connections as the one Redis, and with three times as many. What the mode itself
//! costs is shown by the same script sent straight to both, with equally many calls at a time.

use std::time::Duration;

use tokio::time::sleep;

use super::{Plan, ratios, redis_floor, redis_pid, redis_url};
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{Load, Script, Wrk};

const NAME: &str = "cluster";
const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;
const CONNECTIONS: usize = 64;
/// How many calls of the script Redis gets at a time.
const AT_A_TIME: [&str; 3] = ["1", "4", "16"];
/// For eight seconds after a slot was found on its way, here in a cluster that is just being made, claims take the way on
/// which nobody is passed over.
const WARM_UP_SECONDS: f64 = 10.0;

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let [mut alone, mut of_cluster, mut filled]: [Rounds; 3] = Default::default();
    let mut straight = Vec::new();
    for round in 1..=plan.rounds {
        eprintln!("  round {round}");
        let on_one = async || {
            let redis = RedisServer::start(RedisOptions::forgetful()).await;
            measure(&redis_url(&redis), &[redis], CONNECTIONS, plan.seconds).await
        };
        alone.add(&undisturbed(on_one).await);
        for (rounds, connections) in [
            (&mut of_cluster, CONNECTIONS),
            (&mut filled, CONNECTIONS * PRIMARIES),
        ] {
            let on_cluster = async || {
                let nodes = started(PRIMARIES).await;
                measure(&cluster_url(&nodes), &nodes, connections, plan.seconds).await
            };
            rounds.add(&undisturbed(on_cluster).await);
        }
        straight.push(undisturbed(async || Straight::measure(plan.seconds).await).await);
    }
    let mut findings = Vec::new();
    for (rounds, name) in [
        (&of_cluster, "in a cluster"),
        (&filled, "in a cluster with three times the connections"),
    ] {
        let over_one = |party, [cluster, one]: [&[f64]; 2]| {
            let name = format!("{party}: acquire {name} over one Redis");
            Finding::new(NAME, &name, "", ratios(cluster, one))
        };
        findings.push(over_one("Redis", [&rounds.redis_us, &alone.redis_us]));
        findings.push(over_one("service", [&rounds.service_us, &alone.service_us]));
        let name = format!("the busiest primary over an equal share, {name}");
        findings.push(Finding::new(NAME, &name, "", rounds.busiest.clone()));
    }
    for (rounds, name) in [
        (&alone, "on one Redis"),
        (&of_cluster, "in a cluster"),
        (&filled, "in a cluster with three times the connections"),
    ] {
        let figure =
            |name: String, unit, values: &[f64]| Finding::new(NAME, &name, unit, values.to_vec());
        findings.push(figure(
            format!("Redis: acquire {name}"),
            "µs",
            &rounds.redis_us,
        ));
        findings.push(figure(format!("acquire {name}"), "µs", &rounds.service_us));
        findings.push(figure(format!("acquires {name}"), "/s", &rounds.rates));
    }
    findings.extend(straight_findings(&straight));
    findings
}

/// CPU time of the script in one round, by the number of calls at a time.
struct Straight {
    alone_us: [f64; AT_A_TIME.len()],
    /// In a node of a cluster.
    node_us: [f64; AT_A_TIME.len()],
}

impl Straight {
    async fn measure(seconds: f64) -> Self {
        let redis = RedisServer::start(RedisOptions::forgetful()).await;
        let served = Served::leasehold(&redis_url(&redis), &[]);
        let alone_us = redis_floor::cpu_us(&redis, served, AT_A_TIME, seconds).await;
        let nodes = started(1).await;
        let served = Served::leasehold(&cluster_url(&nodes), &[]);
        sleep(Duration::from_secs_f64(WARM_UP_SECONDS)).await;
        let node_us = redis_floor::cpu_us(&nodes[0], served, AT_A_TIME, seconds).await;
        Self { alone_us, node_us }
    }
}

fn straight_findings(rounds: &[Straight]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, at_a_time) in AT_A_TIME.into_iter().enumerate() {
        let us = |of: fn(&Straight) -> &[f64; AT_A_TIME.len()]| -> Vec<f64> {
            rounds.iter().map(|round| of(round)[number]).collect()
        };
        let (alone, node) = (us(|round| &round.alone_us), us(|round| &round.node_us));
        let name = format!("Redis: the script of an acquire, {at_a_time} at a time");
        let finding =
            |place, unit, samples| Finding::new(NAME, format!("{name}, in {place}"), unit, samples);
        findings.push(finding(
            "a cluster over one Redis",
            "",
            ratios(&node, &alone),
        ));
        findings.push(finding("one Redis", "µs", alone));
        findings.push(finding("a cluster", "µs", node));
    }
    findings
}

/// What one store came to, round by round.
#[derive(Default)]
struct Rounds {
    rates: Vec<f64>,
    /// CPU time of all Redis together.
    redis_us: Vec<f64>,
    service_us: Vec<f64>,
    busiest: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, measured: &Measured) {
        let requests = measured.load.requests();
        let redis: f64 = measured.redis_seconds.iter().sum();
        let busiest = measured.redis_seconds.iter().copied().fold(0.0, f64::max);
        self.rates.push(measured.load.per_second());
        self.redis_us.push(redis / requests * 1e6);
        self.service_us
            .push(measured.service_seconds / requests * 1e6);
        self.busiest
            .push(busiest / redis * measured.redis_seconds.len() as f64);
    }
}

struct Measured {
    load: Load,
    service_seconds: f64,
    /// Of each Redis.
    redis_seconds: Vec<f64>,
}

async fn measure(url: &str, nodes: &[RedisServer], connections: usize, seconds: f64) -> Measured {
    let served = Served::leasehold(url, &[]);
    let mut pids = Vec::new();
    for node in nodes {
        pids.push(redis_pid(node).await);
    }
    let load = |seconds| {
        let url = served.url();
        Wrk::start(Script::Acquire, &url, connections, seconds, "").finish()
    };
    load(WARM_UP_SECONDS);
    let used = || -> Vec<f64> { pids.iter().map(|pid| cpu_seconds(*pid)).collect() };
    let (service_before, before) = (cpu_seconds(served.pid()), used());
    let load = load(seconds);
    let after = used().into_iter().zip(before);
    Measured {
        load,
        service_seconds: cpu_seconds(served.pid()) - service_before,
        redis_seconds: after.map(|(after, before)| after - before).collect(),
    }
}

/// Primaries with equally many slots, which know each other.
async fn started(primaries: usize) -> Vec<RedisServer> {
    let options = RedisOptions {
        is_cluster_node: true,
        ..RedisOptions::forgetful()
    };
    let mut nodes = Vec::new();
    for number in 0..primaries {
        let node = RedisServer::start(options.clone()).await;
        let epoch = (number + 1).to_string();
        node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
        let first = (SLOTS * number / primaries).to_string();
        let last = (SLOTS * (number + 1) / primaries - 1).to_string();
        node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])
            .await;
        nodes.push(node);
    }
    for node in &nodes[1..] {
        let (port, bus) = (node.port().to_string(), node.cluster_port().to_string());
        nodes[0]
            .command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
            .await;
    }
    for node in &nodes {
        while !is_complete(node).await {
            sleep(Duration::from_millis(50)).await;
        }
    }
    nodes
}

fn cluster_url(nodes: &[RedisServer]) -> String {
    let addresses: Vec<_> = nodes.iter().map(RedisServer::address).collect();
    format!("redis+cluster://{}", addresses.join(","))
}

/// Whether it knows the primaries of all slots.
async fn is_complete(node: &RedisServer) -> bool {
    let state = node.command(&["CLUSTER", "INFO"]).await;
    let state: String = redis::from_redis_value(state).unwrap();
    state.contains("cluster_state:ok")
}
