//! Server-sent events: how they are written, and the body of an answer that goes on until its stream ends or its client
//! leaves. What is told is decided elsewhere.

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
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::locks::EVENT_STREAM;
use crate::server::user_timeout::UserTimeoutGuard;

/// Tells proxies such as nginx to pass on what comes as it comes.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// What ends a line of an event stream.
const LINE_BREAKS: [char; 2] = ['\n', '\r'];
/// A comment, which clients skip.
const COMMENT: &[u8] = b":\n\n";

/// One event as it is written.
pub(super) struct Event(Bytes);

impl Event {
    /// An event with data of JSON in one line.
    pub(super) fn new(event: &str, data: &impl Serialize) -> Self {
        Self(text(event, data).into())
    }

    /// One whose text other streams share.
    pub(super) fn shared(text: Arc<[u8]>) -> Self {
        Self(Bytes::from_owner(text))
    }

    #[cfg(test)]
    pub(super) fn into_bytes(self) -> Bytes {
        self.0
    }
}

/// The text of an event, with data of JSON in one line.
fn text(event: &str, data: &impl Serialize) -> String {
    let mut data =
        serde_json::to_string(data).expect("events have string keys and no failing serializer");
    // Metadata is passed on as a client wrote it, line breaks between its members included, and each of them would end
    // the line. Within a string JSON has none, so that a space instead changes nothing.
    if data.contains(LINE_BREAKS) {
        data = data.replace(LINE_BREAKS, " ");
    }
    format!("event: {event}\ndata: {data}\n\n")
}

/// The same with the id from which a client may go on later.
pub(super) fn text_with_id(id: &str, event: &str, data: &impl Serialize) -> String {
    format!("id: {id}\n{}", text(event, data))
}

/// The body of an answer: events as they come, and comments while none comes.
///
/// The comments keep proxies from taking the stream for dead, and they are how a client is noticed that is gone without
/// having closed its connection: what cannot be delivered ends the connection, and with it this body.
pub(super) struct EventStreamBody<S> {
    events: Pin<Box<S>>,
    comments: Interval,
    _impatience: Option<UserTimeoutGuard>,
}

impl<S: Stream<Item = Event> + Send + 'static> EventStreamBody<S> {
    /// A body that is silent for at most `quiet`.
    pub(super) fn new(events: S, quiet: Duration) -> Self {
        let mut comments = tokio::time::interval_at(Instant::now() + quiet, quiet);
        comments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            events: Box::pin(events),
            comments,
            _impatience: None,
        }
    }

    /// Keeps the connection impatient for as long as the stream goes on.
    pub(super) fn keeping(mut self, impatience: Option<UserTimeoutGuard>) -> Self {
        self._impatience = impatience;
        self
    }

    pub(super) fn response(self) -> Response {
        headed(Body::new(self))
    }
}

/// What a request for the headers alone gets.
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
