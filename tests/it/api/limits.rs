//! What is refused because too much is under way, and how.

use std::sync::Arc;
use std::time::Duration;

use insta::assert_snapshot;
use leasehold::store::{Fault, StoreError};
use tokio::task::JoinHandle;

use super::support::{Answer, Api, BrokenStore, Call, delete, get, post, put};
use crate::support::eventually;

const TOKEN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// A store that answers no acquire and no listing, of each of which one may be under way.
fn api() -> Api {
    api_with(1)
}

fn api_with(operations_max: usize) -> Api {
    let error = StoreError::Unavailable {
        fault: Fault::Io,
        detail: "it is gone".into(),
    };
    Api::on(Arc::new(BrokenStore::silent(error)), |settings| {
        settings.operations_max = operations_max;
        settings.listings_max = 1;
        settings.renewals_max = 1;
        settings.admission_timeout = Duration::from_millis(50);
    })
}

/// An acquire that is under way when this returns.
async fn stuck(api: &Api) -> JoinHandle<Answer> {
    stuck_in(api, post("/locks/a")).await
}

/// A request that is under way when this returns.
async fn stuck_in(api: &Api, request: Call) -> JoinHandle<Answer> {
    let stuck = api.begin(request);
    eventually("it is under way", async || {
        let metrics = api.send(get("/metrics")).await;
        // The request, and the question itself.
        let is_under_way = metrics
            .text()
            .contains("leasehold_http_requests_in_flight 2");
        is_under_way.then_some(())
    })
    .await;
    stuck
}

#[tokio::test]
async fn an_operation_too_many_is_refused_and_nothing_is_done() {
    let api = api();
    let _stuck = stuck(&api).await;
    let refused = api.send(post("/locks/b")).await;
    assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
    assert_eq!(refused.header("retry-after"), "1");
    assert_snapshot!("overloaded", refused.shape());
    let reading = api.send(get("/locks/b")).await;
    assert_eq!(reading.refusal(), (503, "overloaded".to_owned()));
    assert!(counted(&api, "operations").await >= 2.0);
}

/// How often a limit has refused something.
async fn counted(api: &Api, limit: &str) -> f64 {
    let metrics = api.send(get("/metrics")).await;
    let series = format!("leasehold_refused_total{{limit=\"{limit}\"}} ");
    let text = metrics.text();
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.expect(limit).parse().expect("a number")
}

#[tokio::test]
async fn a_listing_too_many_is_refused_and_others_are_let_alone() {
    let api = api();
    let _stuck = stuck_in(&api, get("/locks")).await;
    let refused = api.send(get("/locks?prefix=b")).await;
    assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(counted(&api, "listings").await, 1.0);
    let reading = api.send(get("/locks/b")).await;
    let asked = (503, "store_unavailable".to_owned());
    assert_eq!(reading.refusal(), asked, "the store was asked");
}

/// An acquire of several locks takes as many times as long, and counts as often.
#[tokio::test]
async fn an_acquire_of_several_locks_counts_four_times_for_each() {
    let api = api_with(13);
    let _stuck = stuck_in(&api, post("/locks").json(r#"{"names":["a","b","c"]}"#)).await;
    let refused = api
        .send(post("/locks").json(r#"{"names":["d","e"]}"#))
        .await;
    assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
    let reading = api.send(get("/locks/d")).await;
    let asked = (503, "store_unavailable".to_owned());
    assert_eq!(reading.refusal(), asked, "there is room for one");
}

#[tokio::test]
async fn an_eviction_that_was_given_up_says_how_many_it_has_done() {
    let api = Api::on(Arc::new(BrokenStore::evicting(41)), |_| {});
    let answer = api.send(delete("/locks/a?force=true")).await;
    assert_eq!(answer.refusal(), (503, "store_unavailable".to_owned()));
    assert_eq!(answer.header("retry-after"), "1");
    assert_snapshot!("unfinished_eviction", answer.shape());
}

#[tokio::test]
async fn acquires_leave_the_share_of_renewals_alone() {
    let api = api();
    let _stuck = stuck(&api).await;
    let renewed = api.send(put("/locks/a").token(TOKEN)).await;
    assert_eq!(
        renewed.refusal(),
        (503, "store_unavailable".to_owned()),
        "the store was asked"
    );
    assert_eq!(api.send(get("/livez")).await.status, 200);
}

/// The client of the operation is gone, and yet it is under way.
#[tokio::test]
async fn an_operation_whose_client_is_gone_counts_until_it_has_ended() {
    let api = api();
    let stuck = stuck(&api).await;
    stuck.abort();
    assert!(stuck.await.is_err());
    for _ in 0..3 {
        let refused = api.send(post("/locks/b")).await;
        assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
    }
}

/// Whoever waits has nothing under way.
#[tokio::test]
async fn claims_that_wait_take_up_no_room() {
    let api = Api::with(|settings| settings.operations_max = 1);
    api.token_of("/locks/a").await;
    let first = api.queue(post("/locks/a?wait=30s"), "a", 1).await;
    let second = api.queue(post("/locks/a?wait=30s"), "a", 2).await;
    api.token_of("/locks/b").await;
    first.abort();
    second.abort();
}
