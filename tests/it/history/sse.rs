//! Server-sent events over HTTP/1.1, read directly from the socket for exact arrival times.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::waiters::http1::{Answer, Connection};

/// The response to a request for a stream.
pub(super) enum Opened {
    Stream(Stream),
    /// A refusal.
    Answer(Answer),
}

/// An open stream.
pub(super) struct Stream {
    connection: Connection,
    /// Decoded chunks that are not a whole event yet.
    text: Vec<u8>,
}

/// One event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) id: Option<String>,
    pub(super) kind: String,
    pub(super) data: Value,
    pub(super) at: Instant,
}

/// Sends a request for a stream and waits for the head of the response.
pub(super) async fn open(
    mut connection: Connection,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<Opened> {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    connection.stream.write_all(text.as_bytes()).await?;
    // The response of a stream has no Content-Length, so this reads only its head.
    let answer = connection.answer().await?;
    Ok(match answer.status {
        200 => Opened::Stream(Stream {
            connection,
            text: Vec::new(),
        }),
        _ => Opened::Answer(answer),
    })
}

impl Stream {
    /// The next event; `None` at the end of the stream.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when this is dropped: received bytes are kept.
    pub(super) async fn next(&mut self) -> io::Result<Option<Event>> {
        loop {
            while let Some(block) = take_through(&mut self.text, b"\n\n") {
                if let Some(event) = event(&block) {
                    return Ok(Some(event));
                }
            }
            match take_chunk(&mut self.connection.received)? {
                Some(chunk) if chunk.is_empty() => return Ok(None),
                Some(chunk) => self.text.extend(chunk),
                None => {
                    let Connection {
                        stream, received, ..
                    } = &mut self.connection;
                    if stream.read_buf(received).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    }
}

/// Takes everything up to the end of the pattern.
fn take_through(text: &mut Vec<u8>, pattern: &[u8]) -> Option<Vec<u8>> {
    let windows = text.windows(pattern.len());
    let at = windows.into_iter().position(|window| window == pattern)?;
    Some(text.drain(..at + pattern.len()).collect())
}

/// Takes one whole chunk of a body; the last one is empty.
fn take_chunk(received: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let Some(line) = received.windows(2).position(|two| two == b"\r\n") else {
        return Ok(None);
    };
    let size = std::str::from_utf8(&received[..line]).map_err(io::Error::other)?;
    let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
    let end = line + 2 + size + 2;
    if received.len() < end {
        return Ok(None);
    }
    let chunk = received.drain(..end).skip(line + 2).take(size).collect();
    Ok(Some(chunk))
}

/// The event in a block of lines; `None` for a comment.
fn event(block: &[u8]) -> Option<Event> {
    let event = crate::api::support::Event::read(&String::from_utf8_lossy(block))?;
    Some(Event {
        id: event.id,
        kind: event.kind,
        data: event.data,
        at: Instant::now(),
    })
}
