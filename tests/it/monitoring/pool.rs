//! What the metrics say of connections to Redis that cannot be had.

use crate::process::Serving;
use crate::support::eventually;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// The value of a metric without labels.
async fn value(serving: &Serving, metric: &str) -> f64 {
    let page = reqwest::get(format!("{}/metrics", serving.url)).await;
    let page = page.unwrap().text().await.unwrap();
    let lines = page.lines();
    let value = lines
        .filter_map(|line| line.strip_prefix(metric)?.strip_prefix(' '))
        .next();
    value.unwrap().parse().unwrap()
}

#[tokio::test]
async fn requests_that_find_no_connection_are_counted() {
    let timeouts = "leasehold_store_pool_timeouts_total";
    let mut redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let serving = Serving::start(&["--store", &store]);
    let lock = format!("{}/locks/backup", serving.url);
    let client = reqwest::Client::new();
    eventually("it grants", async || {
        let answer = client.post(&lock).send().await.unwrap();
        (answer.status().as_u16() == 201).then_some(())
    })
    .await;
    assert_eq!(value(&serving, timeouts).await, 0.0);
    redis.kill();
    eventually("it counts", async || {
        let answer = client.post(&lock).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 503);
        (value(&serving, timeouts).await > 0.0).then_some(())
    })
    .await;
}
