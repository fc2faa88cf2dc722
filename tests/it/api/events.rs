//! Event streams: lock events as watchers receive them.

use http_body_util::BodyExt as _;

use super::support::{Api, Call, Event, EventStream, call, delete, get, post, put};

fn watch(path: &str) -> Call {
    get(path).header("accept", "text/event-stream")
}

/// Acquires, renews and releases, and returns the events of that.
async fn tell_three(api: &Api, stream: &mut EventStream, name: &str) -> Vec<Event> {
    let token = api.token_of(&format!("/locks/{name}?owner=pod-1")).await;
    let path = format!("/locks/{name}");
    api.send(put(&path).token(&token)).await;
    api.send(delete(&path).token(&token)).await;
    let mut events = Vec::new();
    while events.len() < 3 {
        events.push(stream.next().await.expect("an event"));
    }
    events
}

#[tokio::test(start_paused = true)]
async fn events_arrive_in_order_with_ids() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(get("/events")).await);
    let events = tell_three(&api, &mut stream, "a").await;
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["acquired", "renewed", "released"]);
    assert!(events.iter().all(|event| event.id.is_some()));
    let data = &events[0].data;
    assert_eq!(
        (&data["name"], &data["owner"]),
        (&"a".into(), &"pod-1".into())
    );
    assert!(data["fencing_token"].is_u64() && data["expires_at"].is_string());
    assert_eq!(data["fencing_token"], events[2].data["fencing_token"]);
    assert!(data["at"].is_string() && events[2].data["expires_at"].is_null());
}

/// Each event is written to each stream.
#[tokio::test]
async fn an_event_stream_too_many_is_refused_until_another_one_ends() {
    let api = Api::with(|settings| settings.event_streams_max = 2).await;
    let of_all = EventStream::of(api.open(get("/events")).await);
    let _of_one = EventStream::of(api.open(watch("/locks/a")).await);
    for request in [get("/events"), watch("/locks/a")] {
        let refused = api.send(request).await;
        assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
        assert_eq!(refused.header("retry-after"), "1");
    }
    let metrics = api.send(get("/metrics")).await;
    let counted = "leasehold_refused_total{limit=\"event_streams\"} 2";
    assert!(metrics.text().contains(counted));
    drop(of_all);
    let again = api.open(get("/events")).await;
    assert_eq!(again.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn only_locks_under_the_prefix_have_events() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(get("/events?prefix=jobs/")).await);
    api.token_of("/locks/other").await;
    api.token_of("/locks/jobs/1").await;
    assert_eq!(stream.expect("acquired").await["name"], "jobs/1");
}

#[tokio::test(start_paused = true)]
async fn expiry_eviction_and_waiting_have_events() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(get("/events")).await);
    api.token_of("/locks/a?ttl=1s").await;
    let waiting = api.begin(post("/locks/a?wait=20s&owner=pod-2"));
    stream.expect("acquired").await;
    assert_eq!(stream.expect("queued").await["owner"], "pod-2");
    stream.expect("expired").await;
    stream.expect("acquired").await;
    assert_eq!(waiting.await.expect("an answer").status, 201);
    api.send(delete("/locks/a?force=true")).await;
    stream.expect("evicted").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reconnects_resumes_after_the_last_event_that_it_saw() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(get("/events")).await);
    let events = tell_three(&api, &mut stream, "a").await;
    let last = events[0].id.clone().expect("an id");
    let mut again = EventStream::of(
        api.open(get("/events").header("last-event-id", &last))
            .await,
    );
    for expected in &events[1..] {
        let event = again.next().await.expect("an event");
        assert_eq!((&event.id, &event.kind), (&expected.id, &expected.kind));
    }
    api.token_of("/locks/b").await;
    assert_eq!(again.expect("acquired").await["name"], "b");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_may_have_missed_events_gets_a_reset() {
    let api = Api::new().await;
    for unknown in ["never-sent", "caf\u{e9}"] {
        let request = get("/events").header("last-event-id", unknown);
        let mut stream = EventStream::of(api.open(request).await);
        assert_eq!(stream.next().await.expect("an event").kind, "reset");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_one_lock_begins_with_its_state() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(watch("/locks/a")).await);
    let state = stream.expect("state").await;
    assert_eq!(state, api.send(get("/locks/a")).await.json());
    api.token_of("/locks/ab").await;
    let token = api.token_of("/locks/a").await;
    assert_eq!(stream.expect("acquired").await["name"], "a");
    api.send(delete("/locks/a").token(&token)).await;
    assert_eq!(stream.expect("released").await["name"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stops_ends_the_streams_of_watchers() {
    let api = Api::new().await;
    let mut all = EventStream::of(api.open(get("/events")).await);
    let mut one = EventStream::of(api.open(watch("/locks/a")).await);
    one.expect("state").await;
    api.stop();
    for stream in [&mut all, &mut one] {
        assert_eq!(stream.next().await.expect("an event").kind, "reset");
        assert!(stream.next().await.is_none());
    }
}

/// So that a client knows at once that it is connected, and a proxy passes the head on.
#[tokio::test(start_paused = true)]
async fn a_stream_without_events_begins_with_a_comment() {
    let api = Api::new().await;
    let mut body = api.open(get("/events")).await.into_body();
    let frame = tokio::time::timeout(std::time::Duration::from_secs(1), body.frame()).await;
    let frame = frame
        .expect("at once")
        .expect("a frame")
        .expect("no failure");
    assert_eq!(frame.into_data().expect("data"), ":\n\n");
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_events_sends_keep_alives() {
    let api = Api::new().await;
    let mut stream = EventStream::of(api.open(get("/events")).await);
    let quiet = tokio::time::timeout(std::time::Duration::from_secs(60), stream.next()).await;
    assert!(quiet.is_err());
    assert!(stream.comments >= 3, "{}", stream.comments);
}

#[tokio::test]
async fn a_request_for_the_head_of_a_stream_ends() {
    let api = Api::new().await;
    let head = api.send(call("HEAD", "/events")).await;
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), "text/event-stream");
    let request = call("HEAD", "/locks/a").header("accept", "text/event-stream");
    assert_eq!(api.send(request).await.status, 200);
}

#[tokio::test]
async fn wrong_fields_of_a_stream_are_refused() {
    let api = Api::new().await;
    for (path, code) in [
        ("/events?prefix=/a", "invalid_field"),
        ("/events?prefx=a", "unknown_field"),
        ("/events?token=x", "token_in_query"),
        ("/locks/a?ttl=5s", "unknown_field"),
        ("/locks/a//b", "invalid_name"),
    ] {
        let answer = api.send(watch(path)).await;
        assert_eq!(answer.refusal(), (400, code.to_owned()), "{path}");
    }
}
