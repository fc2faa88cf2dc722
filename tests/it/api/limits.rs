//! Refusals because a limit on operations in flight is reached.

use std::sync::Arc;
use std::time::Duration;

use insta::assert_snapshot;
use leasehold::store::{Fault, StoreError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::support::{Answer, Api, Call, EventStream, delete, get, post, put};
use crate::support::eventually;
use crate::support::scripted_store::{Behavior, Operation, ScriptedStore};

const TOKEN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// On a store that never answers an acquire or a listing; one of each may be in flight.
fn api() -> Api {
    api_with(1)
}

fn api_with(operations_max: usize) -> Api {
    api_without(&[Operation::Acquire, Operation::List], operations_max)
}

/// On a store that fails, and never answers these operations.
fn api_without(answers: &[Operation], operations_max: usize) -> Api {
    let error = StoreError::Unavailable {
        fault: Fault::Io,
        detail: "it is gone".into(),
    };
    let failing = ScriptedStore::failing(error);
    let store = answers.iter().fold(failing, |store, operation| {
        store.with(*operation, Behavior::Unanswered)
    });
    Api::on(Arc::new(store), |settings| {
        settings.operations_max = operations_max;
        settings.listings_max = 1;
        settings.renewals_max = 1;
        settings.admission_timeout = Duration::from_millis(50);
    })
}

/// An acquire that is in flight when this returns.
async fn stuck(api: &Api) -> JoinHandle<Answer> {
    stuck_in(api, post("/locks/a")).await
}

/// A request that is in flight when this returns.
async fn stuck_in(api: &Api, request: Call) -> JoinHandle<Answer> {
    let stuck = api.begin(request);
    eventually("it is under way", async || {
        let metrics = api.send(get("/metrics")).await;
        // The request, and the one for the metrics.
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

/// How often a limit has refused a request.
async fn counted(api: &Api, limit: &str) -> f64 {
    let metrics = api.send(get("/metrics")).await;
    let series = format!("leasehold_refused_total{{limit=\"{limit}\"}} ");
    let text = metrics.text();
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.expect(limit).parse().expect("a number")
}

/// The request is refused and counted, while the store is asked for others.
async fn is_refused_alone(api: &Api, one_too_many: Call, limit: &str) {
    let refused = api.send(one_too_many).await;
    assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(counted(api, limit).await, 1.0);
    let reading = api.send(get("/locks/b")).await;
    let asked = (503, "store_unavailable".to_owned());
    assert_eq!(reading.refusal(), asked, "the store was asked");
}

#[tokio::test]
async fn a_listing_too_many_is_refused_and_others_are_let_alone() {
    let api = api();
    let _stuck = stuck_in(&api, get("/locks")).await;
    is_refused_alone(&api, get("/locks?prefix=b"), "listings").await;
}

#[tokio::test]
async fn a_renewal_too_many_is_refused_and_others_are_let_alone() {
    let api = api_without(&[Operation::Renew], 1);
    let renewal = |name: &str| put(&format!("/locks/{name}")).token(TOKEN);
    let _stuck = stuck_in(&api, renewal("a")).await;
    is_refused_alone(&api, renewal("b"), "renewals").await;
}

/// Nothing else limits that of a client without a share of its own, such as one of a proxy.
#[tokio::test(start_paused = true)]
async fn the_renewal_of_a_stream_counts_among_those_of_all() {
    let silent = ScriptedStore::default().with(Operation::Renew, Behavior::Unanswered);
    let api = Api::on(Arc::new(silent), |settings| settings.renewals_max = 1);
    let held = post("/locks/a?ttl=3s").header("accept", "text/event-stream");
    let _stream = EventStream::of(api.open(held).await);
    sleep(Duration::from_secs(2)).await;
    let renewal = api.send(put("/locks/b").token(TOKEN));
    let refused = timeout(Duration::from_secs(10), renewal).await;
    let refused = refused.expect("the store is not asked");
    assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
}

/// An acquire of several locks blocks the store for longer, and counts accordingly.
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

/// Entering a queue and leaving it again takes longer than a refusal.
#[tokio::test]
async fn an_acquire_that_waits_counts_four_times() {
    let api = api_with(5);
    let _stuck = stuck_in(&api, post("/locks/a?wait=30s")).await;
    let refused = api.send(post("/locks/b?wait=30s")).await;
    assert_eq!(refused.refusal(), (503, "overloaded".to_owned()));
    let reading = api.send(get("/locks/b")).await;
    let asked = (503, "store_unavailable".to_owned());
    assert_eq!(reading.refusal(), asked, "there is room for one");
}

/// Nothing is known of a lock before its first answer, so its first requests count once each. Those that wait for their
/// turn meanwhile count by what that answer listed.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_count_by_what_has_been_listed_meanwhile() {
    let answer_time = Duration::from_secs(1);
    let slow = ScriptedStore::default().with(Operation::Inspect, Behavior::Late(answer_time));
    let api = Api::on(Arc::new(slow), |settings| {
        settings.operations_max = 8;
        settings.admission_timeout = Duration::from_secs(60);
    });
    for _ in 0..28 {
        api.send(post("/locks/crowded?mode=shared&ttl=1h")).await;
    }
    let start = Instant::now();
    let requests: Vec<_> = (0..16).map(|_| api.begin(get("/locks/crowded"))).collect();
    for request in requests {
        assert_eq!(request.await.unwrap().status, 200);
    }
    // Eight at once, and then one after the other. Without that, there are two rounds of eight.
    assert_eq!(start.elapsed().as_secs(), 9);
}

#[tokio::test]
async fn an_unfinished_eviction_reports_how_many_holders_it_evicted() {
    let api = Api::on(Arc::new(ScriptedStore::evicting(41)), |_| {});
    let answer = api.send(delete("/locks/a?force=true")).await;
    assert_eq!(answer.refusal(), (503, "store_unavailable".to_owned()));
    assert_eq!(answer.header("retry-after"), "1");
    assert_snapshot!("unfinished_eviction", answer.shape());
}

#[tokio::test]
async fn acquires_do_not_use_up_the_limit_of_renewals() {
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

/// The client of the operation is gone, but the operation is still in flight.
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

/// So clients that ask and leave cannot fill the store with requests.
#[tokio::test]
async fn a_view_whose_client_is_gone_counts_until_the_store_has_answered() {
    for accepted in ["application/json", "text/event-stream"] {
        let api = api_without(&[Operation::Inspect], 1);
        let view = get("/locks/a").header("accept", accepted);
        let stuck = stuck_in(&api, view).await;
        stuck.abort();
        assert!(stuck.await.is_err());
        let refused = api.send(post("/locks/b")).await;
        let expected = (503, "overloaded".to_owned());
        assert_eq!(refused.refusal(), expected, "{accepted}");
    }
}

/// A waiting claim has no operation in flight.
#[tokio::test]
async fn waiting_claims_take_no_slots() {
    let api = Api::with(|settings| settings.operations_max = 1).await;
    api.token_of("/locks/a").await;
    let first = api.queue(post("/locks/a?wait=30s"), "a", 1).await;
    let second = api.queue(post("/locks/a?wait=30s"), "a", 2).await;
    api.token_of("/locks/b").await;
    first.abort();
    second.abort();
}
