//! How throughput depends on the number of connections: acquires only, because a release could overtake its acquire where
//! many connections have their turns. And how long one request takes if it comes alone, on a connection that was used a
//! short while ago or a long while ago: the caches of the cores do not hold very many connections, whoever serves them.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::{Plan, ratios, redis_url};
use crate::http1::{Connection, Request};
use crate::machine::{Served, undisturbed};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::{Finding, median};
use crate::wrk::{self, Script};

const NAME: &str = "connections";
const COUNTS: [usize; 4] = [16, 64, 256, 1_000];
/// One request at a time goes out on so many connections in turn.
const IN_TURN: [usize; 2] = [10, 10_000];
/// So many requests in a turn, and so many turns in a round of the plan.
const TURN: usize = 200;
const TURNS: usize = 3;
const AMPLE: [&str; 6] = [
    "--memory-locks-max",
    "20000000",
    "--server-connections-max",
    "15000",
    "--server-connections-per-peer-max",
    "15000",
];

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let mut findings = Vec::new();
    let contestants = [
        ("bare handler", Served::contestant("bare", "")),
        ("memory:", Served::leasehold("memory:", &AMPLE)),
        ("redis://", Served::leasehold(&redis_url(&redis), &AMPLE)),
    ];
    for (contestant, served) in &contestants[..2] {
        eprintln!("  {contestant}: one request at a time");
        findings.extend(in_turn(contestant, served, plan).await);
    }
    for (contestant, served) in &contestants {
        let mut rates: [Vec<f64>; COUNTS.len()] = Default::default();
        for round in 1..=plan.rounds {
            eprintln!("  {contestant}: round {round}");
            for (count, rates) in COUNTS.into_iter().zip(&mut rates) {
                let seconds = plan.seconds.min(3.0);
                let measure = async || wrk::run(Script::Acquire, &served.url(), count, seconds);
                rates.push(undisturbed(measure).await.per_second());
            }
        }
        for (count, of_count) in COUNTS.into_iter().zip(&rates) {
            let figure = format!("{contestant}: {count} connections over 64");
            findings.push(Finding::new(NAME, figure, "", ratios(of_count, &rates[1])));
        }
    }
    findings
}

/// How long a request takes, on few connections in turn and on many.
async fn in_turn(contestant: &str, served: &Served, plan: Plan) -> [Finding; 2] {
    let mut connections = IN_TURN.map(|_| VecDeque::new());
    for (count, opened) in IN_TURN.into_iter().zip(&mut connections) {
        let count = if count > 10 { count / plan.less } else { count };
        for _ in 0..count {
            let mut connection = Connection::open(served.address).await.unwrap();
            microseconds(&mut connection).await;
            opened.push_back(connection);
        }
    }
    let [few, many] = &mut connections;
    let (mut on_few, mut on_many) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds * TURNS {
        on_few.push(turn(few).await);
        on_many.push(turn(many).await);
    }
    let (few, many) = (few.len(), many.len());
    let figure = format!("{contestant}: a request alone, on {many} connections in turn over {few}");
    let times = format!("{contestant}: a request alone, on {few} connections in turn, p50");
    [
        Finding::new(NAME, figure, "", ratios(&on_many, &on_few)),
        Finding::new(NAME, times, "µs", on_few),
    ]
}

/// The median of a turn, in microseconds.
async fn turn(connections: &mut VecDeque<Connection>) -> f64 {
    let mut took = Vec::new();
    for _ in 0..TURN {
        took.push(microseconds(&mut connections[0]).await);
        connections.rotate_left(1);
    }
    median(&took)
}

/// How long an acquire takes.
async fn microseconds(connection: &mut Connection) -> f64 {
    let path = format!("/locks/{}", uuid::Uuid::new_v4());
    let request = Request {
        method: "POST",
        path: &path,
        token: None,
        body: r#"{"ttl":"60s"}"#,
    };
    let asked = Instant::now();
    let answer = connection.ask(request).await.unwrap();
    assert!(answer.grants(), "{}", answer.status);
    (answer.at - asked).as_secs_f64() * 1e6
}
