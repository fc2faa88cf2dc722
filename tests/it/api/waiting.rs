//! Waiting over HTTP: waits, kept places, and refusals when a queue is full.

use std::time::Duration;

use insta::assert_snapshot;

use super::support::{Api, delete, get, pass, post};

const A: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
const B: &str = "0b0d1d6e-0a58-4f0b-8a0f-2b1f6f1f9a77";

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_answered_when_it_is_its_turn() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    let waiting = post("/locks/a?wait=20s&owner=pod-2").token(A);
    let waiting = api.queue(waiting, "a", 1).await;
    pass(Duration::from_secs(7)).await;
    api.send(delete("/locks/a").token(&token)).await;
    let granted = waiting.await.unwrap();
    assert_eq!((granted.status, granted.header("lock-token")), (201, A));
    let waited_ms = granted.json()["waited_ms"].as_u64().unwrap();
    assert!((7_000..8_000).contains(&waited_ms), "{waited_ms}");
    assert_eq!(granted.json()["expires_in_ms"], 30_000);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_reports_the_position_and_how_long_the_place_is_kept() {
    let api = Api::new().await;
    api.token_of("/locks/a?owner=pod-1").await;
    let other = api.queue(post("/locks/a?wait=30s"), "a", 1).await;
    let refused = api.send(post("/locks/a?wait=2s").token(A)).await;
    assert_eq!(refused.refusal(), (423, "wait_timeout".to_owned()));
    let problem = refused.json();
    assert_eq!(problem["token"], A);
    assert_eq!(refused.header("lock-token"), A);
    assert_eq!(problem["position"], 2);
    assert_eq!(problem["place_kept_ms"], 10_000);
    assert_eq!(refused.header("retry-after"), "0");
    assert_snapshot!("wait_timeout", refused.shape());
    other.abort();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_briefly_must_not_retry_at_once() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    let refused = api.send(post("/locks/a?wait=100ms")).await;
    assert_eq!(refused.refusal(), (423, "wait_timeout".to_owned()));
    assert_eq!(refused.header("retry-after"), "1");
}

#[tokio::test(start_paused = true)]
async fn the_same_token_keeps_waiting_in_its_place() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a").await;
    let first = api.send(post("/locks/a?wait=1s").token(A)).await;
    assert_eq!(first.json()["position"], 1);
    let second = api.queue(post("/locks/a?wait=30s").token(B), "a", 1).await;
    let first = api.queue(post("/locks/a?wait=30s").token(A), "a", 2).await;
    api.send(delete("/locks/a").token(&token)).await;
    let first = first.await.unwrap();
    assert_eq!((first.status, first.header("lock-token")), (201, A));
    api.send(delete("/locks/a").token(A)).await;
    assert_eq!(second.await.unwrap().header("lock-token"), B);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_longer_than_allowed_is_capped_and_not_refused() {
    let api = Api::new().await;
    api.token_of("/locks/a?ttl=1h").await;
    let before = tokio::time::Instant::now();
    let refused = api.send(post("/locks/a?wait=1000d")).await;
    assert_eq!(refused.refusal(), (423, "wait_timeout".to_owned()));
    let waited = before.elapsed().as_secs();
    assert!((55..57).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stops_ends_waits_at_once_and_keeps_the_places() {
    let api = Api::new().await;
    api.token_of("/locks/a?owner=pod-1").await;
    let waiting = api.queue(post("/locks/a?wait=30s").token(A), "a", 1).await;
    api.stop();
    let refused = waiting.await.unwrap();
    assert_eq!(refused.refusal(), (503, "draining".to_owned()));
    let problem = refused.json();
    assert_eq!(
        (&problem["token"], &problem["outcome"]),
        (&A.into(), &"nothing_done".into())
    );
    assert_eq!(problem["place_kept_ms"], 10_000);
    assert_eq!(refused.header("retry-after"), "0");
    // On a kept connection, the client would send its retry to the process that stops.
    assert_eq!(refused.header("connection"), "close");
    assert_snapshot!("draining", refused.shape());
    let again = api.send(post("/locks/a?wait=30s").token(A)).await;
    assert_eq!(again.refusal(), (503, "draining".to_owned()));
    assert_eq!(again.header("retry-after"), "1");
}

#[tokio::test(start_paused = true)]
async fn a_claim_can_leave_the_queue() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    let waiting = api.queue(post("/locks/a?wait=30s").token(A), "a", 1).await;
    assert_eq!(api.send(delete("/locks/a").token(A)).await.status, 204);
    let ended = waiting.await.unwrap();
    assert_eq!(ended.refusal(), (409, "claim_ended".to_owned()));
    assert_eq!(ended.json()["ended"], "released");
    api.has_waiters("a", 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_further_claims() {
    let api = Api::waiting(|waiting| waiting.waiters_per_lock_max = 1).await;
    api.token_of("/locks/a").await;
    let waiting = api.queue(post("/locks/a?wait=30s"), "a", 1).await;
    let refused = api.send(post("/locks/a?wait=30s")).await;
    assert_eq!(refused.refusal(), (429, "too_many_waiters".to_owned()));
    assert_eq!(refused.json()["queue_length"], 1);
    assert_eq!(refused.header("retry-after"), "1");
    assert_snapshot!("too_many_waiters", refused.shape());
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_process_limits_its_waiters() {
    let api = Api::waiting(|waiting| waiting.waiters_max = 1).await;
    api.token_of("/locks/a").await;
    api.token_of("/locks/b").await;
    let waiting = api.queue(post("/locks/a?wait=30s"), "a", 1).await;
    let refused = api.send(post("/locks/b?wait=30s")).await;
    assert_eq!(refused.refusal(), (429, "too_many_waiters".to_owned()));
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_lock_shows_the_head_of_its_queue() {
    let api = Api::new().await;
    api.token_of("/locks/a?owner=pod-1&ttl=1h").await;
    let next = post("/locks/a?wait=30s&owner=pod-2&mode=shared&limit=4&permits=2");
    let next = api.queue(next, "a", 1).await;
    let last = api.queue(post("/locks/a?wait=30s"), "a", 2).await;
    let lock = api.send(get("/locks/a")).await;
    assert_eq!(lock.json()["queue_head"]["owner"], "pod-2");
    assert_snapshot!("inspect_queued", lock.shape());
    let listed = api.send(get("/locks")).await.json();
    assert_eq!(listed["locks"][0], lock.json());
    let refused = api.send(post("/locks/a")).await;
    assert_eq!(refused.refusal(), (423, "lock_held".to_owned()));
    assert_eq!(refused.json()["queue_length"], 2);
    next.abort();
    last.abort();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_fair_takes_what_is_free() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a?mode=shared").await;
    // A writer waits for the reader, and further readers queue behind it.
    let writer = api.queue(post("/locks/a?wait=30s"), "a", 1).await;
    let fair = api.send(post("/locks/a?mode=shared")).await;
    assert_eq!(fair.refusal(), (423, "lock_held".to_owned()));
    let unfair = api.send(post("/locks/a?mode=shared&fair=false")).await;
    assert_eq!(unfair.status, 201);
    let own = api.send(delete("/locks/a").token(&token)).await;
    assert_eq!(own.status, 204);
    writer.abort();
}
