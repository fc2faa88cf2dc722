//! The state of a trace, which its caller hands on: the header `tracestate`.

use reqwest::{Client, RequestBuilder};

use super::collector::{Collector, attributes};
use super::{ACQUIRE, CALLER, TRACE, called, sent, serve};

const STATE: &str = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";

/// The states of the requests that these changes make, in their order, and of what was done within them.
async fn states(changes: &[fn(RequestBuilder) -> RequestBuilder]) -> Vec<[String; 2]> {
    let collector = Collector::start().await;
    let serving = serve(&collector, &[]);
    for (number, change) in changes.iter().enumerate() {
        let request = Client::new().post(format!("{}/locks/{number}", serving.url));
        assert_eq!(sent(change(request)).await.status(), 201);
    }
    let mut requests = collector.spans_named(ACQUIRE, changes.len()).await;
    requests.sort_by_key(|span| attributes(span)["url.path"].clone());
    let within = collector.spans_named("store acquire", changes.len()).await;
    let states = requests.into_iter().map(|request| {
        let mut within = within.iter();
        let within = within.find(|span| span.parent_span_id == request.span_id);
        [request.trace_state, within.unwrap().trace_state.clone()]
    });
    states.collect()
}

#[tokio::test]
async fn all_spans_of_a_request_have_the_state_of_its_trace() {
    let states = states(&[
        |request| called(request, "01").header("tracestate", STATE),
        |request| {
            let (first, second) = STATE.split_once(',').unwrap();
            let request = called(request, "01").header("tracestate", first);
            request.header("tracestate", second)
        },
    ]);
    assert_eq!(states.await, [[STATE; 2]; 2]);
}

#[tokio::test]
async fn a_state_that_is_malformed_or_long_or_of_no_trace_is_dropped() {
    let states = states(&[
        |request| called(request, "01"),
        |request| called(request, "01").header("tracestate", "a=1,B=2"),
        |request| called(request, "01").header("tracestate", format!("a={}", "x".repeat(511))),
        |request| request.header("tracestate", STATE),
        |request| {
            let malformed = format!("00-{TRACE}-{CALLER}");
            request
                .header("traceparent", malformed)
                .header("tracestate", STATE)
        },
    ]);
    assert_eq!(states.await, [[""; 2]; 5]);
}
