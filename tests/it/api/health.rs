//! Probes, the version, and the index.

use std::sync::Arc;
use std::time::Duration;

use insta::assert_snapshot;
use leasehold::store::{Finding, PoolHealth, StoreHealth};

use super::support::{Api, call, get, post};
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
    assert_eq!(api.send(get("/livez")).await.text(), r#"{"status":"ok"}"#);
    let api = Api::new().await;
    assert_eq!(api.send(get("/readyz")).await.text(), r#"{"status":"ok"}"#);
    api.stop();
    for path in ["/readyz", "/healthz"] {
        let answer = api.send(get(path)).await;
        assert_eq!(
            (answer.status, answer.text()),
            (503, r#"{"status":"unavailable"}"#)
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
        pool: Some(PoolHealth { open: 0, max: 16 }),
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
        r#"{"status":"ok"}"#
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

#[tokio::test]
async fn the_pages_for_people_refer_to_no_other_host() {
    let api = Api::new().await;
    let redirect = api.send(get("/docs")).await;
    assert_eq!(
        (redirect.status, redirect.header("location")),
        (303, "/docs/")
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
