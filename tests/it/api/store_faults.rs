//! Responses to clients when the store does not answer.

use std::sync::Arc;

use insta::assert_snapshot;
use leasehold::store::{Fault, StoreError};

use super::support::{Answer, Api, call, delete, get, post, put};
use crate::support::scripted_store::{Behavior, ScriptedStore};

const TOKEN: &str = "6f1c3b0e-8f0a-4f57-9c55-0d5d3f1f4a1b";
const CAUSE: &str = "connection to 10.0.0.7:6379 refused";

fn failing(is_unknown: bool) -> Api {
    let (fault, detail) = (Fault::Io, CAUSE.to_owned());
    let error = match is_unknown {
        true => StoreError::Unknown { fault, detail },
        false => StoreError::Unavailable { fault, detail },
    };
    Api::on(Arc::new(ScriptedStore::failing(error)), |_| {})
}

#[track_caller]
fn is_unavailable(answer: &Answer, outcome: &str) {
    assert_eq!(answer.refusal(), (503, "store_unavailable".to_owned()));
    assert_eq!(answer.json()["outcome"], outcome);
    assert_eq!(answer.header("retry-after"), "1");
    assert!(
        !answer.text().contains("10.0.0.7"),
        "the cause got out: {}",
        answer.text()
    );
}

#[tokio::test]
async fn a_failed_acquire_reports_its_outcome_and_its_token() {
    let unknown = failing(true).send(post("/locks/a")).await;
    is_unavailable(&unknown, "unknown");
    assert_snapshot!("store_unavailable_unknown", unknown.shape());
    let nothing = failing(false).send(post("/locks/a").token(TOKEN)).await;
    is_unavailable(&nothing, "nothing_done");
    assert_eq!(nothing.json()["token"], TOKEN);
}

#[tokio::test]
async fn every_other_failed_operation_reports_its_outcome() {
    let api = failing(true);
    for request in [
        put("/locks/a").token(TOKEN),
        delete("/locks/a").token(TOKEN),
        delete("/locks/a?force=true"),
        put("/locks?names=a&names=b").token(TOKEN),
        delete("/locks?names=a&names=b").token(TOKEN),
    ] {
        let answer = api.send(request).await;
        is_unavailable(&answer, "unknown");
        assert!(!answer.text().contains(TOKEN));
    }
}

#[tokio::test]
async fn a_failed_read_changed_nothing_whatever_the_store_did() {
    let api = failing(true);
    let watch = get("/locks/a").header("accept", "text/event-stream");
    for request in [get("/locks/a"), get("/locks"), watch] {
        let answer = api.send(request).await;
        is_unavailable(&answer, "nothing_done");
        assert!(answer.detail().ends_with("; nothing was changed"));
    }
    assert_eq!(api.send(call("HEAD", "/locks/a")).await.status, 503);
}

#[tokio::test]
async fn while_leases_may_be_forgotten_new_grants_wait() {
    let api = Api::on(Arc::new(ScriptedStore::recovering()), |_| {});
    let answer = api.send(post("/locks/a")).await;
    assert_eq!(answer.refusal(), (503, "recovering".to_owned()));
    assert_eq!(answer.header("retry-after"), "3");
    assert_snapshot!("recovering", answer.shape());
}

/// As far as the store knows, no claim holds the lock.
#[tokio::test(start_paused = true)]
async fn a_wait_that_runs_out_while_new_grants_wait_blames_no_holder() {
    let api = Api::on(Arc::new(ScriptedStore::recovering()), |_| {});
    let answer = api.send(post("/locks/a?wait=2s").token(TOKEN)).await;
    assert_eq!(answer.refusal(), (423, "wait_timeout".to_owned()));
    assert_snapshot!("wait_timeout_recovering", answer.shape());
}

#[tokio::test]
async fn a_panic_is_a_500_without_its_cause() {
    let api = Api::on(Arc::new(ScriptedStore::always(Behavior::Panics)), |_| {});
    let answer = api.send(get("/locks/a")).await;
    assert_eq!(answer.refusal(), (500, "internal".to_owned()));
    assert!(!answer.text().contains("scripted"), "{}", answer.text());
    assert_snapshot!("internal", answer.shape());
    let figures = api.send(get("/metrics")).await;
    assert!(
        figures.text().contains("leasehold_panics_total 1"),
        "{}",
        figures.text()
    );
}

#[tokio::test]
async fn store_failures_are_reported_by_kind() {
    let mut details = Vec::new();
    for fault in Fault::ALL {
        let detail = CAUSE.to_owned();
        let error = StoreError::Unavailable { fault, detail };
        let api = Api::on(Arc::new(ScriptedStore::failing(error)), |_| {});
        let answer = api.send(post("/locks/a")).await;
        let (status, code) = answer.refusal();
        assert_eq!(status, 503);
        let retry_after = answer.header("retry-after").to_owned();
        let detail = answer.json()["detail"].as_str().expect("text").to_owned();
        assert!(!detail.contains("10.0.0.7"), "{detail}");
        details.push(format!("{code}, {retry_after} s: {detail}"));
    }
    assert_snapshot!("store_unavailable_by_kind", details.join("\n"));
}
