//! The address for operators: what it serves, which is probes, metrics, and of the locks only to read and to evict them.

use std::collections::BTreeSet;

use leasehold::http::{Access, Failures, KeyRing, Role, Route};

use super::support::{Api, Call, call, delete, get, post};

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];

/// Each method and route that is neither 404 nor 405.
async fn served(api: &Api) -> BTreeSet<String> {
    let mut served = BTreeSet::new();
    let others = [
        "/",
        "/docs/",
        "/ui/ui.js",
        "/ui/ui.css",
        "/locks/",
        "/nothing",
    ];
    let routes = Route::ALL.map(Route::template);
    for template in routes.into_iter().chain(others) {
        let path = template
            .replace("{name}", "a")
            .replace("{code}", "lock_held");
        for method in METHODS {
            let status = api.open(call(method, &path)).await.status();
            if ![404, 405].contains(&status.as_u16()) {
                served.insert(format!("{method} {template}"));
            }
        }
    }
    served
}

fn with_reads_of(paths: &[&str]) -> BTreeSet<String> {
    let reads = paths.iter();
    reads
        .flat_map(|path| ["GET", "HEAD"].map(|method| format!("{method} {path}")))
        .collect()
}

const PROBES: [&str; 5] = ["/livez", "/readyz", "/healthz", "/version", "/metrics"];

#[tokio::test]
async fn operators_read_and_evict_and_nothing_else() {
    let api = Api::new().await;
    let mut expected = with_reads_of(&PROBES);
    expected.extend(with_reads_of(&[
        "/locks",
        "/locks/{name}",
        "/ui",
        "/ui/ui.js",
        "/ui/ui.css",
    ]));
    expected.insert("DELETE /locks/{name}".to_owned());
    assert_eq!(served(&api.for_operators()).await, expected);
}

#[tokio::test]
async fn without_locks_it_serves_probes_and_metrics_and_says_when_it_would() {
    let api = Api::with(|settings| settings.admin_serves_locks = false).await;
    let operators = api.for_operators();
    assert_eq!(served(&operators).await, with_reads_of(&PROBES));
    for path in ["/ui", "/locks", "/locks/a"] {
        let answer = operators.send(get(path)).await;
        assert!(
            answer.detail().contains("needs keys"),
            "{}",
            answer.detail()
        );
    }
}

#[tokio::test]
async fn a_delete_there_never_releases() {
    let api = Api::new().await;
    let operators = api.for_operators();
    let token = api.token_of("/locks/a").await;
    for request in [
        delete("/locks/a").token(&token),
        delete("/locks/a?force=false").token(&token),
        delete("/locks/a"),
        delete("/locks/a?reason=x"),
    ] {
        let answer = operators.send(request).await;
        assert_eq!(answer.refusal(), (400, "invalid_field".to_owned()));
        assert!(
            answer.detail().contains("only evicts"),
            "{}",
            answer.detail()
        );
    }
    for (method, path) in [
        ("POST", "/locks/a"),
        ("PUT", "/locks/a"),
        ("DELETE", "/locks"),
    ] {
        let answer = operators.send(call(method, path).token(&token)).await;
        assert_eq!(answer.status, 405, "{method} {path}");
    }
    let lock = operators.send(get("/locks/a")).await.json();
    assert_eq!(lock["state"], "held");
    let listed = operators.send(get("/locks?prefix=a")).await;
    assert_eq!(listed.json()["locks"][0]["name"], "a");
    assert!(!listed.text().contains(&token));
    let evicted = operators
        .send(delete("/locks/a?force=true&reason=stuck"))
        .await;
    assert_eq!(
        (evicted.status, &evicted.json()["evicted_total"]),
        (200, &1.into())
    );
    let renewed = api.send(call("PUT", "/locks/a").token(&token)).await;
    assert_eq!(renewed.refusal(), (412, "lease_evicted".to_owned()));
}

#[tokio::test]
async fn what_needs_a_right_needs_it_there_too() {
    let api = Api::with(|settings| {
        let ring = KeyRing::new([
            (Role::Reader, "reader"),
            (Role::Client, "client"),
            (Role::Admin, "admin"),
        ]);
        settings.access = Access::Keys(ring, Failures::new(60));
    })
    .await;
    let operators = api.for_operators();
    let with = |request: Call, key: &str| request.header("authorization", format!("Bearer {key}"));
    let granted = api.send(with(post("/locks/a"), "client")).await;
    assert_eq!(granted.status, 201);
    let evict = || delete("/locks/a?force=true");
    for request in [get("/locks"), get("/locks/a"), evict(), get("/metrics")] {
        assert_eq!(operators.send(request).await.status, 401);
    }
    assert_eq!(
        operators.send(with(get("/locks"), "reader")).await.status,
        200
    );
    for key in ["reader", "client"] {
        let answer = operators.send(with(evict(), key)).await;
        assert_eq!(answer.refusal(), (403, "forbidden".to_owned()), "{key}");
    }
    assert_eq!(operators.send(with(evict(), "admin")).await.status, 200);
    assert_eq!(operators.send(get("/ui")).await.status, 200);
}
