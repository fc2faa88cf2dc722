//! The file store beside etcd, which also syncs each grant to disk: how both grow with connections. And what a start with
//! many leases takes.

use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use super::{Plan, ratios};
use crate::machine::{Served, cpu_seconds, undisturbed};
use crate::report::Finding;
use crate::wrk::{self, Script, Wrk};

const NAME: &str = "file";
const CONNECTIONS: [usize; 3] = [1, 64, 256];
const LEASES: f64 = 1_000_000.0;
const WARM_UP_SECONDS: f64 = 1.0;
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let mut findings = beside_etcd(plan).await;
    findings.extend(start(plan).await);
    findings
}

/// Each with its data in a directory on the disk of the build, because a temporary directory may be in memory.
fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the build has made it")
}

fn serve(directory: &TempDir) -> Served {
    let store = format!("file:{}", directory.path().display());
    Served::leasehold(&store, &["--memory-locks-max", "5000000"])
}

#[derive(Clone, Copy)]
enum Store {
    File,
    Etcd,
}

/// What one store did with a number of connections, round by round.
#[derive(Default)]
struct Series {
    per_second: Vec<f64>,
    /// CPU time of the process for each acquire.
    process_us: Vec<f64>,
}

async fn beside_etcd(plan: Plan) -> Vec<Finding> {
    let [mut file, mut etcd] = [(); 2].map(|()| CONNECTIONS.map(|_| Series::default()));
    for round in 1..=plan.rounds {
        for (index, connections) in CONNECTIONS.into_iter().enumerate() {
            eprintln!("  round {round}: {connections} connections");
            for (store, series) in [(Store::File, &mut file), (Store::Etcd, &mut etcd)] {
                let measure = async || measure(store, connections, plan.seconds).await;
                let [per_second, process_us] = undisturbed(measure).await;
                series[index].per_second.push(per_second);
                series[index].process_us.push(process_us);
            }
        }
    }
    let mut findings = Vec::new();
    for (index, connections) in CONNECTIONS.into_iter().enumerate() {
        let over_etcd = Finding::new(
            NAME,
            format!("file: over etcd, {connections} connections"),
            "",
            ratios(&file[index].per_second, &etcd[index].per_second),
        );
        findings.push(match connections {
            256 => over_etcd.at_least(5.0),
            _ => over_etcd,
        });
    }
    for (index, connections) in CONNECTIONS.into_iter().enumerate().skip(1) {
        let growth = ratios(&file[index].per_second, &file[0].per_second);
        let figure = format!("file: {connections} connections over 1");
        findings.push(Finding::new(NAME, figure, "", growth));
    }
    for (store, all) in [("file:", file), ("etcd:", etcd)] {
        for (connections, series) in CONNECTIONS.into_iter().zip(all) {
            let finding = |figure: &str, unit, samples| {
                let figure = format!("{store} {figure}, {connections} connections");
                Finding::new(NAME, figure, unit, samples)
            };
            findings.push(finding("acquires", "/s", series.per_second));
            let figure = "CPU of the process for each";
            findings.push(finding(figure, "µs", series.process_us));
        }
    }
    findings
}

/// Acquires per second of fresh names, and the CPU time of the process for each.
async fn measure(store: Store, connections: usize, seconds: f64) -> [f64; 2] {
    let directory = directory();
    let (served, argument) = match store {
        Store::File => (serve(&directory), String::new()),
        Store::Etcd => Served::etcd(self::directory()).await,
    };
    let script = match store {
        Store::File => Script::Acquire,
        Store::Etcd => Script::Etcd,
    };
    let load =
        |seconds| Wrk::start(script, &served.url(), connections, seconds, &argument).finish();
    load(WARM_UP_SECONDS);
    let before = cpu_seconds(served.pid());
    let load = load(seconds);
    let used = cpu_seconds(served.pid()) - before;
    [load.per_second(), used / load.requests() * 1e6]
}

/// The time from the start of a process to its first answer, after its predecessor was killed; and the size of the file.
async fn start(plan: Plan) -> Vec<Finding> {
    let directory = directory();
    let served = serve(&directory);
    let mut held = 0.0;
    while held < LEASES / plan.less as f64 {
        held += wrk::run(Script::Fill, &served.url(), 64, 1.0).good();
    }
    eprintln!("  {held} locks are held");
    drop(served);
    let file = directory.path().join("leases.redb");
    let bytes = std::fs::metadata(file)
        .expect("the store has made it")
        .len() as f64;
    let mut seconds = Vec::new();
    for _ in 0..plan.rounds {
        let measure = async || {
            let began = Instant::now();
            let served = serve(&directory);
            while served.post("/livez", "").await.is_err() {
                assert!(began.elapsed() < START_TIMEOUT, "it does not answer");
            }
            began.elapsed().as_secs_f64()
        };
        seconds.push(undisturbed(measure).await * LEASES / held);
    }
    vec![
        Finding::new(
            NAME,
            "start to first answer, for a million leases",
            "s",
            seconds,
        )
        .at_most(3.0),
        Finding::new(
            NAME,
            "size of the file for each lease",
            "bytes",
            vec![bytes / held],
        ),
    ]
}
