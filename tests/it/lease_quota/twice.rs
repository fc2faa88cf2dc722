//! Two requests with the same token at the same moment, which make a lease final before it is counted.

use futures_util::future::join;
use reqwest::Method;

use super::Team;
use crate::support::redis_server::{RedisOptions, RedisServer};

const LOCKS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_quota_is_not_exceeded_by_two_requests_with_one_token() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let team = Team::on(&format!("redis://{}", redis.address()));
    let mut held = Vec::new();
    team.fill(&mut held).await;
    for second in [Method::POST, Method::PUT] {
        for number in 0..LOCKS {
            let token = uuid::Uuid::new_v4().to_string();
            let path = format!("{second}/{number}?ttl=60s");
            let processes = [number % 3, (number + 1) % 3];
            let first = team.send(processes[0], Method::POST, &path, &token);
            let second = team.send(processes[1], second.clone(), &path, &token);
            let (first, second) = join(first, second).await;
            assert_eq!(first.status(), 429, "lock {number}");
            assert!(
                second.status().is_client_error(),
                "lock {number}: {second:?}"
            );
        }
    }
}
