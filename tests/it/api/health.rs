//! Probes, the version, and the index.

use std::sync::Arc;
use std::time::Duration;

use insta::assert_snapshot;
use leasehold::store::{Finding, PoolHealth, StoreHealth};

use super::support::{Answer, Api, call, delete, get, pass, post};
use crate::support::scripted_store::ScriptedStore;

async fn ready(health: StoreHealth) -> u16 {
    let api = Api::on(Arc::new(ScriptedStore::in_health(health)), |_| {});
    api.send(get("/readyz")).await.status
}

#[tokio::test]
async fn it_is_ready_once_the_store_has_answered_and_stays_so_while_the_store_blips() {
    let contacted = StoreHealth {
        contacted: true,
        ..StoreHealth::default()
    };
    assert_eq!(ready(StoreHealth::default()).await, 503);
    assert_eq!(
        ready(StoreHealth {
            up: true,
            ..contacted.clone()
        })
        .await,
        200
    );
    assert_eq!(
        ready(StoreHealth {
            up: false,
            ..contacted.clone()
        })
        .await,
        200
    );
    let refused = Some("maxmemory-policy is allkeys-lru".to_owned());
    assert_eq!(
        ready(StoreHealth {
            refused,
            ..contacted
        })
        .await,
        503
    );
}

#[tokio::test]
async fn it_is_alive_whatever_the_store_does_and_not_ready_while_it_drains() {
    let api = Api::on(Arc::new(ScriptedStore::recovering()), |_| {});
    assert_eq!(
        api.send(get("/livez")).await.text(),
        "{\"status\":\"ok\"}\n"
    );
    let api = Api::new().await;
    assert_eq!(
        api.send(get("/readyz")).await.text(),
        "{\"status\":\"ok\"}\n"
    );
    api.stop();
    for path in ["/readyz", "/healthz"] {
        let answer = api.send(get(path)).await;
        assert_eq!(
            (answer.status, answer.text()),
            (503, "{\"status\":\"unavailable\"}\n")
        );
    }
    assert_eq!(api.send(get("/livez")).await.status, 200);
}

#[tokio::test]
async fn a_verbose_probe_lists_what_was_looked_at() {
    let health = StoreHealth {
        contacted: true,
        up: false,
        trouble: Some("it refuses the user or the password".to_owned()),
        refused: Some("maxmemory-policy is allkeys-lru; set it to noeviction".to_owned()),
        recovering_for: Some(Duration::from_millis(1_500)),
        findings: vec![Finding {
            topic: "persistence",
            is_fine: false,
            detail: "appendonly is off".to_owned(),
        }],
        clock_offset_ms: Some(-12),
        pool: Some(PoolHealth {
            max: 16,
            ..PoolHealth::default()
        }),
        ..StoreHealth::default()
    };
    let api = Api::on(Arc::new(ScriptedStore::in_health(health)), |_| {});
    assert_snapshot!(
        "readyz_verbose",
        api.send(get("/readyz?verbose")).await.shape()
    );
    assert_eq!(
        Api::new()
            .await
            .send(get("/readyz?verbose=false"))
            .await
            .text(),
        "{\"status\":\"ok\"}\n"
    );
}

#[tokio::test]
async fn verbose_is_true_or_false_or_there() {
    let api = Api::new().await;
    for (query, is_verbose) in [
        ("verbose", true),
        ("verbose=", true),
        ("verbose=true", true),
        ("verbose=false", false),
        ("", false),
    ] {
        let answer = api.send(get(&format!("/readyz?{query}"))).await;
        assert_eq!(answer.json()["checks"].is_array(), is_verbose, "{query}");
    }
    for value in ["0", "no", "maybe"] {
        let answer = api.send(get(&format!("/readyz?verbose={value}"))).await;
        assert_eq!(answer.refusal(), (400, "invalid_field".to_owned()));
    }
}

#[tokio::test]
async fn the_index_and_the_version_describe_the_service() {
    let api = Api::new().await;
    assert_snapshot!("version", api.send(get("/version")).await.shape());
    let index = api.send(get("/")).await;
    assert_snapshot!("index", index.shape());
    for (name, path) in index.json().as_object().expect("an object") {
        if let Some(path) = path.as_str().filter(|path| path.starts_with('/')) {
            // The response may be an endless stream.
            let status = api.open(get(path)).await.status();
            assert!(status.as_u16() < 400, "{name}: {path}");
        }
    }
}

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

/// What a browser gets for `/` when it asks this host.
async fn page_for(host: &str) -> Answer {
    let request = get("/").header("accept", BROWSER).header("host", host);
    Api::new().await.send(request).await
}

#[tokio::test]
async fn people_get_a_page_with_a_tour_of_this_very_server() {
    let page = page_for("locks.example:7625").await;
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, "text/html; charset=utf-8")
    );
    assert!(
        page.header("content-security-policy")
            .starts_with("default-src 'none'")
    );
    let html = page.text();
    assert!(html.contains("curl -X POST locks.example:7625/locks/backup -d owner=tour"));
    assert!(
        !html.contains('{') && html.contains("Leasehold 1.2.3"),
        "{html}"
    );
    let readme = include_str!("../../../README.md");
    let (_, tour) = html.split_once("<code>").expect("a tour");
    let (tour, _) = tour.split_once("</code>").expect("its end");
    let tour = tour
        .replace("&amp;", "&")
        .replace("locks.example:7625", "localhost:7625");
    assert!(
        readme.contains(&tour),
        "the tour of the README differs: {tour}"
    );
    let api = Api::new().await;
    for link in html.split("href=\"").skip(1) {
        let (link, _) = link.split_once('"').expect("its end");
        // A proxy may serve the page below another path.
        assert!(!link.starts_with('/'), "{link}");
        let answer = api.send(get(&format!("/{link}"))).await;
        assert_eq!(answer.status, 200, "{link}");
    }
}

