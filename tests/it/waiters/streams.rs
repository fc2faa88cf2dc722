//! A client that holds a lock with a stream loses its connection, and continues with its token at another process.

use std::time::Duration;

use axum::body::Body;
use axum::http::Response;

use super::fleet::Fleet;
use crate::api::support::EventStream;
use crate::support::eventually;

const LOCK: &str = "streams/leader";
const TOKEN: &str = "6f3c1d9e-0b1a-4b52-9c7e-2f8f5d0a4e11";
/// A TTL longer than any test.
const TTL: &str = "ttl=10m";

/// A stream that holds the lock on one of the processes.
async fn stream(fleet: &Fleet, process: usize) -> EventStream {
    let url = format!("{}/locks/{LOCK}?{TTL}", fleet.url(process));
    let request = reqwest::Client::new()
        .post(url)
        .header("accept", "text/event-stream")
        .header("lock-token", TOKEN);
    let response = request.send().await.expect("an answer");
    EventStream::of(Response::from(response).map(Body::new))
}

/// Waits until a process has finished the clean-up for disconnected streams.
async fn forgets_streams(fleet: &Fleet, process: usize) {
    eventually("no stream is left", async || {
        let open = fleet
            .figure(process, "leasehold_sse_subscribers{stream=\"hold\"}")
            .await;
        (open == 0.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_taken_over_elsewhere_does_not_release_what_the_new_one_holds() {
    let fleet = Fleet::start(2).await;
    let mut former = stream(&fleet, 0).await;
    let lease = former.expect("acquired").await;
    let mut new = stream(&fleet, 1).await;
    let again = new.expect("acquired").await;
    assert_eq!(again["fencing_token"], lease["fencing_token"]);
    drop(former);
    forgets_streams(&fleet, 0).await;
    let mut client = fleet.client(0, LOCK);
    let seen = client.ask("GET", "").await.expect("it lives").json();
    assert_eq!(seen["holders"][0]["fencing_token"], lease["fencing_token"]);
    drop(new);
    fleet.becomes_free(Duration::from_secs(5)).await;
}
