//! How many commands are sent to Redis for each operation that meets nobody.

use super::redis_url;
use crate::http1::{Connection, Request};
use crate::machine::Served;
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;

const NAME: &str = "commands";
const COUNT: i64 = 1_000;

pub(super) async fn run() -> Vec<Finding> {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    // Looking at Redis now and then is not part of an operation.
    let flags = ["--redis-check-interval", "1h"];
    let served = Served::leasehold(&redis_url(&redis), &flags);
    let mut client = Connection::open(served.address).await.unwrap();
    let mut findings = Vec::new();
    for (method, name) in [("POST", "acquire"), ("PUT", "renew"), ("DELETE", "release")] {
        // Once, because Redis does not know a script before it was sent to it.
        ask(&mut client, method, 0).await;
        let before = sent(&redis).await;
        for number in 1..=COUNT {
            ask(&mut client, method, number).await;
        }
        let sent = sent(&redis).await - before;
        let figure = format!("commands for each {name}");
        findings
            .push(Finding::new(NAME, figure, "", vec![sent as f64 / COUNT as f64]).at_most(1.0));
    }
    findings
}

async fn ask(client: &mut Connection, method: &str, number: i64) {
    let (path, token) = (
        format!("/locks/orders-{number}"),
        format!("6f1c3b0e-8f0a-4f57-9c55-{number:012}"),
    );
    let request = Request {
        method,
        path: &path,
        token: Some(&token),
        body: "",
    };
    let answer = client.ask(request).await.unwrap();
    assert!(
        matches!(answer.status, 200 | 201 | 204),
        "{}",
        answer.status
    );
}

/// Scripts and messages that clients have sent. Scripts send neither while nobody waits or watches; what else they run is
/// not sent, and what a connection begins with or is kept alive by is no operation.
async fn sent(redis: &RedisServer) -> i64 {
    let text = redis.info_section("commandstats").await;
    let calls = |line: &str| -> Option<i64> {
        let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let is_sent = command.starts_with("eval") || command == "publish";
        let count = figures.strip_prefix("calls=")?.split(',').next()?;
        is_sent.then(|| count.parse().unwrap())
    };
    text.lines().filter_map(calls).sum()
}
