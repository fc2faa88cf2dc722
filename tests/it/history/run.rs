//! One run: rounds of at most a minute, each with its own processes and Redis, so that the record stays small.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::actor::connect;
use super::chance::Chance;
use super::faults::{Effects, Fault, Nemesis};
use super::fleet::{self, Fleet};
use super::judge::{Counts, Violation, judge};
use super::linear;
use super::observe;
use super::options::{Backend, Options};
use super::plan::{KEPT, PAIR, SINGLE};
use super::record::{Bounds, Effect, History, Micros};
use super::recorder::Recorder;
use super::resource::Resource;
use super::scenes::{self, Stage};
use crate::support::redis_server::Persistence;
use crate::waiters::http1::Request;

/// The longest duration of a round, not counting the time of the faults themselves.
const ROUND: Duration = Duration::from_secs(60);

/// How many nodes a quorum has.
const NODES: usize = 3;

/// How often a fault without an effect is retried.
const MISSES_MAX: usize = 3;

/// How long clients may take to finish at the end: two waits that time out in the client.
const FINISH: Duration = Duration::from_secs(60);

/// How late a response may be in an unoptimised build, on a machine that runs other tests at the same time.
pub(super) const BUSY: Micros = 1_500_000;

/// The random sequence of the faults; the others belong to clients.
const FAULTS_PART: u64 = 1 << 32;

/// The findings of a run.
#[derive(Default)]
pub(super) struct Report {
    pub(super) rounds: Vec<Round>,
    pub(super) effects: Effects,
    pub(super) redis_version: String,
}

/// The findings of a round.
pub(super) struct Round {
    pub(super) seed: u64,
    pub(super) time: Duration,
    pub(super) counts: Counts,
    pub(super) violations: Vec<Violation>,
    pub(super) crashed: Vec<usize>,
    /// Whether every client finished.
    pub(super) is_finished: bool,
}

/// Runs rounds until the time is over.
pub(super) async fn run(options: &Options) -> Report {
    let mut report = Report::default();
    let mut left = options.time;
    let mut seed = options.seed;
    while left > Duration::ZERO {
        let time = left.min(ROUND);
        let round = round(options, seed, time, &mut report).await;
        println!("{}", super::report::line(&round));
        report.rounds.push(round);
        left = left.saturating_sub(time);
        seed += 1;
    }
    report
}

async fn round(options: &Options, seed: u64, time: Duration, report: &mut Report) -> Round {
    let mut fleet = started(options, seed).await;
    if let Some(redis) = fleet.any_redis() {
        report.redis_version = redis.info("server", "redis_version").await;
    }
    let recorder = Recorder::new(Bounds {
        place_kept: fleet::place_kept(),
        late: Bounds::default().late + BUSY,
        is_quorum: options.backend == Backend::Quorum,
        is_confirmed: options.wait_replicas > 0,
        is_partitioned: matches!(options.backend, Backend::Cluster | Backend::Quorum),
    });
    let resource = Resource::start(recorder.clone());
    let (end_clients, clients_over) = watch::channel(false);
    let (end_observers, observers_over) = watch::channel(false);
    let stage = Stage {
        recorder: recorder.clone(),
        addresses: fleet.addresses.clone(),
        resource: resource.address,
        presented: options.presented,
        processes: options.processes,
        first_process: 0,
        ttl_max: options.ttl_max,
        seed,
        over: clients_over,
    };
    let mut clients = JoinSet::new();
    for number in 0..options.clients {
        clients.spawn(scenes::client(stage.clone(), number, false));
        // Half as many further clients keep locks for long.
        if number.is_multiple_of(2) {
            let number = options.clients + number;
            clients.spawn(scenes::client(stage.clone(), number, true));
        }
    }
    let stage = Stage {
        over: observers_over,
        ..stage
    };
    let mut observers = observers(&stage, &fleet);
    let effects = strike(options, &mut fleet, &recorder, seed, time).await;
    add(&mut report.effects, effects);
    end_clients.send_replace(true);
    let finished = timeout(FINISH, async {
        while clients.join_next().await.is_some() {}
    });
    let is_finished = finished.await.is_ok();
    let ended = recorder.now();
    let left_over = left_over(&stage, options, &recorder).await;
    end_observers.send_replace(true);
    drop(
        timeout(FINISH, async {
            while observers.join_next().await.is_some() {}
        })
        .await,
    );
    let mut history = recorder.history();
    (history.ended, history.left_over) = (ended, left_over);
    history.uses = resource.end();
    let (violations, counts) = by_both_judges(&history);
    Round {
        seed,
        time,
        counts,
        violations,
        crashed: fleet.crashed(),
        is_finished,
    }
}

