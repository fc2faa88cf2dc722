//! Traces: what a running service sends to a collector, what it never sends, and that nobody waits for the collector.

mod collector;
mod encryption;
mod failures;
mod limits;
mod state;
mod stores;

use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use reqwest::{Client, RequestBuilder, Response};

use crate::process::{Serving, leasehold};
use crate::support::eventually;
use crate::support::redis_server::{RedisOptions, RedisServer};
use collector::{Collector, attributes};

const ACQUIRE: &str = "POST /locks/{name}";
const RELEASE: &str = "DELETE /locks/{name}";
const WAIT: &str = "wait for the lock";

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const TOKEN: &str = "6f1c2b7e-3a64-4d09-9b5e-0d6f0a7c1e21";
const KEY: &str = "lk_a-key-that-nobody-may-see";

fn serve(collector: &Collector, arguments: &[&str]) -> Serving {
    let traced = ["--traces-endpoint", &collector.url];
    Serving::start(&[&traced[..], arguments].concat())
}

async fn post(serving: &Serving, path: &str) -> Response {
    sent(Client::new().post(format!("{}{path}", serving.url))).await
}

async fn sent(request: RequestBuilder) -> Response {
    request.send().await.expect("an answer")
}

/// A request of a caller whose span has these flags.
fn called(request: RequestBuilder, flags: &str) -> RequestBuilder {
    request.header("traceparent", format!("00-{TRACE}-{CALLER}-{flags}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn token_of(response: &Response) -> String {
    response.headers()["lock-token"]
        .to_str()
        .unwrap()
        .to_owned()
}

async fn release(serving: &Serving, name: &str, token: &str) {
    let request = Client::new().delete(format!("{}/locks/{name}", serving.url));
    let released = sent(request.header("lock-token", token)).await;
    assert_eq!(released.status(), 204);
}

fn assert_has(span: &Span, expected: &[(&str, &str)]) {
    let attributes = attributes(span);
    for (key, value) in expected {
        let found = attributes.get(*key).map(String::as_str);
        assert_eq!(
            found,
            Some(*value),
            "{key} of {}: {attributes:?}",
            span.name
        );
    }
}

#[tokio::test]
async fn a_request_is_a_span_below_that_of_its_caller() {
    let collector = Collector::start().await;
    let serving = serve(&collector, &["--traces-service-name", "locks"]);
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let request = Client::new().post(format!("{}/locks/orders/42?ttl=30s", serving.url));
    let request = called(request, "01").header("x-request-id", "of-the-test");
    assert_eq!(sent(request).await.status(), 201);
    let span = collector.span(ACQUIRE).await;
    assert_eq!(hex(&span.trace_id), TRACE);
    assert_eq!(hex(&span.parent_span_id), CALLER);
    assert_eq!(span.kind(), SpanKind::Server);
    assert_eq!(span.flags, 0x301, "sampled, with a parent elsewhere");
    assert!(u128::from(span.start_time_unix_nano) >= before.as_nanos() - 1_000_000_000);
    assert!(span.end_time_unix_nano > span.start_time_unix_nano);
    let address = serving.address();
    assert_has(
        &span,
        &[
            ("http.request.method", "POST"),
            ("http.route", "/locks/{name}"),
            ("http.response.status_code", "201"),
            ("url.scheme", "http"),
            ("url.path", "/locks/orders/42"),
            ("network.protocol.version", "1.1"),
            ("client.address", "127.0.0.1"),
            ("server.address", "127.0.0.1"),
            ("server.port", &address.port().to_string()),
            ("leasehold.lock.name", "orders/42"),
            ("leasehold.outcome", "ok"),
            ("leasehold.request.id", "of-the-test"),
        ],
    );
    assert!(!attributes(&span).contains_key("error.type"));
    assert_eq!(span.status, None);

    let of_store = collector.span("store acquire").await;
    assert_eq!(hex(&of_store.trace_id), TRACE);
    assert_eq!(of_store.parent_span_id, span.span_id);
    assert_eq!(of_store.kind(), SpanKind::Internal);
    assert_has(&of_store, &[("leasehold.store", "memory")]);

    let resource = collector.resource();
    assert_eq!(resource["service.name"], "locks");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(resource["service.instance.id"].len(), 36);
    let (headers, _) = collector.received().remove(0);
    assert_eq!(headers["content-type"], "application/x-protobuf");
}

#[tokio::test]
async fn each_command_to_redis_is_a_span_below_the_request() {
    let collector = Collector::start().await;
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let address = redis.address();
    let (_, port) = address.split_once(':').unwrap();
    let serving = serve(&collector, &["--store", &format!("redis://{address}")]);
    let token = token_of(&post(&serving, "/locks/a").await);
    release(&serving, "a", &token).await;
    for (request, script) in [(ACQUIRE, "acquire"), (RELEASE, "release")] {
        let request = collector.span(request).await;
        let command = collector.span(&format!("EVALSHA {script}")).await;
        assert_eq!(command.trace_id, request.trace_id);
        assert_eq!(command.parent_span_id, request.span_id);
        assert_eq!(command.kind(), SpanKind::Client);
        assert!(command.start_time_unix_nano >= request.start_time_unix_nano);
        assert!(command.end_time_unix_nano <= request.end_time_unix_nano);
        assert_has(
            &command,
            &[
                ("db.system.name", "redis"),
                ("db.operation.name", "EVALSHA"),
                ("db.stored_procedure.name", script),
                ("server.address", "127.0.0.1"),
                ("server.port", port),
            ],
        );
    }
    let names: Vec<_> = collector.spans().into_iter().map(|it| it.name).collect();
    assert!(
        !names.iter().any(|name| name.starts_with("store ")),
        "{names:?}"
    );
}

#[tokio::test]
async fn what_fails_in_redis_and_its_request_are_errors_and_a_refusal_is_none() {
    let collector = Collector::start().await;
    let mut redis = RedisServer::start(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", redis.address());
    let serving = serve(&collector, &["--store", &store]);
    for expected in [201, 423] {
        assert_eq!(post(&serving, "/locks/a").await.status(), expected);
    }
    redis.kill();
    assert_eq!(post(&serving, "/locks/a").await.status(), 503);
    let requests = collector.spans_named(ACQUIRE, 3).await;
    let is_error = |span: &Span| {
        let status = span.status.as_ref();
        status.is_some_and(|status| status.code() == SpanStatus::Error)
    };
    assert_eq!(
        requests.iter().map(is_error).collect::<Vec<_>>(),
        [false, false, true]
    );
    assert_has(&requests[1], &[("leasehold.outcome", "lock_held")]);
    assert_has(&requests[2], &[("error.type", "store_unavailable")]);
    let commands = collector.spans_named("EVALSHA acquire", 3).await;
    assert!(commands.iter().any(is_error), "{commands:?}");
}

/// The wait is a span too, and its end is linked to what caused it.
async fn assert_wait_is_linked(store: &str) {
    let collector = Collector::start().await;
    let serving = serve(&collector, &["--store", store]);
    let token = token_of(&post(&serving, "/locks/a?ttl=60s").await);
    let waiting = called(
        Client::new().post(format!("{}/locks/a?wait=30s", serving.url)),
        "01",
    );
    let waiting = tokio::spawn(sent(waiting));
    eventually("the claim waits", async || {
        let lock = reqwest::get(format!("{}/locks/a", serving.url)).await;
        let lock: serde_json::Value = lock.unwrap().json().await.unwrap();
        (lock["queue_length"] == 1).then_some(())
    })
    .await;
    release(&serving, "a", &token).await;
    assert_eq!(waiting.await.unwrap().status(), 201);
    let release = collector.span(RELEASE).await;
    let wait = collector.span(WAIT).await;
    assert_eq!(hex(&wait.trace_id), TRACE);
    let outcome = ("leasehold.wait.outcome", "granted");
    assert_has(&wait, &[outcome, ("leasehold.lock.names", "a")]);
    let links: Vec<_> = wait
        .links
        .iter()
        .map(|it| (&it.trace_id, &it.span_id))
        .collect();
    assert_eq!(links, [(&release.trace_id, &release.span_id)]);
    assert_ne!(release.trace_id, wait.trace_id);
    let acquires = collector.spans_named(ACQUIRE, 2).await;
    let of_caller = acquires.iter().find(|it| hex(&it.trace_id) == TRACE);
    assert_eq!(wait.parent_span_id, of_caller.unwrap().span_id);
}

#[tokio::test]
async fn a_wait_is_linked_to_the_release_that_ended_it() {
    assert_wait_is_linked("memory:").await;
}

#[tokio::test]
async fn a_wait_at_redis_is_linked_to_the_release_that_ended_it() {
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    assert_wait_is_linked(&format!("redis://{}", redis.address())).await;
}

#[tokio::test]
async fn a_wait_that_no_release_ended_has_no_link() {
    let collector = Collector::start().await;
    let serving = serve(&collector, &[]);
    assert_eq!(post(&serving, "/locks/a?ttl=300ms").await.status(), 201);
    assert_eq!(post(&serving, "/locks/a?wait=30s").await.status(), 201);
    let wait = collector.span(WAIT).await;
    assert_has(&wait, &[("leasehold.wait.outcome", "granted")]);
    assert!(wait.links.is_empty(), "{:?}", wait.links);
}

#[tokio::test]
async fn the_caller_decides_and_without_one_the_share() {
    let collector = Collector::start().await;
    let serving = serve(&collector, &["--traces-sampled-per-million", "0"]);
    let lock = format!("{}/locks", serving.url);
    // The last one is traced, and spans are sent in their order.
    for (name, headers) in [
        ("none", vec![]),
        ("unsampled", vec![format!("00-{TRACE}-{CALLER}-00")]),
        ("malformed", vec![format!("00-{TRACE}-{CALLER}")]),
        ("twice", vec![format!("00-{TRACE}-{CALLER}-01"); 2]),
        ("sampled", vec![format!("00-{TRACE}-{CALLER}-01")]),
    ] {
        let request = Client::new().post(format!("{lock}/{name}"));
        let request = headers.into_iter().fold(request, |request, header| {
            request.header("traceparent", header)
        });
        assert_eq!(sent(request).await.status(), 201, "{name}");
    }
    let span = collector.span(ACQUIRE).await;
    assert_has(&span, &[("leasehold.lock.name", "sampled")]);
    assert_eq!(collector.spans_named(ACQUIRE, 1).await.len(), 1);
}

#[tokio::test]
async fn probes_are_not_traced() {
    let collector = Collector::start().await;
    let serving = serve(&collector, &[]);
    for path in ["/livez", "/readyz", "/healthz", "/metrics", "/version"] {
        let answer = reqwest::get(format!("{}{path}", serving.url)).await;
        assert_eq!(answer.unwrap().status(), 200);
    }
    collector.span("GET /version").await;
    assert_eq!(collector.spans().len(), 1);
}

#[tokio::test]
async fn the_line_of_a_request_has_its_trace() {
    let collector = Collector::start().await;
    let mut serving = serve(&collector, &["--log-requests", "all"]);
    for flags in ["01", "00"] {
        let request = Client::new().post(format!("{}/locks/{flags}", serving.url));
        sent(called(request, flags)).await;
        let line = serving.wait_for_line("The request was answered.");
        assert_eq!(line["trace_id"], TRACE);
    }
}

#[tokio::test]
async fn no_secret_is_in_what_is_sent() {
    let collector = Collector::start().await;
    let password = "a-password-that-nobody-may-see";
    let redis = RedisServer::start(RedisOptions::forgetful()).await;
    let protect = ["CONFIG", "SET", "requirepass", password];
    redis.command(&protect).await;
    let store = format!("redis://:{password}@{}", redis.address());
    let mut command = leasehold(&[]);
    command.env("LEASEHOLD_API_KEY", KEY);
    command.env(
        "LEASEHOLD_TRACES_HEADERS",
        "authorization=Bearer%20of-the-collector",
    );
    let traced = ["--traces-endpoint", &collector.url, "--store", &store];
    let mut serving = Serving::start_as(command, &traced);
    let client = Client::new();
    let url = |path: &str| format!("{}{path}", serving.url);
    let with_key = |request: RequestBuilder| request.bearer_auth(KEY).header("lock-token", TOKEN);
    for (request, status) in [
        (client.post(url("/locks/a")), 201),
        (client.put(url("/locks/a")), 200),
        (client.delete(url("/locks/a")), 204),
        (client.post(url(&format!("/locks/a?token={TOKEN}"))), 400),
        (client.get(url(&format!("/{TOKEN}/a"))), 404),
    ] {
        assert_eq!(sent(with_key(request)).await.status(), status);
    }
    let refused = client
        .get(url("/locks/a"))
        .bearer_auth("wrong-key-of-the-test");
    assert_eq!(sent(refused).await.status(), 401);
    assert_eq!(collector.spans_named(ACQUIRE, 2).await.len(), 2);
    collector.span("GET /locks/{name}").await;
    serving.signal(Signal::SIGTERM);
    let received = collector.received();
    assert_eq!(received[0].0["authorization"], "Bearer of-the-collector");
    for secret in [
        TOKEN,
        KEY,
        password,
        "wrong-key-of-the-test",
        "of-the-collector",
    ] {
        for (_, body) in &received {
            let is_in = body
                .windows(secret.len())
                .any(|part| part == secret.as_bytes());
            assert!(!is_in, "{secret} was sent");
        }
    }
    let log = serving.rest_of_log();
    assert!(!log.contains("of-the-collector"), "{log}");
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_traced() {
    let collector = Collector::start().await;
    let mut command = leasehold(&[]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
    let mut serving = Serving::start_as(command, &["--log-requests", "all"]);
    let request = Client::new().post(format!("{}/locks/a", serving.url));
    assert_eq!(sent(called(request, "01")).await.status(), 201);
    serving.wait_for_line(
        "OTEL_EXPORTER_OTLP_ENDPOINT is set and not read, because it does not begin with LEASEHOLD_; set \
         LEASEHOLD_TRACES_ENDPOINT",
    );
    let line = serving.wait_for_line("The request was answered.");
    assert!(line.get("trace_id").is_none(), "{line}");
    serving.signal(Signal::SIGTERM);
    serving.wait();
    assert!(collector.received().is_empty());
}
