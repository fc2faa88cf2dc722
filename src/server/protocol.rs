//! Which protocol a connection speaks, found in its first bytes.

use std::io;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// What a client of HTTP/2 begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection begins with.
#[derive(Debug)]
pub(super) struct Beginning {
    /// Whether it is the preface of HTTP/2 without encryption (RFC 9113, 3.4).
    pub(super) is_http2: bool,
    /// What was taken off the socket to find that out, and has to be read again.
    pub(super) read: Vec<u8>,
}

/// Waits until the first bytes decide.
///
/// Nearly always the first packet does. It is only looked at: hyper finds it where it was, and reads a request in one
/// piece, into one buffer of 8 KiB rather than one of 16. What came of a preface in pieces is taken off the socket, because
/// bytes that stay there keep it ready to be read, and there would be nothing to wait on.
///
/// # Cancel safety
///
/// Dropped, it may have taken bytes off the socket, which is of no use any more.
pub(super) async fn beginning(stream: &mut TcpStream) -> io::Result<Beginning> {
    let mut first = [0; PREFACE.len()];
    let length = stream.peek(&mut first).await?;
    if length == 0 || length == PREFACE.len() || !PREFACE.starts_with(&first[..length]) {
        let is_http2 = first == *PREFACE;
        let read = Vec::new();
        return Ok(Beginning { is_http2, read });
    }
    let mut read = Vec::with_capacity(PREFACE.len());
    while read.len() < PREFACE.len() && PREFACE.starts_with(&read) {
        let missing = PREFACE.len() - read.len();
        if (&mut *stream)
            .take(missing as u64)
            .read_buf(&mut read)
            .await?
            == 0
        {
            break;
        }
    }
    let is_http2 = read == PREFACE;
    Ok(Beginning { is_http2, read })
}
