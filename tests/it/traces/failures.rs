//! A collector that is slow, busy or refuses: nobody waits for it, and what it does not take is counted.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use nix::sys::signal::Signal;

use super::collector::Collector;
use super::{ACQUIRE, post, serve};
use crate::process::Serving;
use crate::support::eventually;

/// The values of the series of a metric, by their labels.
async fn series(serving: &Serving, metric: &str) -> BTreeMap<String, u64> {
    let page = reqwest::get(format!("{}/metrics", serving.url)).await;
    let page = page.unwrap().text().await.unwrap();
    let lines = page.lines().filter_map(|line| line.strip_prefix(metric));
    let samples = lines.filter_map(|line| line.rsplit_once(' '));
    samples
        .map(|(labels, value)| (labels.to_owned(), value.parse().unwrap()))
        .collect()
}

async fn dropped(serving: &Serving, reason: &str) -> u64 {
    let series = series(serving, "leasehold_spans_dropped_total").await;
    series[&format!("{{reason=\"{reason}\"}}")]
}

/// Returns once so many spans have been exported.
async fn exported(serving: &Serving, count: u64) {
    eventually("the spans are exported", async || {
        let exported = series(serving, "leasehold_spans_exported_total").await;
        (exported[""] == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_last_spans_are_sent_before_the_process_ends() {
    let collector = Collector::start().await;
    let mut serving = serve(&collector, &["--server-drain-delay", "0s"]);
    post(&serving, "/locks/a").await;
    serving.signal(Signal::SIGTERM);
    // Meanwhile, the collector answers.
    eventually("the process ends", async || {
        serving.has_ended().then_some(())
    })
    .await;
    assert!(serving.wait().success());
    collector.span(ACQUIRE).await;
}

/// The test has no time limits of its own: a request or an end that waited for the collector would wait for ever.
#[tokio::test]
async fn a_silent_collector_delays_neither_requests_nor_the_end() {
    let collector = Collector::answering(None).await;
    let mut serving = serve(
        &collector,
        &["--traces-spans-max", "8", "--server-drain-delay", "0s"],
    );
    post(&serving, "/locks/first").await;
    eventually("the collector is asked", async || {
        (!collector.received().is_empty()).then_some(())
    })
    .await;
    for number in 0..20 {
        let granted = post(&serving, &format!("/locks/{number}")).await;
        assert_eq!(granted.status(), 201);
    }
    // A request over memory has two spans. Those of the first one are being sent, or the first of them is.
    let sent = collector.spans().len() as u64;
    assert_eq!(dropped(&serving, "queue_full").await, 2 * 21 - sent - 8);
    serving.signal(Signal::SIGTERM);
    assert!(serving.wait().success());
}

#[tokio::test]
async fn spans_that_are_refused_are_counted_and_reported_once() {
    let collector = Collector::answering(Some(StatusCode::BAD_REQUEST)).await;
    let mut serving = serve(&collector, &[]);
    for count in [2, 4] {
        post(&serving, &format!("/locks/{count}")).await;
        eventually("the spans are dropped", async || {
            (dropped(&serving, "export_failed").await == count).then_some(())
        })
        .await;
    }
    let warning = "spans cannot be exported and are dropped; requests go on";
    let line = serving.wait_for_line(warning);
    let problem = line["problem"].as_str().unwrap();
    assert!(problem.ends_with("answers 400 Bad Request"), "{problem}");
    collector.answer_with(StatusCode::OK);
    post(&serving, "/locks/last").await;
    exported(&serving, 2).await;
    // Nothing is reported in between.
    assert_eq!(serving.next_line()["message"], "spans are exported again");
}

#[tokio::test]
async fn spans_are_sent_again_to_a_collector_that_is_busy() {
    let collector = Collector::answering(Some(StatusCode::SERVICE_UNAVAILABLE)).await;
    let serving = serve(&collector, &[]);
    post(&serving, "/locks/a").await;
    eventually("the collector is asked", async || {
        (!collector.received().is_empty()).then_some(())
    })
    .await;
    collector.answer_with(StatusCode::OK);
    exported(&serving, 2).await;
    assert_eq!(dropped(&serving, "export_failed").await, 0);
}
