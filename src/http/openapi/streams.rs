//! Streams of server-sent events, as the document has them.

use utoipa::ToSchema;
use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::{Content, ContentBuilder, OneOfBuilder, Ref, RefOr, Schema};

use super::locks::of_locks;
use super::responses::{OF_EVERY_LOCK_ROUTE, OF_THE_SERVICE, bare, refusals};
use super::{Described, fields};
use crate::http::events::EVENTS_FIELDS;
use crate::http::locks::EVENT_STREAM;
use crate::http::problem::ProblemBody;
use crate::http::route::Route;
use crate::http::wire::{GrantView, LockBody, LockEventBody, PositionView};

/// How a stream is written, to be read with the schema of its data.
const WRITTEN: &str =
    "\n\n```text\nid: 1767225630000000\nevent: released\ndata: {\"name\":\"orders/42\",…}\n\n```";

pub(super) fn operations() -> Vec<Described> {
    vec![
        (Route::Events, HttpMethod::Get, events().build()),
        (Route::Events, HttpMethod::Head, events_head().build()),
    ]
}

/// The same as a stream that holds a lock, for clients that would rather have one.
pub(super) fn or_holding(response: ResponseBuilder) -> ResponseBuilder {
    let data = OneOfBuilder::new()
        .item(Ref::from_schema_name(PositionView::name()))
        .item(Ref::from_schema_name(GrantView::name()))
        .item(Ref::from_schema_name(ProblemBody::name()))
        .description(Some("The data of each event."));
    response.content(EVENT_STREAM, content(data))
}

/// The same as a stream that watches a lock, for clients that would rather have one.
pub(super) fn or_watching(response: ResponseBuilder) -> ResponseBuilder {
    let data = OneOfBuilder::new()
        .item(Ref::from_schema_name(LockBody::name()))
        .item(Ref::from_schema_name(LockEventBody::name()))
        .description(Some("The data of each event."));
    response.content(EVENT_STREAM, content(data))
}

/// OpenAPI 3.1 has no words for streams. The schema of their data is what generators and readers can use.
fn content(data: impl Into<RefOr<Schema>>) -> Content {
    ContentBuilder::new().schema(Some(data)).build()
}

fn events() -> OperationBuilder {
    let description = format!(
        "Events with ids: `acquired`, `renewed`, `released`, `expired`, `evicted` and `queued`; and `reset`, with \
         empty data, where some may be missing, after which a client looks at the locks anew.{WRITTEN}"
    );
    let data = Ref::from_schema_name(LockEventBody::name());
    let stream = bare(&description).content(EVENT_STREAM, content(data));
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
