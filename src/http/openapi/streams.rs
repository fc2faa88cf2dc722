//! Streams of server-sent events, as described in the document.

use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::{Content, ContentBuilder, ObjectBuilder, Type};

use super::locks::of_locks;
use super::responses::{OF_EVERY_LOCK_ROUTE, OF_THE_SERVICE, bare, refusals};
use super::{Described, fields};
use crate::http::events::EVENTS_FIELDS;
use crate::http::locks::EVENT_STREAM;
use crate::http::routes::Route;

/// An example of the stream format; the schema describes only the data.
const WRITTEN: &str =
    "\n\n```text\nid: 1767225630000000\nevent: released\ndata: {\"name\":\"orders/42\",…}\n\n```";

pub(super) fn operations() -> Vec<Described> {
    vec![
        (Route::Events, HttpMethod::Get, events().build()),
        (Route::Events, HttpMethod::Head, events_head().build()),
    ]
}

/// OpenAPI 3.1 cannot describe streams. Generated clients get the text, and the description says what is in it.
fn content() -> Content {
    let text = ObjectBuilder::new().schema_type(Type::String);
    ContentBuilder::new().schema(Some(text)).build()
}

fn events() -> OperationBuilder {
    let description = format!(
        "Events with ids: `acquired`, `renewed`, `released`, `expired`, `evicted` and `queued`; and `reset`, with \
         empty data, where events may be missing: the client should then read the state of the locks again. The data is a \
         `LockEvent`.{WRITTEN}"
    );
    let stream = bare(&description).content(EVENT_STREAM, content());
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