/// People copy the commands into a shell.
#[tokio::test]
async fn a_host_that_is_no_address_is_not_on_the_page() {
    let long = "a".repeat(300);
    for host in ["<b>", "$(reboot)", "a;b", "-x", "", "a&b", &long] {
        let html = page_for(host).await.text().to_owned();
        assert!(html.contains("POST localhost:7625/locks"), "{host}: {html}");
    }
}

#[tokio::test]
async fn requests_are_counted_by_route_and_never_by_what_the_client_wrote() {
    let api = Api::new().await;
    api.send(post("/locks/secret-name?ttl=5s")).await;
    api.send(call("BREW", "/locks/secret-name")).await;
    api.send(get("/secret-path")).await;
    let answer = api.send(get("/metrics")).await;
    assert_eq!(
        answer.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let figures = answer.text();
    let family = "http_server_request_duration_seconds";
    for labels in [
        r#"http_request_method="POST",http_route="/locks/{name}",http_response_status_code="201""#,
        r#"http_request_method="_OTHER",http_route="/locks/{name}",http_response_status_code="405""#,
        r#"http_request_method="GET",http_route="other",http_response_status_code="404""#,
    ] {
        assert!(
            figures.contains(&format!("{family}_count{{{labels}}} 1")),
            "{labels}: {figures}"
        );
    }
    // The request for the metrics itself.
    assert!(
        figures.contains("leasehold_http_requests_in_flight 1"),
        "{figures}"
    );
    assert!(figures.contains("leasehold_panics_total 0"), "{figures}");
    assert!(
        figures.contains("le=\"0.75\""),
        "the buckets are those of OpenTelemetry"
    );
    assert!(
        !figures.contains("secret") && !figures.contains("BREW"),
        "{figures}"
    );
}

/// The wait that a client asked for has a histogram of its own.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_lock_is_no_latency_of_http() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a?ttl=1h").await;
    assert_eq!(api.send(post("/locks/a?wait=3s")).await.status, 423);
    let waiting = api.queue(post("/locks/a?wait=20s"), "a", 1).await;
    pass(Duration::from_secs(3)).await;
    api.send(delete("/locks/a").token(&token)).await;
    assert_eq!(waiting.await.expect("an answer").status, 201);
    let answer = api.send(get("/metrics")).await;
    for status in [201, 423] {
        let seconds = latency(&answer, status);
        assert!(seconds < 1.0, "{status}: {seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_lock_whose_store_then_fails_is_no_latency_of_http_either() {
    let store = Arc::new(ScriptedStore::default());
    let api = Api::on(Arc::clone(&store) as _, |_| {});
    api.token_of("/locks/a?ttl=1h").await;
    let waiting = api.queue(post("/locks/a?wait=20s"), "a", 1).await;
    store.goes_down(true);
    let failed = waiting.await.expect("an answer");
    assert_eq!(failed.refusal(), (503, "store_unavailable".to_owned()));
    let figures = api.send(get("/metrics")).await;
    let seconds = latency(&figures, 503);
    assert!(seconds < 1.0, "{seconds}");
}

/// The sum of the durations of acquires that were answered with this status, in seconds.
fn latency(figures: &Answer, status: u16) -> f64 {
    let sum = format!(
        "http_server_request_duration_seconds_sum{{http_request_method=\"POST\",http_route=\"/locks/{{name}}\",\
         http_response_status_code=\"{status}\"}} "
    );
    let mut lines = figures.text().lines();
    let sum = lines
        .find_map(|line| line.strip_prefix(&sum))
        .expect("a sum");
    sum.parse().expect("a number")
}

#[tokio::test]
async fn the_pages_for_people_refer_to_no_other_host() {
    let api = Api::new().await;
    let redirect = api.send(get("/docs")).await;
    assert_eq!(
        (redirect.status, redirect.header("location")),
        (303, "docs/")
    );
    let page = api.send(get("/docs/")).await;
    assert_eq!(page.header("content-encoding"), "gzip");
    let html = unpacked(&page.body);
    assert!(
        html.contains("swagger-ui") && !html.contains("//"),
        "it refers elsewhere: {html}"
    );
    let script = api.send(get("/docs/swagger-initializer.js")).await;
    assert!(
        script.text().contains(r#""validatorUrl": "none""#),
        "{}",
        script.text()
    );
    // Without a host and without a path from its root, so that a proxy may serve all of it below another path.
    let links = script.text().contains(r#""url": "../openapi.json""#);
    assert!(links, "{}", script.text());
    assert_eq!(
        api.send(get("/docs/nothing")).await.refusal(),
        (404, "not_found".to_owned())
    );
}

/// The bundle is stored compressed and sent as it is; browsers decompress it.
fn unpacked(packed: &[u8]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("page.gz");
    std::fs::write(&path, packed).expect("written");
    let gzip = std::process::Command::new("gzip")
        .arg("-dc")
        .arg(&path)
        .output();
    String::from_utf8(gzip.expect("gzip is installed").stdout).expect("UTF-8")
}
