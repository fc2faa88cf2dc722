//! The API key: what it guards and what stays open.

use leasehold::http::ApiKey;

use super::support::{Api, call, get, post};

fn guarded() -> Api {
    Api::with(|settings| settings.api_key = Some(ApiKey::new(b"s3cret")))
}

#[tokio::test]
async fn without_the_key_nothing_about_locks_is_answered() {
    let api = guarded();
    for path in [
        "/locks",
        "/locks/",
        "/locks/a",
        "/locks/%FF",
        "/events",
        "/metrics",
    ] {
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"] {
            let answer = api.send(call(method, path)).await;
            assert_eq!(answer.status, 401, "{method} {path}");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
    }
    insta::assert_snapshot!("unauthorized", api.send(post("/locks/a")).await.shape());
}

#[tokio::test]
async fn a_wrong_key_is_none() {
    let api = guarded();
    for presented in [
        "Bearer s3cre",
        "Bearer s3cret2",
        "Bearer ",
        "Bearer",
        "Basic s3cret",
        "s3cret",
        "",
    ] {
        let answer = api
            .send(post("/locks/a").header("authorization", presented))
            .await;
        assert_eq!(
            answer.refusal(),
            (401, "unauthorized".to_owned()),
            "{presented}"
        );
    }
}

#[tokio::test]
async fn the_right_key_opens_everything() {
    let api = guarded();
    for presented in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"] {
        let answer = api
            .send(get("/locks").header("authorization", presented))
            .await;
        assert_eq!(answer.status, 200, "{presented}");
    }
    let granted = api
        .send(post("/locks/a").header("authorization", "Bearer s3cret"))
        .await;
    assert_eq!(granted.status, 201);
    assert_eq!(
        api.send(get("/metrics").header("authorization", "Bearer s3cret"))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn probes_and_documents_stay_open() {
    let api = guarded();
    for path in [
        "/",
        "/livez",
        "/readyz",
        "/healthz",
        "/version",
        "/openapi.json",
        "/docs/",
        "/problems",
    ] {
        assert_eq!(api.send(get(path)).await.status, 200, "{path}");
    }
}
