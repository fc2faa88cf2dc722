//! A stream of server-sent events, as a client reads it.

use std::collections::VecDeque;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use http_body_util::BodyExt;
use serde_json::Value;

/// The event stream of a response. Dropping it disconnects the client.
pub(crate) struct EventStream {
    pub(crate) headers: HeaderMap,
    /// The number of comments, which are mostly keep-alives.
    pub(crate) comments: usize,
    body: Body,
    text: String,
    events: VecDeque<Event>,
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

impl EventStream {
    #[track_caller]
    pub(crate) fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        assert_eq!(parts.status, 200);
        assert_eq!(parts.headers["content-type"], "text/event-stream");
        assert_eq!(parts.headers["cache-control"], "no-store");
        assert_eq!(parts.headers["x-accel-buffering"], "no");
        Self {
            headers: parts.headers,
            comments: 0,
            body,
            text: String::new(),
            events: VecDeque::new(),
        }
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        while self.events.is_empty() {
            let frame = self.body.frame().await?.expect("the stream never fails");
            let bytes = frame.into_data().expect("nothing but data");
            self.text += std::str::from_utf8(&bytes).expect("events are UTF-8");
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let event = Event::read(block);
                self.text = rest.to_owned();
                match event {
                    Some(event) => self.events.push_back(event),
                    None => self.comments += 1,
                }
            }
        }
        self.events.pop_front()
    }

    /// The data of the next event, which must be of this kind.
    pub(crate) async fn expect(&mut self, kind: &str) -> Value {
        let event = self.next().await;
        let event = event.unwrap_or_else(|| panic!("the stream ended before {kind:?}"));
        assert_eq!(event.kind, kind, "{}", event.data);
        event.data
    }
}

impl Event {
    /// Parses the lines up to an empty one; `None` for a comment.
    pub(crate) fn read(block: &str) -> Option<Self> {
        let field = |name: &str| {
            // Either character ends a line, as in a browser.
            let lines = block.split(['\n', '\r']);
            let lines = lines.filter_map(|line| line.split_once(": "));
            let mut values = lines.filter(|(field, _)| *field == name);
            values.next().map(|(_, value)| value.to_owned())
        };
        Some(Self {
            kind: field("event")?,
            id: field("id"),
            data: serde_json::from_str(&field("data")?).expect("data is JSON"),
        })
    }
}
