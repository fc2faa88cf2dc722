//! A stream of server-sent events from the service.

use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::time::timeout;

use super::connection::{ANSWER_BYTES_MAX, HttpConnection};
use super::{Call, Client, NoAnswer, ServiceAnswer};

/// How long the service may be silent: it sends a comment every ten seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The media type of a stream.
const EVENT_STREAM: &str = "text/event-stream";

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamedEvent {
    /// What happened, such as `acquired`.
    pub kind: String,
    /// What to continue after, if the event has an id.
    pub id: Option<String>,
    /// The JSON document.
    pub data: String,
}

/// An open stream. Dropping it closes its connection.
pub struct EventStream {
    url: String,
    body: Incoming,
    /// What arrived of lines that are not complete.
    unread: Vec<u8>,
    event: StreamedEvent,
    _connection: HttpConnection,
}

/// How the service answered the request for a stream.
pub enum StreamAnswer {
    /// With a stream.
    Open(EventStream),
    /// With anything else.
    Refused(ServiceAnswer),
}

impl Client {
    /// Opens the stream of a path, on a connection of its own; after the event with this id, if there is one.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn open_stream(
        &self,
        path: &str,
        after: Option<&str>,
    ) -> Result<StreamAnswer, NoAnswer> {
        let mut request = self.request(&Call::get(path.to_owned()));
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        if let Some(Ok(after)) = after.map(HeaderValue::from_str) {
            headers.insert("last-event-id", after);
        }
        let mut connection = self.connect().await?;
        let opening = timeout(SILENCE_MAX, connection.begin(request)).await;
        let answer = opening
            .map_err(|_| self.timed_out())?
            .map_err(|error| self.broken(error))?;
        let (head, body) = answer.into_parts();
        if head.status == StatusCode::OK && is_stream(&head.headers) {
            return Ok(StreamAnswer::Open(EventStream {
                url: self.url().to_string(),
                body,
                unread: Vec::new(),
                event: StreamedEvent::default(),
                _connection: connection,
            }));
        }
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect();
        let body = timeout(SILENCE_MAX, body)
            .await
            .map_err(|_| self.timed_out())?;
        let body = body.map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
        let answer = ServiceAnswer::new(head.status, &head.headers, body);
        Ok(StreamAnswer::Refused(answer))
    }
}

impl EventStream {
    /// The next event; none at the end of the stream.
    ///
    /// # Errors
    /// The connection broke, or the service is silent.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<StreamedEvent>, NoAnswer> {
        loop {
            while let Some(line) = self.next_line() {
                if let Some(event) = self.event.complete_with(&line) {
                    return Ok(Some(event));
                }
            }
            let url = || self.url.clone();
            if self.unread.len() + self.event.data.len() > ANSWER_BYTES_MAX {
                return Err(NoAnswer::TimedOut { url: url() });
            }
            match timeout(SILENCE_MAX, self.body.frame()).await {
                Err(_) => return Err(NoAnswer::TimedOut { url: url() }),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(NoAnswer::Broken { url: url(), error }),
                Ok(Some(Ok(frame))) => {
                    self.unread
                        .extend_from_slice(frame.data_ref().map_or(&[], Bytes::as_ref));
                }
            }
        }
    }

    fn next_line(&mut self) -> Option<String> {
        let end = self.unread.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.unread.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line);
        Some(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl StreamedEvent {
    /// Adds a line to the event, and takes the event if that was its end.
    fn complete_with(&mut self, line: &str) -> Option<Self> {
        if line.is_empty() {
            let event = std::mem::take(self);
            return (!event.data.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "id" => self.id = Some(value.to_owned()),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // A comment, or a field of a later version.
            _ => {}
        }
        None
    }
}

/// Whether the body is a stream of events. The answer of another server, such as a page, would end at once, again and again.
fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE);
    let text = content_type.and_then(|value| value.to_str().ok());
    let media_type = text.and_then(|text| text.split(';').next());
    media_type.is_some_and(|name| name.trim().eq_ignore_ascii_case(EVENT_STREAM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_ends_with_an_empty_line_and_comments_are_none() {
        let mut event = StreamedEvent::default();
        let lines = [":", "", "id: 7", "event: acquired", "data: {", "data:}", ""];
        let events: Vec<_> = lines
            .iter()
            .filter_map(|line| event.complete_with(line))
            .collect();
        let expected = StreamedEvent {
            kind: "acquired".to_owned(),
            id: Some("7".to_owned()),
            data: "{\n}".to_owned(),
        };
        assert_eq!(events, [expected]);
        assert_eq!(event, StreamedEvent::default());
    }
}
