//! Streams that hold a lock for as long as they live.

use std::time::Duration;

use insta::assert_snapshot;
use tokio::time::Instant;

use super::support::{Answer, Api, Call, EventStream, delete, get, pass, post};

const A: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";

fn hold(path: &str) -> Call {
    post(path).header("accept", "text/event-stream")
}

#[tokio::test(start_paused = true)]
async fn a_stream_holds_the_lock_and_renews_it_until_its_client_leaves() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(hold("/locks/a?ttl=9s&owner=pod-1")).await);
    let grant = stream.expect("acquired").await;
    assert_eq!(
        stream.headers["lock-token"],
        grant["token"].as_str().unwrap()
    );
    assert_eq!(
        (&grant["name"], &grant["replayed"]),
        (&"a".into(), &false.into())
    );
    for _ in 0..5 {
        let renewed = stream.expect("renewed").await;
        assert_eq!(renewed["fencing_token"], grant["fencing_token"]);
    }
    assert_eq!(api.send(get("/locks/a")).await.json()["state"], "held");
    drop(stream);
    // Long before the lease would expire.
    tokio::time::timeout(Duration::from_secs(1), api.is_soon("a", "free"))
        .await
        .expect("closing the stream releases the lock");
}

#[tokio::test(start_paused = true)]
async fn a_stream_waits_in_the_queue_and_reports_its_position() {
    let api = Api::new().await;
    let token = api.token_of("/locks/a?ttl=1h").await;
    let mut stream = EventStream::of(api.open(hold("/locks/a").token(A)).await);
    let position = stream.expect("queued").await;
    assert_eq!(
        position,
        serde_json::json!({"position": 1, "queue_length": 1})
    );
    // Longer than any request without a stream may wait.
    pass(Duration::from_secs(100)).await;
    api.send(delete("/locks/a").token(&token)).await;
    let grant = stream.expect("acquired").await;
    assert_eq!(grant["token"], A);
    assert!(grant["waited_ms"].as_u64().unwrap() >= 100_000, "{grant}");
    assert!(stream.comments > 0, "a quiet stream shows that it lives");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_closed_while_it_waits_leaves_the_queue() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    let mut stream = EventStream::of(api.open(hold("/locks/a")).await);
    stream.expect("queued").await;
    drop(stream);
    api.has_waiters("a", 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_want_to_wait_is_refused_as_any_other_request() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    let refused = api.send(hold("/locks/a?wait=0s")).await;
    assert_eq!(refused.refusal(), (423, "lock_held".to_owned()));
    let for_ever = hold("/locks/a?wait=99999999999999999999d");
    EventStream::of(api.open(for_ever).await)
        .expect("queued")
        .await;
    let refused = api.send(hold("/locks/a?ttl=1ms")).await;
    assert_eq!(refused.refusal(), (400, "invalid_field".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_wait_runs_out_ends_with_the_problem() {
    let api = Api::new().await;
    api.token_of("/locks/a").await;
    let request = hold("/locks/a?wait=3s").header("x-request-id", "job-7");
    let mut stream = EventStream::of(api.open(request.token(A)).await);
    stream.expect("queued").await;
    let problem = stream.expect("refused").await;
    assert_eq!(
        (&problem["code"], &problem["instance"]),
        (&"wait_timeout".into(), &"job-7".into())
    );
    assert_eq!(problem["token"], A);
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_loses_its_lock_says_why_and_ends() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(hold("/locks/a?ttl=9s")).await);
    stream.expect("acquired").await;
    api.send(delete("/locks/a?force=true&reason=maintenance"))
        .await;
    let problem = stream.expect("lost").await;
    assert_eq!(
        (&problem["code"], &problem["reason"]),
        (&"lease_evicted".into(), &"maintenance".into())
    );
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_claim_is_released_elsewhere_says_so_at_once_and_ends() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(hold("/locks/a?ttl=9s").token(A)).await);
    stream.expect("acquired").await;
    let since = Instant::now();
    let released = api.send(delete("/locks/a").token(A)).await;
    assert_eq!(released.status, 204);
    let problem = stream.expect("lost").await;
    assert_eq!(problem["code"], "lease_released");
    assert!(stream.next().await.is_none());
    assert!(since.elapsed() < Duration::from_secs(3), "before it renews");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stops_leaves_the_lock_to_the_holder_of_the_token() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(hold("/locks/a").token(A)).await);
    stream.expect("acquired").await;
    api.stop();
    let problem = stream.expect("draining").await;
    assert_eq!(
        (&problem["code"], &problem["token"]),
        (&"draining".into(), &A.into())
    );
    assert!(stream.next().await.is_none());
    drop(stream);
    let again = api.send(post("/locks/a").token(A)).await;
    assert_eq!(
        (again.status, &again.json()["replayed"]),
        (200, &true.into())
    );
}

#[tokio::test]
async fn a_token_that_holds_can_continue_in_a_stream() {
    let api = Api::new().await;
    api.send(post("/locks/a").token(A)).await;
    let mut stream = EventStream::of(api.open(hold("/locks/a").token(A)).await);
    assert_eq!(stream.expect("acquired").await["replayed"], true);
}

#[tokio::test]
async fn the_head_of_a_stream_is_that_of_an_answer_that_never_ends() {
    let api = Api::new().await;
    let response = api.open(hold("/locks/a")).await;
    let (parts, _body) = response.into_parts();
    let head = Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: Vec::new(),
    };
    assert_snapshot!("hold_head", head.shape());
}

/// Metadata is kept byte for byte, and JSON may have line breaks between its members.
#[tokio::test]
async fn metadata_with_line_breaks_stays_within_its_event() {
    let api = Api::new().await;
    let body = "{\"metadata\":{\"a\":1,\n\n\"b\":\r\"x\u{2028}\\n\",\r\n\"c\":[]}}";
    let expected = serde_json::json!({"a": 1, "b": "x\u{2028}\n", "c": []});
    let mut holder = EventStream::of(api.open(hold("/locks/a").json(body)).await);
    assert_eq!(holder.expect("acquired").await["metadata"], expected);
    let watch = get("/locks/a").header("accept", "text/event-stream");
    let mut watcher = EventStream::of(api.open(watch).await);
    let state = watcher.expect("state").await;
    assert_eq!(state["holders"][0]["metadata"], expected);
}
