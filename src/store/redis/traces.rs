//! The span of a command, by the semantic conventions of OpenTelemetry for Redis. It never has an argument of the command,
//! among which are the hashes of tokens.

use tokio::time::Instant;

use super::failure::Failure;
use super::node::Node;
use super::scripts::ScriptRequest;
use crate::telemetry::traces::{self, SpanKind};

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
