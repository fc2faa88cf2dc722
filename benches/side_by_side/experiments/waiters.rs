//! What clients cost that wait: memory of the process for each, its connection included, and CPU while nothing happens.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::time::{sleep, timeout};

use super::{Plan, redis_url};
use crate::http1::{Connection, Request};
use crate::machine::{Served, cpu_seconds, resident_kib};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;

const NAME: &str = "waiters";
const WAITERS: usize = 20_000;
/// Descriptors that are not those of waiters.
const SPARE: usize = 200;
const PARKED_FOR: Duration = Duration::from_secs(10);
/// How long it may take until all wait.
const PARKED_WITHIN: Duration = Duration::from_secs(60);

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let (_, descriptors) = getrlimit(Resource::RLIMIT_NOFILE).expect("the system says");
    let most = usize::try_from(descriptors)
        .unwrap_or(usize::MAX)
        .saturating_sub(SPARE);
    let count = (WAITERS / plan.less).min(most);
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let mut findings = Vec::new();
    for (store, url) in [("memory:", "memory:"), ("redis://", &redis_url(&redis))] {
        for locks in [1, 100] {
            eprintln!("  {store}: {count} waiters on {locks} locks");
            let (memory, cpu) = park(url, count, locks).await;
            let of = |what: &str| format!("{store} {what}, {count} waiters on {locks}");
            findings
                .push(Finding::new(NAME, of("memory for each"), "KiB", vec![memory]).at_most(12.0));
            findings.push(
                Finding::new(NAME, of("CPU while parked"), "% of a core", vec![cpu]).at_most(3.0),
            );
        }
    }
    findings
}

async fn park(store: &str, count: usize, locks: usize) -> (f64, f64) {
    let limit = (count + SPARE).to_string();
    // All come from one address, which has half of what has no limit for each address.
    let limit_of_all = (2 * (count + SPARE)).to_string();
    let flags = [
        ["--server-connections-max", &limit],
        ["--server-connections-per-peer-max", &limit],
        ["--server-requests-max", &limit_of_all],
        ["--waiting-waiters-max", &limit_of_all],
        ["--waiting-waiters-per-lock-max", &limit],
        ["--waiting-wait-max", "1h"],
    ];
    let served = Served::leasehold(store, flags.as_flattened());
    let mut client = Connection::open(served.address).await.unwrap();
    let run = uuid::Uuid::new_v4();
    let path = |number: usize| format!("/locks/{run}-{}", number % locks);
    for number in 0..locks {
        let request = Request {
            method: "POST",
            path: &path(number),
            token: None,
            body: "ttl=1h",
        };
        assert_eq!(client.ask(request).await.unwrap().status, 201);
    }
    let before = resident_kib(served.pid());
    let mut parked = Vec::with_capacity(count);
    for number in 0..count {
        let mut connection = Connection::open(served.address).await.unwrap();
        let request = Request {
            method: "POST",
            path: &path(number),
            token: None,
            body: "ttl=1h&wait=1h",
        };
        connection.send(request).await.unwrap();
        parked.push(connection);
    }
    let waits = format!("leasehold_local_long_polls {count}");
    let all_wait = async {
        while !text(&mut client).await.contains(&waits) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    let in_time = timeout(PARKED_WITHIN, all_wait).await;
    in_time.expect("a limit of the service keeps some from waiting");
    // What was needed to let them in settles first.
    sleep(Duration::from_secs(3)).await;
    let memory = (resident_kib(served.pid()) - before) / count as f64;
    let used = cpu_seconds(served.pid());
    sleep(PARKED_FOR).await;
    let cpu = (cpu_seconds(served.pid()) - used) / PARKED_FOR.as_secs_f64() * 100.0;
    (memory, cpu)
}

async fn text(client: &mut Connection) -> String {
    let request = Request {
        method: "GET",
        path: "/metrics",
        token: None,
        body: "",
    };
    String::from_utf8_lossy(&client.ask(request).await.unwrap().body).into_owned()
}
