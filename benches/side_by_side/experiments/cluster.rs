//! A Redis Cluster of three primaries beside one Redis: what a grant takes in Redis, and how evenly the primaries share the
//! work. What a Redis takes for a request depends most on how many it reads at once, and a primary gets a part of the
//! requests. So the cluster is compared with one Redis that has equally many requests in flight, in all and for each
//! primary; and with the one Redis that, of several numbers of connections, reads most nearly as many at once. What the
//! mode itself costs is shown by the same script sent straight to both, with equally many calls at a time.

use tokio::time::{Duration, sleep};

use super::{Plan, ratios, redis_floor, redis_pid, redis_url};
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::{Finding, median};
use crate::wrk::{Load, Script, Wrk};

const NAME: &str = "cluster";
const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;
const FEW: usize = 21;
const MANY: usize = FEW * PRIMARIES;
/// Of the one Redis; the last two have as many for one Redis as the cluster has for each primary.
const ON_ONE: [usize; 4] = [3, 7, FEW, MANY];
/// How many calls of the script Redis gets at a time, and for how long.
const AT_A_TIME: [&str; 3] = ["1", "4", "16"];
const STRAIGHT_SECONDS_MAX: f64 = 2.0;
const WARM_UP_SECONDS: f64 = 1.0;
/// For eight seconds after a slot was found on its way, here in a cluster that is just being made, claims take the way on
/// which nobody is passed over.
const CLUSTER_WARM_UP_SECONDS: f64 = 10.0;

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let mut alone = ON_ONE.map(Rounds::on_one);
    let mut cluster = [FEW, MANY].map(|each| Rounds::on_cluster(each * PRIMARIES));
    let mut straight = Vec::new();
    for round in 1..=plan.rounds {
        eprintln!("  round {round}");
        let redis = [RedisServer::start(RedisOptions::forgetful()).await];
        let served = Served::leasehold(&redis_url(&redis[0]), &[]);
        load(&served, MANY, WARM_UP_SECONDS);
        for rounds in &mut alone {
            rounds.measure(&served, &redis, plan.seconds).await;
        }
        drop((served, redis));
        let nodes = started(PRIMARIES).await;
        let served = Served::leasehold(&cluster_url(&nodes), &[]);
        load(&served, MANY, CLUSTER_WARM_UP_SECONDS);
        for rounds in &mut cluster {
            rounds.measure(&served, &nodes, plan.seconds).await;
        }
        drop((served, nodes));
        let seconds = plan.seconds.min(STRAIGHT_SECONDS_MAX);
        straight.push(undisturbed(async || Straight::measure(seconds).await).await);
    }
    let mut findings = findings(&alone, &cluster);
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
        sleep(Duration::from_secs_f64(CLUSTER_WARM_UP_SECONDS)).await;
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

/// What one store came to with so many connections, round by round.
struct Rounds {
    name: String,
    connections: usize,
    rates: Vec<f64>,
    /// CPU time of all Redis together.
    redis_us: Vec<f64>,
    service_us: Vec<f64>,
    requests_per_read: Vec<f64>,
    /// Of the busiest primary, the CPU time over an equal share.
    busiest: Vec<f64>,
}

impl Rounds {
    fn on_one(connections: usize) -> Self {
        Self::new("one Redis", connections)
    }

    fn on_cluster(connections: usize) -> Self {
        Self::new("a cluster", connections)
    }

    fn new(store: &str, connections: usize) -> Self {
        Self {
            name: format!("on {store}, {connections} connections"),
            connections,
            rates: Vec::new(),
            redis_us: Vec::new(),
            service_us: Vec::new(),
            requests_per_read: Vec::new(),
            busiest: Vec::new(),
        }
    }

    /// The CPU time of Redis and of the service, over that of the others.
    fn over(&self, other: &Self) -> [Finding; 2] {
        let over = |party, of: fn(&Self) -> &[f64]| {
            let figure = format!("{party}: acquire {} over {}", self.name, other.name);
            Finding::new(NAME, figure, "", ratios(of(self), of(other)))
        };
        [
            over("Redis", |rounds| &rounds.redis_us),
            over("service", |rounds| &rounds.service_us),
        ]
    }

