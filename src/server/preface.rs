//! The first bytes of a connection, which decide its protocol.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The type of the record with which a TLS client begins (RFC 8446, 5.1). No request begins with this byte.
const HANDSHAKE: u8 = 22;

/// The first bytes of a connection.
#[derive(Debug)]
pub(super) struct Beginning {
    /// Whether they are the preface of HTTP/2 without encryption (RFC 9113, 3.4).
    pub(super) is_http2: bool,
    /// The bytes that were read from the socket to decide, and have to be parsed again.
    pub(super) read: Vec<u8>,
}

/// Waits for the first byte, which says whether the client begins with a TLS handshake. It stays in the socket.
///
/// # Cancel safety
///
/// Nothing is lost.
pub(super) async fn is_handshake(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 1 && first == [HANDSHAKE])
}

/// Waits until the first bytes decide the protocol.
///
/// The first packet nearly always does. It is only peeked at, so hyper reads it from the socket in one piece, into a
/// buffer of 8 KiB instead of 16. A preface that arrives in pieces is read from the socket, because bytes left there would
/// keep it readable, and there would be no event to wait for.
///
/// # Cancel safety
///
/// If dropped, it may have read bytes from the socket; the connection must then be closed.
pub(super) async fn beginning(stream: &mut TcpStream) -> io::Result<Beginning> {
    let mut first = [0; PREFACE.len()];
    let length = stream.peek(&mut first).await?;
    if length == 0 || length == PREFACE.len() || !PREFACE.starts_with(&first[..length]) {
        let is_http2 = first == *PREFACE;
        let read = Vec::new();
        return Ok(Beginning { is_http2, read });
    }
    read_beginning(stream).await
}

/// The same for a socket whose first bytes cannot be peeked at.
///
/// # Cancel safety
///
/// If dropped, it may have read bytes from the socket; the connection must then be closed.
pub(super) async fn read_beginning(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Beginning> {
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
