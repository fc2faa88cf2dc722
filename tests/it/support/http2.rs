//! An HTTP/2 client that does what no library would: it closes its windows, resets its requests, and answers PINGs
//! while it reads nothing else. It writes frames (RFC 9113) by hand, and of HPACK it has only plain literals.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// The largest frame that every server must accept.
pub(crate) const FRAME_BYTES_MAX: usize = 16 * 1024;

pub(crate) const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
const CANCEL: u32 = 8;

/// A frame that was received.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// One connection.
pub(crate) struct Http2 {
    stream: TcpStream,
    next: u32,
}

impl Http2 {
    /// Connects, with this window for each response.
    pub(crate) async fn open(address: SocketAddr, window: u32) -> io::Result<Self> {
        Self::over(TcpStream::connect(address).await?, window).await
    }

    /// Starts HTTP/2 on a connection.
    pub(crate) async fn over(mut stream: TcpStream, window: u32) -> io::Result<Self> {
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await?;
        let mut connection = Self { stream, next: 1 };
        let setting = [&INITIAL_WINDOW_SIZE[..], &window.to_be_bytes()].concat();
        connection.send(SETTINGS, 0, 0, &setting).await?;
        Ok(connection)
    }

    /// Sends a request without a body, and returns its stream id.
    pub(crate) async fn ask(&mut self, method: &str, path: &str) -> io::Result<u32> {
        self.ask_for("*/*", method, path, "").await
    }