    async fn measure(&mut self, served: &Served, nodes: &[RedisServer], seconds: f64) {
        let measure = async || Measured::of(served, nodes, self.connections, seconds).await;
        let measured = undisturbed(measure).await;
        let requests = measured.load.requests();
        let redis: f64 = measured.redis_seconds.iter().sum();
        let busiest = measured.redis_seconds.iter().copied().fold(0.0, f64::max);
        self.rates.push(measured.load.per_second());
        self.redis_us.push(redis / requests * 1e6);
        self.service_us
            .push(measured.service_seconds / requests * 1e6);
        self.requests_per_read.push(requests / measured.reads);
        self.busiest
            .push(busiest / redis * measured.redis_seconds.len() as f64);
    }
}

fn findings(alone: &[Rounds; 4], cluster: &[Rounds; 2]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let [.., few, many] = alone;
    let [cluster_few, cluster_many] = cluster;
    for (cluster, one) in [
        (cluster_few, few),
        (cluster_many, many),
        (cluster_few, many),
    ] {
        findings.extend(Rounds::over(cluster, one));
    }
    for cluster in cluster {
        let at_once = median(&cluster.requests_per_read);
        let distance = |one: &&Rounds| (median(&one.requests_per_read) / at_once).ln().abs();
        let nearest = alone
            .iter()
            .min_by(|one, other| distance(one).total_cmp(&distance(other)));
        let [redis, _] = Rounds::over(cluster, nearest.expect("there are some"));
        let figure = format!("{}, which reads about as many at once", redis.figure);
        findings.push(Finding { figure, ..redis }.at_most(1.1));
    }
    for rounds in cluster {
        let name = format!("the busiest primary over an equal share, {}", rounds.name);
        findings.push(Finding::new(NAME, name, "", rounds.busiest.clone()));
    }
    for rounds in alone.iter().chain(cluster) {
        let figure = |what: &str, unit, samples: &[f64]| {
            Finding::new(
                NAME,
                format!("{what} {}", rounds.name),
                unit,
                samples.to_vec(),
            )
        };
        findings.extend([
            figure(
                "Redis: requests for each read",
                "",
                &rounds.requests_per_read,
            ),
            figure("Redis: acquire", "µs", &rounds.redis_us),
            figure("acquire", "µs", &rounds.service_us),
            figure("acquires", "/s", &rounds.rates),
        ]);
    }
    findings
}

struct Measured {
    load: Load,
    service_seconds: f64,
    /// Of each Redis.
    redis_seconds: Vec<f64>,
    /// How often all of them read from their clients.
    reads: f64,
}

impl Measured {
    async fn of(served: &Served, nodes: &[RedisServer], connections: usize, seconds: f64) -> Self {
        let mut pids = Vec::new();
        for node in nodes {
            pids.push(redis_pid(node).await);
        }
        let used = || -> Vec<f64> { pids.iter().map(|pid| cpu_seconds(*pid)).collect() };
        let reads_before = reads(nodes).await;
        let (service_before, before) = (cpu_seconds(served.pid()), used());
        let load = load(served, connections, seconds);
        let after = used().into_iter().zip(before);
        Self {
            load,
            service_seconds: cpu_seconds(served.pid()) - service_before,
            redis_seconds: after.map(|(after, before)| after - before).collect(),
            reads: reads(nodes).await - reads_before,
        }
    }
}

fn load(served: &Served, connections: usize, seconds: f64) -> Load {
    Wrk::start(Script::Acquire, &served.url(), connections, seconds, "").finish()
}

async fn reads(nodes: &[RedisServer]) -> f64 {
    let mut reads = 0.0;
    for node in nodes {
        let of_node = node.info("stats", "total_reads_processed").await;
        reads += of_node.parse::<f64>().expect("a number");
    }
    reads
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
