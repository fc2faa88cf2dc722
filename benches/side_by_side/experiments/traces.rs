//! What traces cost: acquires whose spans go to a collector that reads them and nothing else, beside the same without
//! traces in the same round. wrk sends no `traceparent`, so the service decides which requests are traced.

use std::cell::RefCell;

use super::added_cost::{self, Case, Cost};
use super::{Plan, redis_url};
use crate::http1::{Connection, Request};
use crate::machine::Served;
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;

const NAME: &str = "traces";
const CONNECTIONS: usize = 64;

/// How many of a million requests are traced, if there is a collector at all, and what this is called.
const ALL: [(Option<&str>, &str); 3] = [
    (None, "no traces"),
    (Some("10000"), "traces of 1 %"),
    (Some("1000000"), "traces of all"),
];

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let cases = ALL.map(|(_, name)| Case {
        name,
        over: 0,
        least: None,
    });
    let sent = RefCell::new([const { Vec::new() }; ALL.len()]);
    let mut findings = added_cost::of(NAME, plan, &cases, async |index| {
        let (cost, spans) = measure(ALL[index].0, plan.seconds).await;
        sent.borrow_mut()[index].push(spans);
        cost
    })
    .await;
    // What is dropped costs less than what is sent, so a figure says little without this one.
    for ((_, name), shares) in ALL.iter().zip(sent.into_inner()).skip(1) {
        let figure = format!("spans that were sent, of those of {name}");
        findings.push(Finding::new(NAME, figure, "", shares));
    }
    findings
}

/// What an acquire costs, and which share of the spans were sent.
async fn measure(sampled: Option<&str>, seconds: f64) -> (Cost, f64) {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let collector = Served::contestant("collector", "");
    let endpoint = collector.url();
    let flags = match sampled {
        None => Vec::new(),
        Some(sampled) => vec![
            "--traces-endpoint",
            &endpoint,
            "--traces-sampled-per-million",
            sampled,
        ],
    };
    let served = Served::leasehold(&redis_url(&redis), &flags);
    let cost = Cost::by_wrk(&served, CONNECTIONS, "", seconds);
    (cost, share_sent(&served).await)
}

/// By the metrics of the service.
async fn share_sent(served: &Served) -> f64 {
    let mut connection = Connection::open(served.address).await.unwrap();
    let request = Request {
        method: "GET",
        path: "/metrics",
        token: None,
        body: "",
    };
    let answer = connection.ask(request).await.unwrap();
    let metrics = String::from_utf8(answer.body).unwrap();
    let sum = |name: &str| -> f64 {
        let lines = metrics.lines().filter(|line| line.starts_with(name));
        let values = lines.map(|line| line.rsplit_once(' ').unwrap().1);
        values.map(|value| value.parse::<f64>().unwrap()).sum()
    };
    let exported = sum("leasehold_spans_exported_total");
    exported / (exported + sum("leasehold_spans_dropped_total"))
}
