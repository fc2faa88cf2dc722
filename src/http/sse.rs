//! Server-sent events: their encoding, and a response body that lasts until its stream ends or its client disconnects.
//! Which events are sent is decided elsewhere.
//!
//! `axum::response::sse` encodes an event once for each stream and cannot send a text that streams share, which is why
//! it is not used here.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderName;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use futures_util::Stream;
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Interval, MissedTickBehavior};

use super::locks::EVENT_STREAM;

/// Turns off response buffering in proxies such as nginx.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// The characters that end a line of an event stream.
const LINE_BREAKS: [char; 2] = ['\n', '\r'];
/// A comment, which clients ignore.
const COMMENT: &[u8] = b":\n\n";

/// Encoded events, as a rule one.
pub(super) struct Event(Bytes);

impl Event {
    /// An event with JSON data on one line.
    pub(super) fn new(event: &str, data: &impl Serialize) -> Self {
        Self(text(event, data).into())
    }

    /// An event whose text is shared with other streams.
    pub(super) fn shared(text: Arc<[u8]>) -> Self {
        Self(Bytes::from_owner(text))
    }

    /// Several events to be written together. One alone keeps the text that it shares.
    pub(super) fn joined(mut events: Vec<Self>) -> Self {
        match events.len() {
            1 => events.remove(0),
            _ => {
                let texts: Vec<&[u8]> = events.iter().map(|event| &event.0[..]).collect();
                Self(texts.concat().into())
            }
        }
    }

    #[cfg(test)]
    pub(super) fn into_bytes(self) -> Bytes {
        self.0
    }
}

/// The text of an event, with JSON data on one line.
fn text(event: &str, data: &impl Serialize) -> String {
    let mut data =
        serde_json::to_string(data).expect("events have string keys and no failing serializer");
    // Metadata is kept byte for byte and may have line breaks between its members, each of which would end the line.
    // JSON strings contain no raw line breaks, so replacing them by spaces changes nothing.
    if data.contains(LINE_BREAKS) {
        data = data.replace(LINE_BREAKS, " ");
    }
    format!("event: {event}\ndata: {data}\n\n")
}

/// The same, with the id from which a client can resume later.
pub(super) fn text_with_id(id: &str, event: &str, data: &impl Serialize) -> String {
    format!("id: {id}\n{}", text(event, data))
}

/// A response body of events, with comments as keep-alive while there are none.
///
/// The comments keep proxies from closing the stream as idle. They also detect clients that vanished without closing
/// their connection: data that cannot be delivered ends the connection, and with it this body.
pub(super) struct EventStreamBody<S> {
    events: Pin<Box<S>>,
    comments: Interval,
}

impl<S: Stream<Item = Event> + Send + 'static> EventStreamBody<S> {
    /// A body that sends a comment after `keep_alive` without an event, and at once if it has none to begin with: so the
    /// client learns that it is connected, and proxies pass the head on.
    pub(super) fn new(events: S, keep_alive: Duration) -> Self {
        let mut comments = tokio::time::interval(keep_alive);
        comments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            events: Box::pin(events),
            comments,
        }
    }

    pub(super) fn response(self) -> Response {
        headed(Body::new(self))
    }
}

/// The response to a HEAD request.
pub(super) fn head() -> Response {
    headed(Body::empty())
}

fn headed(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

impl<S: Stream<Item = Event> + Send + 'static> http_body::Body for EventStreamBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.events.as_mut().poll_next(context) {
            Poll::Ready(Some(Event(text))) => {
                self.comments.reset();
                Poll::Ready(Some(Ok(Frame::data(text))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                ready!(self.comments.poll_tick(context));
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))))
            }
        }
    }
}
