//! The span of a command, by the semantic conventions of OpenTelemetry for Redis. It never has an argument of the command,
//! among which are the hashes of tokens. And the span of the wait for replicas, which is no command of one request.

use tokio::time::Instant;

use super::failure::Failure;
use super::node::Node;
use super::scripts::ScriptRequest;
use crate::store::StoreError;
use crate::telemetry::traces::{self, SpanKind};

/// Records a wait for so many replicas that began at this time, within the span of the request.
pub(super) fn trace_replicas(replicas: u64, began: Instant, confirmed: &Result<(), StoreError>) {
    let Some(scope) = traces::current() else {
        return;
    };
    scope.record(SpanKind::Internal, began, |span| {
        span.name("wait for the replicas");
        let replicas = i64::try_from(replicas).unwrap_or(i64::MAX);
        span.number("leasehold.replicas.wanted", replicas);
        if let Err(error) = confirmed {
            span.text("error.type", error.fault().label());
            span.fail();
        }
    });
}

impl Node {
    /// Records one try of a script that began at this time, within the span of the request.
    pub(super) fn trace(&self, request: ScriptRequest, began: Instant, failure: Option<&Failure>) {
        let Some(scope) = traces::current() else {
            return;
        };
        scope.record(SpanKind::Client, began, |span| {
            span.name(format!("EVALSHA {}", request.name()));
            span.text("db.system.name", "redis");
            span.text("db.operation.name", "EVALSHA");
            span.text("db.stored_procedure.name", request.name());
            if let Some((host, port)) = self.pool.connector().known_endpoint() {
                span.text("server.address", host);
                span.number("server.port", port);
            }
            if let Some(failure) = failure {
                span.text("error.type", failure.fault.label());
                span.fail();
            }
        });
    }
}
