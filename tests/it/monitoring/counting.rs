//! What happens to leases, waits and the store is counted under the outcome that the page of metrics names.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;

use crate::process::Serving;
use crate::support::eventually;
use crate::support::redis_server::{RedisOptions, RedisServer};

/// A server, and a client of it.
struct Counted {
    serving: Serving,
    client: Client,
}

/// The samples of the page, by their names with labels.
struct Page(BTreeMap<String, f64>);

impl Page {
    fn get(&self, series: &str) -> f64 {
        let value = self.0.get(series);
        *value.unwrap_or_else(|| panic!("there is no {series}"))
    }
}

impl Counted {
    fn start(arguments: &[&str]) -> Self {
        Self {
            serving: Serving::start(arguments),
            client: Client::new(),
        }
    }

    async fn page(&self) -> Page {
        let page = reqwest::get(format!("{}/metrics", self.serving.url)).await;
        let page = page.unwrap().text().await.unwrap();
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| line.rsplit_once(' '));
        Page(
            samples
                .map(|(series, value)| (series.to_owned(), value.parse().unwrap()))
                .collect(),
        )
    }

    fn lock(&self, name: &str) -> String {
        format!("{}/locks/{name}", self.serving.url)
    }

    /// Acquires with these fields, and returns the token.
    async fn acquire(&self, name: &str, fields: &str) -> String {
        let request = self.client.post(format!("{}?{fields}", self.lock(name)));
        let answer = status(request, 201).await;
        answer.headers()["lock-token"].to_str().unwrap().to_owned()
    }
}

/// Sends a request, which must be answered with this status.
async fn status(request: RequestBuilder, expected: u16) -> Response {
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status().as_u16(), expected, "{answer:?}");
    answer
}

#[tokio::test]
async fn the_life_of_a_lease_is_counted_by_outcome() {
    let counted = Counted::start(&["--metrics-name-groups", "b/*, jobs/*"]);
    let client = &counted.client;
    let lock = counted.lock("a");
    let token = counted.acquire("a", "ttl=1h").await;
    status(client.post(&lock), 423).await;
    let with_token = |request: RequestBuilder| request.header("Lock-Token", &token);
    status(with_token(client.post(&lock)), 200).await;
    status(with_token(client.put(&lock)), 200).await;
    for _ in 0..2 {
        status(with_token(client.delete(&lock)), 204).await;
    }
    status(with_token(client.put(&lock)), 412).await;
    counted.acquire("b/1", "mode=shared").await;
    status(
        client.delete(format!("{}?force=true", counted.lock("b/1"))),
        200,
    )
    .await;
    counted.acquire("c", "ttl=100ms").await;
    eventually("the lease expires", async || {
        let answer = client.post(counted.lock("c")).send().await.unwrap();
        (answer.status().as_u16() == 201).then_some(())
    })
    .await;

    let page = counted.page().await;
    let counter = |family: &str, labels: [&str; 2]| {
        page.0.iter().find_map(|(series, value)| {
            let has = |text: &str| series.contains(&format!("=\"{text}\""));
            let is_it = series.starts_with(family) && labels.into_iter().all(has);
            is_it.then_some(*value)
        })
    };
    let acquires = |outcome, mode| counter("leasehold_acquire_requests_total", [outcome, mode]);
    let of_group =
        |group, outcome| counter("leasehold_group_acquire_requests_total", [group, outcome]);
    assert_eq!(of_group("b/*", "granted"), Some(1.0));
    assert_eq!(of_group("jobs/*", "granted"), Some(0.0));
    assert_eq!(of_group("other", "granted"), Some(4.0));
    assert!(of_group("other", "refused") >= Some(1.0));
    assert_eq!(acquires("granted", "exclusive"), Some(3.0));
    assert_eq!(acquires("granted", "shared"), Some(1.0));
    assert_eq!(acquires("replayed", "exclusive"), Some(1.0));
    assert!(acquires("held", "exclusive") >= Some(1.0));
    let read_at = |source: &str| {
        let series = "leasehold_config_reload_success_timestamp_seconds";
        page.get(&format!("{series}{{source=\"{source}\"}}"))
    };
    assert!(read_at("tls") > 1_767_225_600.0, "it is 2026 or later");
    assert_eq!(read_at("jwks"), 0.0, "there is no issuer");
    for (series, value) in [
        ("leasehold_renewals_total{outcome=\"ok\"}", 1.0),
        ("leasehold_renewals_total{outcome=\"released\"}", 1.0),
        ("leasehold_releases_total{outcome=\"ok\"}", 1.0),
        ("leasehold_releases_total{outcome=\"repeated\"}", 1.0),
        ("leasehold_force_releases_total", 1.0),
        ("leasehold_leases_expired_total", 1.0),
        (
            "leasehold_hold_duration_seconds_count{end=\"released\"}",
            1.0,
        ),
        (
            "leasehold_hold_duration_seconds_count{end=\"expired\"}",
            1.0,
        ),
        ("leasehold_hold_duration_seconds_count{end=\"forced\"}", 1.0),
    ] {
        assert_eq!(page.get(series), value, "{series}");
    }
}