/// The processes, and the store that they share.
async fn started(options: &Options, seed: u64) -> Fleet {
    let has_clock = options.faults.contains(&Fault::Clock);
    let persistence = options.persistence(seed);
    match options.backend {
        Backend::Redis => Fleet::on_redis(1, options.processes, persistence, has_clock).await,
        Backend::Quorum => Fleet::on_redis(NODES, options.processes, persistence, has_clock).await,
        Backend::Cluster => Fleet::on_cluster(options.processes).await,
        Backend::Sentinel => Fleet::on_sentinels(options.processes, options.wait_replicas).await,
        Backend::Memory => Fleet::in_memory(),
        Backend::File => Fleet::on_file(),
    }
}

pub(super) fn by_both_judges(history: &History) -> (Vec<Violation>, Counts) {
    let (mut violations, counts) = judge(history);
    violations.extend(linear::check(history));
    (violations, counts)
}

/// The passive clients, and the tasks that detect a slow machine.
fn observers(stage: &Stage, fleet: &Fleet) -> JoinSet<()> {
    let mut observers = JoinSet::new();
    // One of them may be the only one that uses a former primary.
    let alternates = fleet.watched.is_some();
    for number in 0..2 {
        observers.spawn(observe::watcher(stage.clone(), number));
    }
    observers.spawn(observe::observer(stage.clone(), 0, alternates));
    observers.spawn(observe::pulse(stage.clone()));
    for (number, store) in fleet.stores.iter().enumerate() {
        let node = fleet.is_quorum().then_some(number);
        observers.spawn(observe::store_pulse(stage.clone(), store.own_way(), node));
    }
    for redis in fleet.direct() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, redis.port()));
        observers.spawn(observe::store_pulse(stage.clone(), address, None));
    }
    observers
}

/// Executes the faults, each of them at least once, until the time is over.
async fn strike(
    options: &Options,
    fleet: &mut Fleet,
    recorder: &Recorder,
    seed: u64,
    time: Duration,
) -> Effects {
    let end = Instant::now() + time;
    let chance = Chance::new(seed, FAULTS_PART);
    let mut nemesis = Nemesis::new(fleet, recorder.clone(), chance, options.ttl_max);
    if !options.faults.is_empty() {
        sleep(Duration::from_secs(1)).await;
        let mut order = options.faults.clone();
        nemesis.chance.shuffle(&mut order);
        for turn in 0.. {
            if turn >= order.len() && Instant::now() >= end {
                break;
            }
            nemesis.strike(order[turn % order.len()]).await;
            let pause = nemesis.chance.millis(200, 2_000);
            sleep(pause).await;
        }
        for _ in 0..MISSES_MAX {
            for fault in &order {
                let (_, effective, _) = nemesis.effects.get(fault).copied().unwrap_or_default();
                if effective == 0 {
                    nemesis.strike(*fault).await;
                }
            }
        }
    }
    tokio::time::sleep_until(end).await;
    nemesis.is_over().await;
    nemesis.effects
}

fn add(sum: &mut Effects, more: Effects) {
    for (fault, (tried, effective, observed)) in more {
        let sum = sum.entry(fault).or_default();
        *sum = (sum.0 + tried, sum.1 + effective, sum.2 + observed);
    }
}

/// The locks that are not free although every lease, cool-down and grace must have ended.
pub(super) async fn left_over(
    stage: &Stage,
    options: &Options,
    recorder: &Recorder,
) -> Vec<String> {
    let has_loss = recorder.history().outages.iter().any(|outage| {
        outage.forgets() || matches!(outage.effect, Effect::Minority | Effect::MinorityLoss)
    });
    // The longest lease and its `lock_delay`; after a loss, the time of a second lease for the grace.
    let leases = if has_loss {
        2 * options.ttl_max
    } else {
        options.ttl_max
    };
    let timeout = leases + fleet::PLACE_KEPT + Duration::from_secs(8);
    let give_up = Instant::now() + timeout;
    loop {
        let mut left = Vec::new();
        for name in SINGLE.iter().chain(&PAIR).chain(&KEPT) {
            if !is_free(stage, name).await {
                left.push((*name).to_owned());
            }
        }
        if left.is_empty() || Instant::now() > give_up {
            return left;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn is_free(stage: &Stage, name: &str) -> bool {
    let path = format!("/locks/{name}");
    let request = Request {
        method: "GET",
        path: &path,
        token: None,
        body: "",
    };
    let Ok(mut connection) = connect(&stage.addresses, 0).await else {
        return false;
    };
    let answer = timeout(Duration::from_secs(4), connection.ask(request)).await;
    let Ok(Ok(answer)) = answer else {
        return false;
    };
    let lock = answer.json();
    lock["state"] == "free" && lock["queue_length"] == 0
}

/// A description of what Redis keeps on disk.
pub(super) fn kept(persistence: Persistence) -> &'static str {
    match persistence {
        Persistence::Nothing => "nothing",
        Persistence::AofEverySecond => "everything, within a second",
        Persistence::AofAlways => "everything, at once",
    }
}
