//! What each kind of store does within a request: each command to a Redis, whichever it is, the wait for its replicas, and
//! the operations of a file.

use std::collections::BTreeSet;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use reqwest::Client;

use super::collector::{Collector, attributes};
use super::{ACQUIRE, assert_has, post, sent, serve, token_of};
use crate::support::cluster::RedisCluster;
use crate::support::eventually;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::sentinels::WatchedPair;

const COMMAND: &str = "EVALSHA acquire";
const REPLICAS: &str = "wait for the replicas";

/// The span of the request that was granted a lock, and so many spans below it with this name.
async fn granted(store: &str, name: &str, count: usize) -> (Span, Vec<Span>) {
    let collector = Collector::start().await;
    let serving = serve(&collector, &["--store", store]);
    eventually("the lock is granted", async || {
        (post(&serving, "/locks/a").await.status() == 201).then_some(())
    })
    .await;
    eventually("the spans have come", async || {
        let spans = collector.spans();
        let is_granted = |span: &&Span| {
            span.name == ACQUIRE && attributes(span)["http.response.status_code"] == "201"
        };
        let request = spans.iter().find(is_granted)?.clone();
        let is_below = |span: &Span| span.parent_span_id == request.span_id && span.name == name;
        let below: Vec<_> = spans.into_iter().filter(is_below).collect();
        (below.len() >= count).then_some((request, below))
    })
    .await
}

fn ports<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> BTreeSet<String> {
    let ports = servers.into_iter().map(|server| server.port().to_string());
    ports.collect()
}

/// The ports that commands were sent to.
fn asked(commands: &[Span]) -> BTreeSet<String> {
    let commands = commands.iter();
    commands
        .map(|command| attributes(command)["server.port"].clone())
        .collect()
}

#[tokio::test]
async fn an_operation_of_a_file_is_a_span() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("file:{}", directory.path().display());
    let (request, spans) = granted(&store, "store acquire", 1).await;
    assert_has(&spans[0], &[("leasehold.store", "file")]);
    assert!(spans[0].end_time_unix_nano <= request.end_time_unix_nano);
}

#[tokio::test]
async fn a_command_names_the_node_of_the_cluster() {
    let cluster = RedisCluster::start(3, RedisOptions::forgetful()).await;
    let (_, commands) = granted(&cluster.url(), COMMAND, 1).await;
    let asked = asked(&commands);
    assert!(asked.is_subset(&ports(&cluster.nodes)), "{asked:?}");
}

#[tokio::test]
async fn a_command_names_the_primary_that_the_sentinels_named() {
    let pair = WatchedPair::start(RedisOptions::forgetful()).await;
    let store = pair.sentinels.database(0).to_string();
    let (_, commands) = granted(&store, COMMAND, 1).await;
    assert_eq!(asked(&commands), ports([&pair.primary]));
}

#[tokio::test]
async fn each_node_of_a_quorum_has_a_span() {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(RedisServer::start(RedisOptions::forgetful()).await);
    }
    let urls = nodes
        .iter()
        .map(|node| format!("redis://{}", node.address()));
    let store = format!("quorum:{}", urls.collect::<Vec<_>>().join(","));
    let (_, commands) = granted(&store, COMMAND, 3).await;
    assert_eq!(asked(&commands), ports(&nodes));
}

#[tokio::test]
async fn the_wait_for_replicas_is_a_span_after_the_command() {
    let collector = Collector::start().await;
    let primary = RedisServer::start(RedisOptions::forgetful()).await;
    let mut replica = primary.replica(RedisOptions::forgetful()).await;
    let store = format!("redis://{}", primary.address());
    let serving = serve(
        &collector,
        &[
            "--store",
            &store,
            "--redis-wait-replicas",
            "1",
            "--redis-wait-timeout",
            "500ms",
            "--operation-timeout",
            "10s",
        ],
    );
    let granted = post(&serving, "/locks/a?ttl=60s").await;
    assert_eq!(granted.status(), 201);
    let request = collector.span(ACQUIRE).await;
    let command = collector.span(COMMAND).await;
    let wait = collector.span(REPLICAS).await;
    assert_eq!(wait.trace_id, request.trace_id);
    assert_eq!(wait.parent_span_id, request.span_id);
    assert_eq!(wait.kind(), SpanKind::Internal);
    assert!(wait.start_time_unix_nano >= command.end_time_unix_nano);
    assert!(wait.end_time_unix_nano <= request.end_time_unix_nano);
    assert_has(&wait, &[("leasehold.replicas.wanted", "1")]);
    assert_eq!(wait.status, None);

    // A renewal is not refused at once, so Redis waits for the replica as long as it may.
    replica.kill();
    let renewing = Client::new().put(format!("{}/locks/a", serving.url));
    let renewing = renewing.header("lock-token", token_of(&granted));
    assert_eq!(sent(renewing).await.status(), 503);
    let request = collector.span("PUT /locks/{name}").await;
    let waits = collector.spans_named(REPLICAS, 2).await;
    let of_renewal = |wait: &&Span| wait.parent_span_id == request.span_id;
    let wait = waits.iter().find(of_renewal).expect("the renewal waits");
    assert_has(wait, &[("error.type", "unreplicated")]);
    let status = wait.status.as_ref().map(|status| status.code());
    assert_eq!(status, Some(SpanStatus::Error));
    let took_ns = wait.end_time_unix_nano - wait.start_time_unix_nano;
    assert!(Duration::from_nanos(took_ns) >= Duration::from_millis(400));
}
