//! Streams of server-sent events, as described in the document.

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
use crate::http::routes::Route;
use crate::http::wire::{GrantView, LockBody, LockEventBody, PositionView};

/// An example of the stream format; the schema describes only the data.
const WRITTEN: &str =
    "\n\n```text\nid: 1767225630000000\nevent: released\ndata: {\"name\":\"orders/42\",…}\n\n```";

pub(super) fn operations() -> Vec<Described> {
    vec![
        (Route::Events, HttpMethod::Get, events().build()),
        (Route::Events, HttpMethod::Head, events_head().build()),
    ]
}

/// Adds the stream that holds a lock, as an alternative response.
pub(super) fn or_holding(response: ResponseBuilder) -> ResponseBuilder {
    let data = OneOfBuilder::new()
        .item(Ref::from_schema_name(PositionView::name()))
        .item(Ref::from_schema_name(GrantView::name()))
        .item(Ref::from_schema_name(ProblemBody::name()))
        .description(Some("The data of each event."));
    response.content(EVENT_STREAM, content(data))
}

/// Adds the stream that watches a lock, as an alternative response.
pub(super) fn or_watching(response: ResponseBuilder) -> ResponseBuilder {
    let data = OneOfBuilder::new()
        .item(Ref::from_schema_name(LockBody::name()))
        .item(Ref::from_schema_name(LockEventBody::name()))
        .description(Some("The data of each event."));
    response.content(EVENT_STREAM, content(data))
}

/// OpenAPI 3.1 cannot describe streams, so this is the schema of their data, which generators and readers can use.
fn content(data: impl Into<RefOr<Schema>>) -> Content {
    ContentBuilder::new().schema(Some(data)).build()
}

fn events() -> OperationBuilder {
    let description = format!(
        "Events with ids: `acquired`, `renewed`, `released`, `expired`, `evicted` and `queued`; and `reset`, with \
         empty data, where events may be missing: the client should then read the state of the locks again.{WRITTEN}"
    );
    let data = Ref::from_schema_name(LockEventBody::name());
    let stream = bare(&description).content(EVENT_STREAM, content(data));
    watching(of_locks("watch", "Watch lock events"), stream)
        .description(Some(
            "Lasts as long as the connection lives. A client that reconnects sends the id of the last event that it \
             received.",
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
