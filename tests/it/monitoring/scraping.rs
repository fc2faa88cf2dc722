//! A Prometheus scrapes two processes that are in use: every query of the dashboard and every rule has data.

use std::time::Duration;

use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::prometheus::Prometheus;
use super::queries;
use crate::process::Serving;
use crate::support::eventually_within;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// Two scrapes are enough for a rate; the rest is for a busy machine.
const DATA_WITHIN: Duration = Duration::from_secs(90);

/// Sends a request that may have any answer.
async fn send(request: RequestBuilder) {
    let _ = request.send().await.unwrap().bytes().await;
}

/// Claims that hold, wait, renew, are released and expire, until it is aborted.
fn traffic(urls: [String; 2]) -> JoinHandle<()> {
    tokio::spawn(async move {
        let client = Client::new();
        loop {
            let [lock, same_lock] = urls.each_ref().map(|url| format!("{url}/locks/jobs/busy"));
            let token = uuid::Uuid::new_v4().to_string();
            let with_token = |request: RequestBuilder| request.header("Lock-Token", &token);
            send(with_token(client.post(format!("{lock}?wait=5s&ttl=5s")))).await;
            send(with_token(client.put(&lock))).await;
            let rival = client.post(format!("{same_lock}?wait=2s&ttl=100ms"));
            let release = async {
                sleep(Duration::from_millis(50)).await;
                send(with_token(client.delete(&lock))).await;
            };
            tokio::join!(send(rival), release);
        }
    })
}

/// The query as Grafana sends it.
fn filled_in(query: &str) -> String {
    let query = query.replace("$__rate_interval", "30s");
    query.replace("$namespace", ".*").replace("$job", ".*")
}

fn has_number(samples: &[Value]) -> bool {
    samples.iter().any(|sample| {
        let value = sample["value"][1].as_str().unwrap();
        value.parse::<f64>().is_ok_and(f64::is_finite)
    })
}

#[tokio::test]
async fn every_query_and_every_rule_has_data_from_processes_in_use() {
    let redis = RedisServer::start(RedisOptions::default()).await;
    let store = format!("redis://{}", redis.address());
    let flags = ["--store", &store, "--metrics-name-groups", "jobs/*"];
    let processes = [0, 1].map(|_| Serving::start(&flags));
    let traffic = traffic(processes.each_ref().map(|process| process.url.clone()));
    let targets = processes
        .each_ref()
        .map(|process| process.address().to_string());
    let prometheus = Prometheus::start(&targets).await;

    for (panel, query) in queries() {
        let (query, what) = (filled_in(&query), format!("{panel}: {query}"));
        eventually_within(DATA_WITHIN, &what, async || {
            has_number(&prometheus.query(&query).await).then_some(())
        })
        .await;
    }
    let rules = prometheus.rules().await;
    assert!(rules.len() > 30, "{rules:?}");
    for rule in rules {
        eventually_within(DATA_WITHIN, &rule.to_string(), async || {
            let recorded = rule["name"].as_str().unwrap();
            let is_alert = rule["type"] == "alerting";
            (is_alert || has_number(&prometheus.query(recorded).await)).then_some(())
        })
        .await;
    }
    // The first evaluations may be due only now.
    eventually_within(DATA_WITHIN, "every rule can be evaluated", async || {
        let rules = prometheus.rules().await;
        assert!(
            rules.iter().all(|rule| rule["health"] != "err"),
            "{rules:?}"
        );
        let is_fine = |rule: &Value| rule["health"] == "ok";
        rules.iter().all(is_fine).then_some(())
    })
    .await;
    eventually_within(DATA_WITHIN, "both processes are scraped", async || {
        (prometheus.query("up == 1").await.len() == 2).then_some(())
    })
    .await;
    let firing = prometheus
        .query("ALERTS{alertstate=\"firing\", severity=\"critical\"}")
        .await;
    assert!(firing.is_empty(), "{firing:?}");
    traffic.abort();
}
