//! How throughput depends on the number of connections: acquires only, because a release could overtake its acquire where
//! many connections have their turns.

use super::{Plan, ratios, redis_url};
use crate::machine::{Served, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;
use crate::wrk::{self, Script};

const NAME: &str = "connections";
const COUNTS: [usize; 4] = [16, 64, 256, 1_000];

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let mut findings = Vec::new();
    for (store, url) in [("memory:", "memory:"), ("redis://", &redis_url(&redis))] {
        let served = Served::leasehold(url, &["--memory-locks-max", "20000000"]);
        let mut rates: [Vec<f64>; COUNTS.len()] = Default::default();
        for round in 1..=plan.rounds {
            eprintln!("  {store}: round {round}");
            for (count, rates) in COUNTS.into_iter().zip(&mut rates) {
                let seconds = plan.seconds.min(3.0);
                let measure = async || wrk::run(Script::Acquire, &served.url(), count, seconds);
                rates.push(undisturbed(measure).await.per_second());
            }
        }
        for (count, of_count) in COUNTS.into_iter().zip(&rates) {
            let figure = format!("{store} {count} connections over 64");
            findings.push(Finding::new(NAME, figure, "", ratios(of_count, &rates[1])));
        }
    }
    findings
}