    /// Sends a request with this `Accept` and a body of at most one frame, and returns its stream id.
    pub(crate) async fn ask_for(
        &mut self,
        accept: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<u32> {
        let id = self.next;
        self.next += 2;
        // In the static table, 1 is the name :authority, 19 the name accept.
        let mut head = beginning(method, path);
        head.extend(literal(1, "localhost"));
        head.extend(literal(19, accept));
        let end = if body.is_empty() { END_STREAM } else { 0 };
        self.send(HEADERS, end | END_HEADERS, id, &head).await?;
        if !body.is_empty() {
            self.send(DATA, END_STREAM, id, body.as_bytes()).await?;
        }
        Ok(id)
    }

    /// Sends a request with this many further headers of `value_bytes` each, and announces a body of one byte. Returns
    /// the stream id.
    pub(crate) async fn ask_with_headers(
        &mut self,
        method: &str,
        path: &str,
        headers: usize,
        value_bytes: usize,
    ) -> io::Result<u32> {
        let id = self.next;
        self.next += 2;
        let mut head = beginning(method, path);
        head.extend(literal(1, "localhost"));
        // In the static table, 28 is content-length.
        head.extend(literal(28, "1"));
        for number in 0..headers {
            head.push(0);
            head.extend(text(&format!("{number:x}")));
            head.extend(text(&"1".repeat(value_bytes)));
        }
        self.send_head(0, id, &head).await?;
        Ok(id)
    }

    /// Sends a head of about this many bytes and adds its host to the peer's HPACK table. h2 stores it as a slice of the
    /// head, so it keeps the whole head in memory.
    pub(crate) async fn ask_to_remember(&mut self, path: &str, bytes: usize) -> io::Result<u32> {
        // This bit adds a header to the dynamic table. In the static table, 1 is the name :authority.
        const INDEXED: u8 = 0x40;
        let id = self.next;
        self.next += 2;
        let query = "1".repeat(bytes - 512);
        let mut head = beginning("GET", &format!("{path}?{query}"));
        head.push(INDEXED | 1);
        head.extend(text(&format!("localhost:{id}")));
        self.send_head(END_STREAM, id, &head).await?;
        Ok(id)
    }

    /// Sends a head in as few frames as possible.
    async fn send_head(&mut self, flags: u8, id: u32, head: &[u8]) -> io::Result<()> {
        let frames = head.chunks(FRAME_BYTES_MAX).count();
        for (index, part) in head.chunks(FRAME_BYTES_MAX).enumerate() {
            let (kind, flags) = match index {
                0 => (HEADERS, flags),
                _ => (CONTINUATION, 0),
            };
            let end = if index + 1 == frames { END_HEADERS } else { 0 };
            self.send(kind, flags | end, id, part).await?;
        }
        Ok(())
    }

    /// Sends the announced body of one byte.
    pub(crate) async fn end(&mut self, id: u32) -> io::Result<()> {
        self.send(DATA, END_STREAM, id, b"&").await
    }

    pub(crate) async fn reset(&mut self, id: u32) -> io::Result<()> {
        self.send(RST_STREAM, 0, id, &CANCEL.to_be_bytes()).await
    }

    /// Increases the window of a stream, or with id 0 that of the connection.
    pub(crate) async fn widen(&mut self, id: u32, bytes: u32) -> io::Result<()> {
        self.send(WINDOW_UPDATE, 0, id, &bytes.to_be_bytes()).await
    }

    /// The next frame. Answers PING and SETTINGS, and skips WINDOW_UPDATE.
    pub(crate) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            let frame = self.read().await?;
            match frame.kind {
                PING if frame.flags & ACK == 0 => {
                    self.send(PING, ACK, 0, &frame.payload).await?;
                }
                SETTINGS if frame.flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]).await?,
                PING | SETTINGS | WINDOW_UPDATE => {}
                _ => return Ok(frame),
            }
        }
    }

    async fn read(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await?;
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = head;
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await?;
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        Ok(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// Sends this many requests, and resets each one before the server can have handled it.
    pub(crate) async fn ask_and_reset(&mut self, requests: usize) -> io::Result<()> {
        let mut frames = Vec::new();
        let head = beginning("GET", "/livez");
        for _ in 0..requests {
            let id = self.next;
            self.next += 2;
            frames.extend(frame(HEADERS, END_STREAM | END_HEADERS, id, &head));
            frames.extend(frame(RST_STREAM, 0, id, &CANCEL.to_be_bytes()));
        }
        self.stream.write_all(&frames).await
    }

    /// Sends one frame so many times.
    pub(crate) async fn repeat(&mut self, frame: &[u8], times: usize) -> io::Result<()> {
        self.stream.write_all(&frame.repeat(times)).await
    }

    /// Sends one frame again and again, so many bytes in all, and reads meanwhile what comes. Fails when the connection ends.
    pub(crate) async fn flood(&mut self, frame: &[u8], bytes: usize) -> io::Result<()> {
        let many = frame.repeat(FRAME_BYTES_MAX / frame.len());
        let (mut incoming, mut outgoing) = self.stream.split();
        let send = async {
            for _ in 0..bytes / many.len() {
                outgoing.write_all(&many).await?;
            }
            Ok(())
        };
        let receive = async {
            let mut received = vec![0; FRAME_BYTES_MAX];
            while incoming.read(&mut received).await? > 0 {}
            Err(io::ErrorKind::UnexpectedEof.into())
        };
        tokio::select! {
            sent = send => sent,
            ended = receive => ended,
        }
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let frame = frame(kind, flags, stream, payload);
        self.stream.write_all(&frame).await
    }
}

/// A frame as it is sent.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The start of every head. In the static table, 2 is the name :method, 6 is ":scheme: http", 4 the name :path.
fn beginning(method: &str, path: &str) -> Vec<u8> {
    [literal(2, method), vec![0x80 | 6], literal(4, path)].concat()
}

/// A header with a name of the static table and a literal value, which is not added to the dynamic table.
fn literal(name: u8, value: &str) -> Vec<u8> {
    // A number that does not fit into four bits continues in the next byte.
    let mut field = match name {
        0..15 => vec![name],
        _ => vec![15, name - 15],
    };
    field.extend(text(value));
    field
}

fn text(text: &str) -> Vec<u8> {
    let mut encoded = Vec::new();
    match text.len() {
        length @ 0..127 => encoded.push(length as u8),
        mut rest => {
            encoded.push(127);
            rest -= 127;
            while rest >= 128 {
                encoded.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            encoded.push(rest as u8);
        }
    }
    encoded.extend(text.as_bytes());
    encoded
}
