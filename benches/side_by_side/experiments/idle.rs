//! What the service costs before anybody asks: memory, size, and the time until it answers.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Plan, redis_url};
use crate::http1::{Connection, Request};
use crate::machine::{Served, free_address, resident_kib};
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;

const NAME: &str = "idle";
const MIB: f64 = 1024.0 * 1024.0;

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let size = std::fs::metadata(env!("CARGO_BIN_EXE_leasehold"))
        .unwrap()
        .len() as f64
        / MIB;
    let mut findings = vec![
        Finding::new(
            NAME,
            "size of the binary, with the names of functions",
            "MiB",
            vec![size],
        )
        .at_most(15.0),
    ];
    for (store, url) in [("memory:", "memory:"), ("redis://", &redis_url(&redis))] {
        let (mut starts, mut resident) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds * 4 {
            starts.push(start(url).await.as_secs_f64() * 1e3);
        }
        for _ in 0..plan.rounds {
            let served = Served::leasehold(url, &[]);
            sleep(Duration::from_secs(1)).await;
            resident.push(resident_kib(served.pid()) / 1024.0);
        }
        findings.push(
            Finding::new(NAME, format!("{store} start to first answer"), "ms", starts)
                .at_most(50.0),
        );
        findings.push(
            Finding::new(NAME, format!("{store} resident memory"), "MiB", resident).at_most(20.0),
        );
    }
    findings
}

/// From the start of the process until an acquire is answered.
async fn start(store: &str) -> Duration {
    let address = free_address();
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["--listen", &address.to_string(), "--store", store])
        .env_clear()
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let path = format!("/locks/{}", uuid::Uuid::new_v4());
    let took = loop {
        let token = None;
        if let Ok(mut connection) = Connection::open(address).await
            && let Ok(answer) = connection
                .ask(Request {
                    method: "POST",
                    path: &path,
                    token,
                    body: "",
                })
                .await
        {
            assert_eq!(answer.status, 201);
            break began.elapsed();
        }
        sleep(Duration::from_millis(1)).await;
    };
    let _ = child.kill();
    let _ = child.wait();
    took
}
