//! Streams of server-sent events, as the document has them.

use serde_json::json;
use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::{ContentBuilder, ObjectBuilder, Type};

use super::locks::of_locks;
use super::responses::{OF_EVERY_LOCK_ROUTE, OF_THE_SERVICE, bare, refusals};
use super::{Described, fields};
use crate::http::events::EVENTS_FIELDS;
use crate::http::locks::EVENT_STREAM;
use crate::http::route::Route;

/// What a stream looks like that holds a lock.
pub(super) const HOLDING: &str = "event: queued\ndata: {\"position\":1,\"queue_length\":1}\n\n\
    event: acquired\ndata: {\"name\":\"orders/42\",\"fencing_token\":1767225600000000,…}\n\n";
/// What a stream looks like that watches a lock.
pub(super) const WATCHING: &str = "event: state\ndata: {\"name\":\"orders/42\",\"state\":\"held\",…}\n\n\
    id: 1767225630000000-7\nevent: released\ndata: {\"name\":\"orders/42\",\"fencing_token\":1767225600000000,\
    \"owner\":\"pod-1\",\"at\":\"2026-01-01T00:00:30.000Z\",\"expires_at\":null}\n\n";

pub(super) fn operations() -> Vec<Described> {
    vec![
        (Route::Events, HttpMethod::Get, events().build()),
        (Route::Events, HttpMethod::Head, events_head().build()),
    ]
}

/// The same as a stream, for clients that would rather have one.
pub(super) fn or_a_stream(response: ResponseBuilder, example: &str) -> ResponseBuilder {
    let schema = ObjectBuilder::new().schema_type(Type::String);
    let stream = ContentBuilder::new()
        .schema(Some(schema))
        .example(Some(json!(example)));
    response.content(EVENT_STREAM, stream.build())
}

fn events() -> OperationBuilder {
    let stream = or_a_stream(
        bare(
            "Events with ids: `acquired`, `renewed`, `released`, `expired`, `evicted` and `queued`, each with a \
             LockEvent as its data; and `reset` where some may be missing, after which a client looks at the locks \
             anew.",
        ),
        WATCHING,
    );
    watching(of_locks("watch", "Watch what happens to locks"), stream)
        .description(Some(
            "Goes on for as long as the connection lives. A client that was away for a moment sends the id of the last \
             event that it has seen.",
        ))
        .parameter(fields::last_event_id())
}

fn events_head() -> OperationBuilder {
    let operation = of_locks("watch_head", "Watch locks, headers only");
    watching(operation, bare("As for GET, without the stream."))
}

fn watching(operation: OperationBuilder, stream: ResponseBuilder) -> OperationBuilder {
    let codes = OF_EVERY_LOCK_ROUTE.into_iter().chain(OF_THE_SERVICE);
    operation
        .parameters(Some(fields::query(&EVENTS_FIELDS)))
        .responses(refusals(
            ResponsesBuilder::new().response("200", stream),
            codes,
        ))
}
