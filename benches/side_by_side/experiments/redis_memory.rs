//! What a held lock takes in Redis, beside a bare `SET name uuid PX`.

use super::{Plan, redis_url};
use crate::http1::{Connection, Request};
use crate::machine::Served;
use crate::redis_server::{RedisOptions, RedisServer};
use crate::report::Finding;

const NAME: &str = "redis_memory";
const LOCKS: usize = 100_000;
const CLIENTS: usize = 16;

pub(super) async fn run(plan: Plan) -> Vec<Finding> {
    let count = LOCKS / plan.less;
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let before = used(&redis).await;
    set(&redis, count).await;
    let bare = (used(&redis).await - before) / count as f64;
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let served = Served::leasehold(&redis_url(&redis), &[]);
    acquire(&served, 0, CLIENTS).await;
    let before = used(&redis).await;
    acquire(&served, CLIENTS, count).await;
    let held = (used(&redis).await - before) / count as f64;
    let before = used(&redis).await;
    release(&served, count).await;
    let ended = (used(&redis).await - before) / count as f64 + held;
    vec![
        Finding::new(NAME, "a held lock over a bare SET", "", vec![held / bare]).at_most(1.5),
        Finding::new(NAME, "a held lock", "bytes", vec![held]),
        Finding::new(NAME, "a bare SET name uuid PX", "bytes", vec![bare]),
        Finding::new(
            NAME,
            "the mark of a released claim, kept for 60 s",
            "bytes",
            vec![ended],
        ),
    ]
}

fn name(number: usize) -> String {
    format!("orders/customer/{number:08}")
}

fn token(number: usize) -> String {
    format!("6f1c3b0e-8f0a-4f57-9c55-{number:012}")
}

async fn used(redis: &RedisServer) -> f64 {
    redis.info("memory", "used_memory").await.parse().unwrap()
}

async fn set(redis: &RedisServer, count: usize) {
    let client = redis::Client::open(redis_url(redis)).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for first in (0..count).step_by(1_000) {
        let mut pipe = redis::pipe();
        for number in first..first + 1_000 {
            pipe.cmd("SET")
                .arg(name(number))
                .arg(token(number))
                .arg("PX")
                .arg(3_600_000);
        }
        pipe.exec_async(&mut connection).await.unwrap();
    }
}

async fn acquire(served: &Served, from: usize, count: usize) {
    ask(served, "POST", from, count, "ttl=1h", 201).await;
}

async fn release(served: &Served, count: usize) {
    ask(served, "DELETE", CLIENTS, count, "", 204).await;
}

/// So many requests from `from` on, over a few connections at once.
async fn ask(
    served: &Served,
    method: &'static str,
    from: usize,
    count: usize,
    body: &'static str,
    status: u16,
) {
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let mut connection = Connection::open(served.address).await.unwrap();
        clients.spawn(async move {
            for number in (from + client..from + count).step_by(CLIENTS) {
                let (path, token) = (format!("/locks/{}", name(number)), token(number));
                let request = Request {
                    method,
                    path: &path,
                    token: Some(&token),
                    body,
                };
                assert_eq!(connection.ask(request).await.unwrap().status, status);
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
}
