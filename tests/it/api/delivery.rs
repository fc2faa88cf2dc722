//! An undelivered grant is rolled back.

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::support::{Api, get};

fn acquire() -> Request<Body> {
    let request = Request::post("/locks/a").body(Body::empty());
    request.expect("a request")
}

/// The response as the server takes it, before it is sent.
async fn granted(api: &Api) -> Response<Body> {
    let response = api.router.clone().oneshot(acquire()).await;
    response.expect("an answer")
}

/// Lets the rollback tasks run. They need no time, only to be polled.
async fn is_free_soon(api: &Api) -> bool {
    for _ in 0..100 {
        if api.send(get("/locks/a")).await.json()["state"] == "free" {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

#[tokio::test]
async fn a_response_that_is_dropped_before_it_was_sent_rolls_back_the_grant() {
    let api = Api::new().await;
    let response = granted(&api).await;
    assert_eq!(response.status(), 201);
    drop(response);
    assert!(is_free_soon(&api).await);
}

#[tokio::test]
async fn a_response_that_was_taken_for_sending_keeps_the_grant() {
    let api = Api::new().await;
    let response = granted(&api).await;
    let mut body = response.into_body();
    assert!(body.frame().await.is_some());
    drop(body);
    assert!(!is_free_soon(&api).await);
}

#[tokio::test]
async fn a_replay_that_is_dropped_leaves_the_lease_to_its_holder() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    let mut again = acquire();
    again
        .headers_mut()
        .insert("lock-token", token.parse().expect("a header value"));
    let response = api.router.clone().oneshot(again).await.expect("an answer");
    assert_eq!(response.status(), 200);
    drop(response);
    assert!(!is_free_soon(&api).await);
}
