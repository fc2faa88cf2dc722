//! `GET /events`, and `GET /locks/{name}` as a stream: lock events as they happen. Nothing here shows a token.

use std::slice;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method};
use axum::response::Response;
use futures_util::future::{self, Either, ready};
use futures_util::stream;
use futures_util::{Stream, StreamExt as _};
use serde_json::json;

use super::admission::Operation;
use super::app::App;
use super::auth::Principal;
use super::extract;
use super::locks::checked_prefix;
use super::problem::Problem;
use super::requester::Requester;
use super::sse::{self, Event, EventStreamBody};
use super::wire::{LockBody, LockEventBody};
use crate::domain::{LockName, Verb};
use crate::limits::Slot;
use crate::server::Peer;
use crate::service::{Scope, WatchEvent};

/// The fields of a request for events.
pub(super) const EVENTS_FIELDS: [&str; 1] = ["prefix"];
/// The header with which a client resumes a stream after an event.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// How often a comment is sent on an idle stream. Shorter than the idle timeouts of proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long the peer may leave sent data unacknowledged before its connection is closed.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// How many events are written at once if they come faster than they can be written one by one.
const WRITTEN_AT_ONCE: usize = 64;

/// `GET /events`
pub(super) async fn events(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let mut fields = extract::query_fields(request.uri())?;
    let prefix = fields.text("prefix")?.unwrap_or_default();
    fields.finish(&EVENTS_FIELDS)?;
    let prefix = checked_prefix(prefix)?;
    let is_head = request.method() == Method::HEAD;
    let after = last_event_id(request.headers());
    let requester = Requester::of(request);
    let shown = app.listed(&requester, &prefix)?;
    if is_head {
        return Ok(sse::head());
    }
    let slot = app.slot(Operation::Watch, &requester).await?;
    let events = app.service().watch(Scope::Prefix(prefix), after).await;
    let is_shown = move |event: &WatchEvent| match (event, &shown) {
        (WatchEvent::Event(event), Some(shown)) => shown.cover(&event.name),
        (WatchEvent::Event(_), None) | (WatchEvent::Reset, _) => true,
    };
    let events = events.filter(move |event| ready(is_shown(event)));
    Ok(response(events.map(encode), slot, &requester))
}

/// The state of one lock, followed by its events.
///
/// It subscribes before it reads the state, so that no event in between is missed. Such an event may be sent even
/// though the state already includes it.
pub(super) async fn of_lock(
    app: &App,
    name: LockName,
    request: Request,
) -> Result<Response, Problem> {
    let after = last_event_id(request.headers());
    let requester = Requester::of(request);
    app.permit(&requester, Verb::Read, slice::from_ref(&name))?;
    let scope = Scope::Lock(name.clone());
    let slot = app.slot(Operation::Watch, &requester).await?;
    let events = app.service().watch(scope, after).await;
    let service = app.admit(Operation::Inspect(&name), &requester).await?;
    let view = service.inspect(&name).await.map_err(Problem::of_read)?;
    let state = Event::new("state", &LockBody::new(&view));
    let events = stream::once(async { state }).chain(events.map(encode));
    Ok(response(events, slot, &requester))
}

fn response(
    events: impl Stream<Item = Event> + Send + 'static,
    slot: Slot,
    requester: &Requester,
) -> Response {
    let user_timeout = requester.peer.as_ref().map(Peer::user_timeout);
    let guard = user_timeout.map(|user_timeout| user_timeout.limited_to(USER_TIMEOUT));
    // The client connects again, and is then checked by the rules of now.
    let changed = requester.principal.as_ref().map(Principal::changed);
    let changed = changed.map_or_else(|| Either::Left(future::pending()), Either::Right);
    let events = events.take_until(Box::pin(changed));
    // A stream ends when the process stops. A client without an id yet cannot resume on another process, so it gets a
    // `reset` at the end.
    let events = events.chain(stream::once(async { encode(WatchEvent::Reset) }));
    let events = events.ready_chunks(WRITTEN_AT_ONCE).map(Event::joined);
    let events = events.inspect(move |_| {
        // Moved in here, so that they are held for as long as the stream lives.
        let _ = (&slot, &guard);
    });
    EventStreamBody::new(events, KEEP_ALIVE).response()
}

/// The id to resume after. Clients that have not received an id yet may send an empty one.
fn last_event_id(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(LAST_EVENT_ID)?.as_bytes();
    let id = String::from_utf8_lossy(value).into_owned();
    (!id.is_empty()).then_some(id)
}

fn encode(event: WatchEvent) -> Event {
    match event {
        WatchEvent::Event(event) => Event::shared(event.text(|event| {
            let data = LockEventBody::new(event);
            sse::text_with_id(&event.id, event.kind.label(), &data)
        })),
        // Without an id: a client that reconnects before the next event gets another `reset`, which is correct until it
        // has read the locks again.
        WatchEvent::Reset => Event::new("reset", &json!({})),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{EventKind, LockEvent, Owner, Timestamp};
    use crate::service::EncodedEvent;

    #[test]
    fn streams_share_the_bytes_of_an_event() {
        let happened = Arc::new(EncodedEvent::new(LockEvent {
            id: "1".to_owned(),
            kind: EventKind::Acquired,
            name: LockName::parse(b"a").expect("a name"),
            at: Timestamp::from_unix_ms(0),
            fence: None,
            expires_at: None,
            owner: Owner::default(),
        }));
        let [one, other] = [(); 2].map(|()| encode(WatchEvent::Event(Arc::clone(&happened))));
        let (one, other) = (one.into_bytes(), other.into_bytes());
        assert_eq!(one.as_ptr(), other.as_ptr());
        assert!(one.starts_with(b"id: 1\nevent: acquired\ndata: {"));
    }
}
