//! What may come in any number has few lines in the log.

use std::sync::Arc;
use std::time::Duration;

use leasehold::config::LogRequests;
use leasehold::http::{Access, Failures, KeyRing, Role};
use leasehold::limits::Limit;
use leasehold::server::Peer;
use leasehold::store::StoreHealth;

use super::logs::{Log, from_peer};
use super::support::{Api, get, post};
use crate::support::scripted_store::ScriptedStore;

/// A limit refuses before anybody is asked for a key.
#[tokio::test]
async fn many_requests_over_a_limit_have_few_lines() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    for (limit, status) in [(Limit::RequestsPerPeer, 429), (Limit::Requests, 503)] {
        for _ in 0..32 {
            let peer = Peer::unlimited(([192, 0, 2, 7], 40_000).into());
            let request = post("/locks/a").extension(peer.in_request(Err(limit)));
            assert_eq!(api.send(request).await.status, status);
        }
    }
    let numbers: Vec<_> = log
        .requests()
        .iter()
        .map(|(_, fields)| fields["peer_refusals"].clone())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 8, 16, 32, 64]);
}

/// The first have a line each, then the first of every doubling.
#[tokio::test]
async fn many_requests_without_a_key_have_few_lines() {
    let (log, _guard) = Log::capture();
    let api = Api::with(|settings| {
        let ring = KeyRing::new([(Role::Client, "s3cret")]);
        settings.access = Access::Keys(ring, Failures::new(10));
        settings.request_log.mode = LogRequests::All;
    })
    .await;
    // What is open to all can be asked for wrongly as well.
    for request in ["/locks/a", "/nothing", "/livez", "/problems"]
        .into_iter()
        .cycle()
        .take(1_000)
    {
        assert!(api.send(from_peer(post(request))).await.status >= 400);
    }
    let lines = log.requests();
    let numbers = [1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 512];
    assert_eq!(lines.len(), numbers.len(), "{}", log.text());
    for ((_, fields), number) in lines.iter().zip(numbers) {
        assert_eq!(fields["peer_refusals"], number);
    }
}

/// An attacker may have very many addresses.
#[tokio::test]
async fn refusals_of_many_addresses_have_few_lines() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    for address in 0..1_500_u32 {
        let peer = Peer::unlimited((std::net::Ipv4Addr::from(0x0a00_0000 + address), 1).into());
        let request = post("/locks/a").extension(peer.in_request(Err(Limit::Requests)));
        assert_eq!(api.send(request).await.status, 503);
    }
    let lines = log.requests();
    assert_eq!(lines.len(), 1_001, "{}", log.text());
    assert_eq!(lines[1_000].1["lines_of_peers"], 1_024);
}

/// A client can be refused thousands of times in a second. Where every request has a line, these have, too.
#[tokio::test]
async fn many_wrong_requests_have_few_lines_unless_all_have_one() {
    let (log, _guard) = Log::capture();
    for (mode, lines) in [(LogRequests::Failed, 9), (LogRequests::All, 9 + 100)] {
        let api = Api::with(|settings| settings.request_log.mode = mode).await;
        for _ in 0..100 {
            let request = from_peer(post("/locks/a?ttl=1"));
            assert_eq!(api.send(request).await.status, 400);
        }
        assert_eq!(log.requests().len(), lines, "{}", log.text());
    }
    assert_eq!(log.requests()[8].1["client_errors"], 64);
}

/// The script of a page can send very many.
#[tokio::test]
async fn what_a_page_of_another_site_sends_has_few_lines() {
    let (log, _guard) = Log::capture();
    let api = Api::new().await;
    for _ in 0..100 {
        let request = post("/locks/a").header("sec-fetch-site", "cross-site");
        assert_eq!(api.send(from_peer(request)).await.status, 403);
    }
    assert_eq!(log.requests().len(), 9, "{}", log.text());
}

/// Fifteen seconds without Redis once had nine megabytes of them. Whoever asks, it is one store.
#[tokio::test]
async fn many_requests_that_the_store_does_not_answer_have_few_lines() {
    let (log, _guard) = Log::capture();
    let error = leasehold::store::StoreError::Unavailable {
        fault: leasehold::store::Fault::Io,
        detail: "connection to 10.0.0.7:6379 refused".to_owned(),
    };
    let failing = Api::on(Arc::new(ScriptedStore::failing(error)), |_| {});
    let recovering = Api::on(Arc::new(ScriptedStore::recovering()), |_| {});
    for api in [failing, recovering] {
        for number in 0..200 {
            let peer = Peer::unlimited(([192, 0, 2, number], 40_000).into());
            assert_eq!(api.send(post("/locks/a").extension(peer)).await.status, 503);
        }
    }
    let lines = log.requests();
    let numbers = [1, 2, 3, 4, 5, 8, 16, 32, 64, 128];
    assert_eq!(lines.len(), 2 * numbers.len(), "{}", log.text());
    for ((_, fields), number) in lines.iter().zip(numbers.iter().chain(&numbers)) {
        assert_eq!(fields["store_failures"], *number);
    }
}

/// A probe needs no key, and does not use up the lines of the requests that say why the store does not answer.
#[tokio::test]
async fn many_failed_probes_have_few_lines() {
    let (log, _guard) = Log::capture();
    for mode in [LogRequests::Failed, LogRequests::All] {
        let api = Api::on(
            Arc::new(ScriptedStore::in_health(StoreHealth::default())),
            |settings| settings.request_log.mode = mode,
        );
        for path in ["/readyz", "/healthz"].into_iter().cycle().take(100) {
            assert_eq!(api.send(from_peer(get(path))).await.status, 503);
        }
    }
    let lines = log.requests();
    let numbers = [1, 2, 3, 4, 5, 8, 16, 32, 64];
    assert_eq!(lines.len(), 2 * numbers.len(), "{}", log.text());
    for ((_, fields), number) in lines.iter().zip(numbers.iter().chain(&numbers)) {
        assert_eq!(fields["failed_probes"], *number);
        assert!(fields["store_failures"].is_null());
    }
}

/// All are slow when the store is.
#[tokio::test]
async fn many_slow_requests_have_few_lines_unless_all_have_one() {
    let (log, _guard) = Log::capture();
    for (mode, lines) in [(LogRequests::Failed, 9), (LogRequests::All, 9 + 100)] {
        let api = Api::with(|settings| {
            settings.request_log.slow = Duration::ZERO;
            settings.request_log.mode = mode;
        })
        .await;
        for _ in 0..100 {
            assert_eq!(api.send(get("/livez")).await.status, 200);
        }
        assert_eq!(log.requests().len(), lines, "{}", log.text());
    }
    assert_eq!(log.requests()[8].1["slow_requests"], 64);
}