/// The histogram warns before leases are lost: it has what was left, and not what had passed.
#[tokio::test]
async fn a_late_renewal_is_counted_with_the_share_that_was_left() {
    let counted = Counted::start(&[]);
    let renew = |token: &str| {
        let request = counted.client.put(counted.lock("a"));
        request.header("Lock-Token", token)
    };
    let renewals = async || {
        let page = counted.page().await;
        let late = page.get("leasehold_renew_slack_ratio_bucket{le=\"0.5\"}");
        [late, page.get("leasehold_renew_slack_ratio_count")]
    };
    let token = counted.acquire("a", "ttl=10s").await;
    status(renew(&token), 200).await;
    assert_eq!(renewals().await, [0.0, 1.0]);
    eventually("half of the lease is over", async || {
        let lock = counted.client.get(counted.lock("a")).send().await.ok()?;
        let lock: Value = lock.json().await.ok()?;
        let left = lock["holders"][0]["expires_in_ms"].as_u64()?;
        (left < 5_000).then_some(())
    })
    .await;
    status(renew(&token), 200).await;
    assert_eq!(renewals().await, [1.0, 2.0]);
}

#[tokio::test]
async fn a_wait_is_counted_apart_from_the_duration_of_the_request() {
    let counted = Counted::start(&[]);
    let client = &counted.client;
    let token = counted.acquire("a", "ttl=1h").await;
    status(client.post(format!("{}?wait=2s", counted.lock("a"))), 423).await;
    let waiting = tokio::spawn(
        client
            .post(format!("{}?wait=50s", counted.lock("a")))
            .send(),
    );
    eventually("the waiter is in the gauges", async || {
        let page = counted.page().await;
        let gauges = ["waiters", "contended_locks", "local_long_polls"];
        let gauges = gauges.map(|gauge| page.get(&format!("leasehold_{gauge}")));
        (gauges == [1.0; 3]).then_some(())
    })
    .await;
    let release = client.delete(counted.lock("a"));
    status(release.header("Lock-Token", token), 204).await;
    assert_eq!(waiting.await.unwrap().unwrap().status().as_u16(), 201);

    let page = counted.page().await;
    let waits = |what: &str, outcome: &str| {
        page.get(&format!(
            "leasehold_acquire_wait_seconds_{what}{{outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!(waits("count", "wait_timeout"), 1.0);
    assert_eq!(waits("count", "granted"), 1.0);
    assert!(waits("sum", "wait_timeout") >= 2.0);
    let of_http = "http_server_request_duration_seconds_sum{http_request_method=\"POST\",\
                   http_route=\"/locks/{name}\",http_response_status_code=\"423\"}";
    let waited = waits("sum", "wait_timeout");
    assert!(page.get(of_http) < waited, "{} {waited}", page.get(of_http));
}

/// Redis answers only after the client has gone.
#[tokio::test]
async fn a_grant_to_a_client_that_has_gone_is_counted() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let counted = Counted::start(&["--store", &store]);
    let ready = format!("{}/readyz", counted.serving.url);
    eventually("it is ready", async || {
        let answer = counted.client.get(&ready).send().await.unwrap();
        answer.status().is_success().then_some(())
    })
    .await;
    eventually("a grant is rolled back", async || {
        redis.pause();
        let request = counted.client.post(counted.lock("a"));
        // It has no answer; or 503, if Redis was silent for too long on a busy machine. Then the next one counts.
        let _ = request.timeout(Duration::from_millis(300)).send().await;
        redis.resume();
        let page = counted.page().await;
        let undelivered = page.get("leasehold_grants_undelivered_total");
        let rolled_back = page.get("leasehold_withdrawals_total{outcome=\"done\"}");
        (undelivered > 0.0 && rolled_back > 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_outage_of_redis_is_counted() {
    let mut redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let counted = Counted::start(&["--store", &store]);
    let lock = counted.lock("a");
    let metrics = [
        "store_up",
        "store_pool_timeouts_total",
        "store_errors_total{kind=\"io\"}",
    ];
    let read = |page: &Page| metrics.map(|metric| page.get(&format!("leasehold_{metric}")));
    eventually("it grants", async || {
        let answer = counted.client.post(&lock).send().await.unwrap();
        (answer.status().as_u16() == 201).then_some(())
    })
    .await;
    eventually("the store is up", async || {
        (read(&counted.page().await) == [1.0, 0.0, 0.0]).then_some(())
    })
    .await;
    redis.kill();
    eventually("the outage is counted", async || {
        status(counted.client.post(&lock), 503).await;
        let page = counted.page().await;
        let [up, timeouts, errors] = read(&page);
        let waits = page.get("leasehold_store_pool_waits_total");
        (up == 0.0 && timeouts > 0.0 && waits >= timeouts && errors > 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn every_node_of_a_quorum_is_counted_by_its_url() {
    let mut servers = [
        RedisServer::start(RedisOptions::forgetful()).await,
        RedisServer::start(RedisOptions::forgetful()).await,
        RedisServer::start(RedisOptions::forgetful()).await,
    ];
    let urls = servers
        .each_ref()
        .map(|server| format!("redis://{}/0", server.address()));
    let store = format!("quorum:{}", urls.join(","));
    let counted = Counted::start(&["--store", &store, "--redis-check-interval", "200ms"]);
    counted.acquire("a", "").await;
    let series = |name: &str, url: &str| format!("leasehold_quorum_node_{name}{{node=\"{url}\"}}");
    // A view waits for the third node only for a moment, which may be too short beside other tests. And the node may just
    // follow the grant, which puts the lease back.
    eventually(
        "a view names the node that has lost the lease",
        async || {
            let script =
                "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end";
            servers[2]
                .command(&["EVAL", script, "0", "lh:1:*l:a"])
                .await;
            let view = status(counted.client.get(counted.lock("a")), 200).await;
            let view: serde_json::Value = view.json().await.unwrap();
            (view["disagreeing_nodes"] == serde_json::json!([urls[2]])).then_some(())
        },
    )
    .await;
    eventually("the disagreement is counted", async || {
        let count = counted
            .page()
            .await
            .get(&series("disagreements_total", &urls[2]));
        (count == 1.0).then_some(())
    })
    .await;
    servers[1].kill();
    let page = eventually("the node has no vote", async || {
        let page = counted.page().await;
        (page.get(&series("votes", &urls[1])) == 0.0).then_some(page)
    })
    .await;
    for url in [&urls[0], &urls[2]] {
        assert_eq!(page.get(&series("votes", url)), 1.0);
        assert_eq!(page.get(&series("dropped_total", url)), 0.0);
        let disagreements = f64::from(u8::from(url == &urls[2]));
        assert_eq!(page.get(&series("disagreements_total", url)), disagreements);
        assert!(page.get(&series("clock_offset_seconds", url)).abs() < 60.0);
    }
    counted.acquire("b", "").await;
    let ready = reqwest::get(format!("{}/readyz?verbose", counted.serving.url)).await;
    let ready = ready.unwrap().text().await.unwrap();
    assert!(ready.contains("2 of 3 nodes vote, 2 are needed"), "{ready}");
    assert!(
        ready.contains(&format!("{} has no vote: ", urls[1])),
        "{ready}"
    );
}
