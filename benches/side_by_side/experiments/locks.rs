//! Whether a million locks that are held slow down the others.

use super::{Plan, ratios, redis_url};
use crate::machine::{Served, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{self, Script};

const NAME: &str = "locks";
const MANY: f64 = 1_000_000.0;
const FEW: f64 = 1_000.0;

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let flags = ["--memory-locks-max", "5000000"];
    let memory = [
        Served::leasehold("memory:", &flags),
        Served::leasehold("memory:", &flags),
    ];
    let mut findings = compare(plan, "memory:", &memory).await;
    drop(memory);
    let redis = [
        RedisServer::start(RedisOptions::forgetful()).await,
        RedisServer::start(RedisOptions::forgetful()).await,
    ];
    let served = [0, 1].map(|of| Served::leasehold(&redis_url(&redis[of]), &[]));
    findings.extend(compare(plan, "redis://", &served).await);
    findings
}

/// Acquires and releases beside few locks and beside many, in turn.
async fn compare(plan: Plan, store: &str, [few, many]: &[Served; 2]) -> Vec<Finding> {
    let count = fill(few, FEW / plan.less as f64).max(1.0);
    eprintln!("  {store}: {count} locks are held in one");
    let count = fill(many, MANY / plan.less as f64);
    eprintln!("  {store}: {count} locks are held in the other");
    let (mut beside_few, mut beside_many) = (Vec::new(), Vec::new());
    for round in 1..=plan.rounds {
        eprintln!("  {store}: round {round}");
        for (served, rates) in [(few, &mut beside_few), (many, &mut beside_many)] {
            let measure = async || wrk::run(Script::Pairs, &served.url(), 64, plan.seconds);
            rates.push(undisturbed(measure).await.per_second());
        }
    }
    let ratio = ratios(&beside_many, &beside_few);
    vec![
        Finding::new(
            NAME,
            format!("{store} beside {count:.0} locks over {FEW:.0}"),
            "",
            ratio,
        )
        .at_least(0.95),
        Finding::new(
            NAME,
            format!("{store} beside {FEW:.0} locks"),
            "/s",
            beside_few,
        ),
        Finding::new(
            NAME,
            format!("{store} beside {count:.0} locks"),
            "/s",
            beside_many,
        ),
    ]
}

/// Acquires until about so many are held.
fn fill(served: &Served, count: f64) -> f64 {
    let mut held = 0.0;
    while held < count {
        // A few seconds at a time: how fast it goes is not known before. A thousand takes less than the shortest run.
        let connections = if count <= FEW { 1 } else { 64 };
        held += wrk::run(Script::Fill, &served.url(), connections, 1.0).good();
    }
    held
}
