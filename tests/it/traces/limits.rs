//! What a client cannot make of traces: large spans, or a trace that does not end.

use reqwest::{Client, StatusCode};

use super::collector::{Collector, attributes};
use super::{ACQUIRE, WAIT, called, post, release, sent, serve, token_of};
use crate::support::eventually;

/// The client needs no key for this. Spans wait in memory until they are sent.
#[tokio::test]
async fn a_host_of_any_length_makes_no_large_span() {
    let collector = Collector::start().await;
    let serving = serve(&collector, &[]);
    let url = format!("{}/locks/a", serving.url);
    let request = Client::new().post(url).header("host", "h".repeat(60_000));
    sent(request).await;
    let span = collector.span(ACQUIRE).await;
    assert!(!attributes(&span).contains_key("server.address"));
    let bytes: usize = collector
        .received()
        .iter()
        .map(|(_, body)| body.len())
        .sum();
    assert!(bytes < 4_096, "{bytes} bytes were sent");
}

/// A claim may have 64 names of 255 bytes.
#[tokio::test]
async fn the_names_of_a_wait_are_cut() {
    let collector = Collector::start().await;
    let serving = serve(&collector, &[]);
    let names: Vec<_> = (10..30)
        .map(|number| format!("{number}{}", "n".repeat(200)))
        .collect();
    let held = post(&serving, &format!("/locks/{}?ttl=60s", names[0])).await;
    assert_eq!(held.status(), 201);
    let body = serde_json::json!({ "names": names, "wait": "200ms" });
    let waiting = Client::new().post(format!("{}/locks", serving.url));
    let refused = sent(waiting.json(&body)).await;
    assert_eq!(refused.status(), StatusCode::LOCKED);
    let wait = collector.span(WAIT).await;
    let traced = &attributes(&wait)["leasehold.lock.names"];
    assert_eq!(*traced, format!("{} …", names[..5].join(" ")));
}

/// It would be a trace that does not end.
#[tokio::test]
async fn what_a_stream_does_after_its_grant_is_in_no_trace() {
    let collector = Collector::start().await;
    let serving = serve(&collector, &[]);
    let held = post(&serving, "/locks/a?ttl=60s").await;
    let streaming = Client::new().post(format!("{}/locks/a?ttl=3s", serving.url));
    let streaming = streaming.header("accept", "text/event-stream");
    let mut stream = sent(called(streaming, "01")).await;
    assert_eq!(stream.status(), 200);
    release(&serving, "a", &token_of(&held)).await;
    let mut events = String::new();
    while events.matches("event: renewed").count() < 2 {
        let chunk = stream.chunk().await.unwrap().expect("the stream goes on");
        events.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    drop(stream);
    eventually("the stream has released the lock", async || {
        (post(&serving, "/locks/a").await.status() == 201).then_some(())
    })
    .await;
    // Spans are sent in their order.
    post(&serving, "/locks/last").await;
    eventually("the last span came", async || {
        let mut paths = collector.spans().into_iter().map(|span| attributes(&span));
        let is_last = |path: Option<&String>| path.is_some_and(|path| path == "/locks/last");
        paths
            .any(|attributes| is_last(attributes.get("url.path")))
            .then_some(())
    })
    .await;
    let wait = collector.span(WAIT).await;
    let in_trace = collector.spans().into_iter();
    let in_trace = in_trace.filter(|span| span.trace_id == wait.trace_id);
    let mut names: Vec<_> = in_trace.map(|span| span.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names, [ACQUIRE, "store acquire", WAIT]);
    let all = collector.spans();
    assert!(!all.iter().any(|span| span.name == "store renew"));
}
