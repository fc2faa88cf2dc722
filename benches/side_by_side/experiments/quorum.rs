//! A quorum of three and of five Redis beside one Redis, and beside etcd with three members: with all nodes, without one of
//! them, and with one that answers late. Throughput is that of many connections; latency is that of a few, which leave time
//! between the requests.

use std::time::Duration;

use super::{Plan, ratios, redis_url};
use crate::delay::DelayingProxy;
use crate::etcd_cluster::EtcdCluster;
use crate::machine::{Served, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{Script, Wrk};

const NAME: &str = "quorum";
const MANY_CONNECTIONS: usize = 64;
const FEW_CONNECTIONS: usize = 4;
const WARM_UP_SECONDS: f64 = 1.0;
const MEMBERS: usize = 3;

/// How late the answers of a slow node are.
const DELAY: Duration = Duration::from_millis(50);
const DELAY_US: f64 = 50_000.0;

#[derive(Clone, Copy, PartialEq)]
enum Contestant {
    OneRedis,
    /// With this number of nodes.
    Quorum(usize),
    /// Syncs to disk.
    Etcd,
}

/// What is wrong with the last node.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    Nothing,
    Down,
    Slow,
}

use Contestant::{Etcd, OneRedis, Quorum};
use Trouble::{Down, Nothing, Slow};

const ALL: [(Contestant, Trouble, &str); 10] = [
    (OneRedis, Nothing, "one Redis"),
    (Quorum(3), Nothing, "quorum of 3"),
    (Quorum(3), Down, "quorum of 3, one node down"),
    (Quorum(3), Slow, "quorum of 3, one node 50 ms slow"),
    (Quorum(5), Nothing, "quorum of 5"),
    (Quorum(5), Down, "quorum of 5, one node down"),
    (Quorum(5), Slow, "quorum of 5, one node 50 ms slow"),
    (Etcd, Nothing, "etcd of 3"),
    (Etcd, Down, "etcd of 3, one member down"),
    (Etcd, Slow, "etcd of 3, one member 50 ms slow"),
];

/// What one contestant did in all rounds.
#[derive(Default)]
struct Series {
    per_second: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
}

/// What one contestant did in one round.
struct Measured {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let mut all: [Series; ALL.len()] = Default::default();
    for round in 1..=plan.rounds {
        for ((contestant, trouble, name), series) in ALL.iter().zip(&mut all) {
            eprintln!("  round {round}: {name}");
            let measure = async || measured(*contestant, *trouble, plan.seconds).await;
            let measured = undisturbed(measure).await;
            series.per_second.push(measured.per_second);
            series.p50_us.push(measured.p50_us);
            series.p99_us.push(measured.p99_us);
        }
    }
    findings(&all)
}

async fn measured(contestant: Contestant, trouble: Trouble, seconds: f64) -> Measured {
    match contestant {
        OneRedis => {
            let redis = RedisServer::start(RedisOptions::forgetful()).await;
            let served = Served::leasehold(&redis_url(&redis), &[]);
            load(&served, Script::Acquire, "", seconds)
        }
        Quorum(count) => of_quorum(count, trouble, seconds).await,
        Etcd => {
            let delay = (trouble == Slow).then_some(DELAY);
            let mut cluster = EtcdCluster::start(MEMBERS, delay).await;
            if trouble == Down {
                cluster.kill_last();
            }
            load(cluster.leader(), Script::Etcd, &cluster.lease, seconds)
        }
    }
}

async fn of_quorum(count: usize, trouble: Trouble, seconds: f64) -> Measured {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(RedisServer::start(RedisOptions::forgetful()).await);
    }
    let mut urls: Vec<_> = nodes.iter().map(redis_url).collect();
    let last = nodes.last().expect("there are some");
    let target = last.address().parse().unwrap();
    let proxy = (trouble == Slow).then(|| DelayingProxy::start(target, DELAY));
    if let (Some(proxy), Some(last)) = (&proxy, urls.last_mut()) {
        *last = format!("redis://{}", proxy.address());
    }
    let served = Served::leasehold(&format!("quorum:{}", urls.join(",")), &[]);
    if trouble == Down {
        drop(nodes.pop());
    }
    load(&served, Script::Acquire, "", seconds)
}

/// Throughput, and then latency.
fn load(served: &Served, script: Script, argument: &str, seconds: f64) -> Measured {
    let url = served.url();
    let load =
        |connections, seconds| Wrk::start(script, &url, connections, seconds, argument).finish();
    load(MANY_CONNECTIONS, WARM_UP_SECONDS);
    let many = load(MANY_CONNECTIONS, seconds);
    let few = load(FEW_CONNECTIONS, seconds);
    // Both have been granted all that they asked for.
    let (per_second, _) = (many.per_second(), few.per_second());
    Measured {
        per_second,
        p50_us: few.p50_us,
        p99_us: few.p99_us,
    }
}

fn findings(all: &[Series; ALL.len()]) -> Vec<Finding> {
    let of = |contestant, trouble| {
        let is_it = |(other, with, _): &(Contestant, Trouble, &str)| {
            *other == contestant && *with == trouble
        };
        &all[ALL.iter().position(is_it).expect("all are there")]
    };
    let rates = |name: &str, over: &Series, under: &Series| {
        Finding::new(NAME, name, "", ratios(&over.per_second, &under.per_second))
    };
    let (three, five) = (of(Quorum(3), Nothing), of(Quorum(5), Nothing));
    let (one, etcd) = (of(OneRedis, Nothing), of(Etcd, Nothing));
    let mut findings = vec![
        rates("quorum of 3 over one Redis", three, one),
        rates("quorum of 5 over one Redis", five, one),
        rates("quorum of 3 over etcd, which syncs to disk", three, etcd),
        rates("quorum of 5 over etcd, which syncs to disk", five, etcd),
    ];
    for ((_, trouble, name), series) in ALL.into_iter().zip(all) {
        let finding = |what: &str, unit, samples: &[f64]| {
            Finding::new(NAME, format!("{name}: {what}"), unit, samples.to_vec())
        };
        let p99 = finding("p99", "µs", &series.p99_us);
        findings.extend([
            finding("acquires", "/s", &series.per_second),
            finding("p50", "µs", &series.p50_us),
            match trouble {
                // A request that waits for the slow node takes longer.
                Slow => p99.at_most(DELAY_US),
                Nothing | Down => p99,
            },
        ]);
    }
    findings
}
