//! `TCP_USER_TIMEOUT`: how long a peer may leave sent data unacknowledged before the system closes the connection.
//! Nothing here knows who sets it, and why.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The user timeout of one connection.
///
/// Without limits it is the system's default, about a quarter of an hour: it takes that long to detect a peer that
/// vanished without closing the connection.
#[derive(Clone, Debug, Default)]
pub struct UserTimeout(Arc<Timeouts>);

#[derive(Debug, Default)]
struct Timeouts {
    /// All limits in force; an HTTP/2 connection may have several.
    all: Mutex<Vec<Duration>>,
    /// The shortest limit; 0 for none.
    shortest_ms: AtomicU32,
}

/// A limit that is in force until this is dropped.
#[derive(Debug)]
pub struct UserTimeoutGuard {
    limits: Arc<Timeouts>,
    limit: Duration,
}

impl UserTimeout {
    /// From the next write on, data that the peer does not acknowledge within `limit` ends the connection.
    #[must_use]
    pub fn limited_to(&self, limit: Duration) -> UserTimeoutGuard {
        self.0.change(|all| all.push(limit));
        UserTimeoutGuard {
            limits: Arc::clone(&self.0),
            limit,
        }
    }
}

impl Timeouts {
    fn change(&self, change: impl FnOnce(&mut Vec<Duration>)) {
        // Poisoning is harmless: a list of durations is valid after a panic.
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut all);
        let shortest = all.iter().min();
        let shortest_ms = shortest.map_or(0, |limit| {
            u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1)
        });
        self.shortest_ms.store(shortest_ms, Ordering::Relaxed);
    }
}

impl Drop for UserTimeoutGuard {
    fn drop(&mut self) {
        self.limits.change(|all| {
            if let Some(index) = all.iter().position(|limit| *limit == self.limit) {
                all.swap_remove(index);
            }
        });
    }
}

/// A TCP stream that applies the user timeout before it writes.
pub(super) struct UserTimeoutStream {
    stream: TcpStream,
    timeout: UserTimeout,
    applied_ms: u32,
}

impl UserTimeoutStream {
    pub(super) fn new(stream: TcpStream, timeout: UserTimeout) -> Self {
        Self {
            stream,
            timeout,
            applied_ms: 0,
        }
    }

    /// The stream to write to, after a change of the timeout is applied. Usually there is none, and this is one
    /// comparison.
    fn writer(&mut self) -> Pin<&mut TcpStream> {
        let wanted_ms = self.timeout.0.shortest_ms.load(Ordering::Relaxed);
        if wanted_ms != self.applied_ms {
            self.applied_ms = wanted_ms;
            if let Err(error) = apply(&self.stream, Duration::from_millis(wanted_ms.into())) {
                tracing::debug!(%error, "cannot set TCP_USER_TIMEOUT");
            }
        }
        Pin::new(&mut self.stream)
    }
}

/// Zero means the default of the system.
#[cfg(target_os = "linux")]
fn apply(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(limit))
}

/// Other systems have no such option: a vanished peer is detected by their default timeout.
#[cfg(not(target_os = "linux"))]
fn apply(_: &TcpStream, _: Duration) -> io::Result<()> {
    Ok(())
}

impl AsyncRead for UserTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for UserTimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
