//! A minimal HTTP/1.1 client: thousands of them fit into one process, each records exactly when its response arrived,
//! and dropping one closes its connection at once. The benchmark of hand-overs uses it too.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// The size of a read; nearly every response is smaller.
const READ_BYTES: usize = 2048;

/// A connection that carries one request at a time.
pub(crate) struct Connection {
    /// The socket, for tests that write more than a request or read more than a response.
    pub(crate) stream: TcpStream,
    /// The API key that each request has.
    pub(crate) key: Option<String>,
    /// Received bytes that were not consumed yet.
    pub(crate) received: Vec<u8>,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// `POST`, `PUT`, …
    pub(crate) method: &'a str,
    /// With the query string, if there is one.
    pub(crate) path: &'a str,
    /// The `Lock-Token`.
    pub(crate) token: Option<&'a str>,
    /// A form, or JSON in braces.
    pub(crate) body: &'a str,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: u16,
    /// The body.
    pub(crate) body: Vec<u8>,
    /// When the last byte arrived.
    pub(crate) at: Instant,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            key: None,
            received: Vec::new(),
        })
    }

    /// Sends a request and waits for the response.
    pub(crate) async fn ask(&mut self, request: Request<'_>) -> io::Result<Answer> {
        self.send(request).await?;
        self.answer().await
    }

    /// Sends a request.
    pub(crate) async fn send(&mut self, request: Request<'_>) -> io::Result<()> {
        let Request { method, path, .. } = request;
        let token = request
            .token
            .map_or_else(String::new, |token| format!("Lock-Token: {token}\r\n"));
        let key = self.key.as_ref();
        let key = key.map_or_else(String::new, |key| {
            format!("Authorization: Bearer {key}\r\n")
        });
        let kind = match request.body.as_bytes().first() {
            Some(b'{') => "application/json",
            Some(_) | None => "application/x-www-form-urlencoded",
        };
        let (length, body) = (request.body.len(), request.body);
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{token}{key}Content-Type: {kind}\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(text.as_bytes()).await
    }

    /// Waits for the response to the last request.
    pub(crate) async fn answer(&mut self) -> io::Result<Answer> {
        let (status, body_starts, ends) = loop {
            if let Some(head) = head(&self.received)? {
                break head;
            }
            self.read().await?;
        };
        while self.received.len() < ends {
            self.read().await?;
        }
        let at = Instant::now();
        let mut body: Vec<_> = self.received.drain(..ends).collect();
        body.drain(..body_starts);
        Ok(Answer { status, body, at })
    }

    async fn read(&mut self) -> io::Result<()> {
        self.received.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl Answer {
    /// The body, which is JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Whether it grants the lock.
    pub(crate) fn grants(&self) -> bool {
        matches!(self.status, 200 | 201)
    }
}

/// The status, the start and the end of the body, once the whole head has arrived.
fn head(received: &[u8]) -> io::Result<Option<(u16, usize, usize)>> {
    let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&received[..end]).map_err(io::Error::other)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.get(9..12)?.parse().ok());
    let status = status.ok_or(io::ErrorKind::InvalidData)?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, length)| length.trim().parse::<usize>().ok());
    Ok(Some((status, end + 4, end + 4 + length.unwrap_or(0))))
}
