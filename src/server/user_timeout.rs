//! How long a peer may leave unacknowledged what is sent to it, where that matters: after that time the system gives the
//! connection up. Who is impatient, and why, is not known here.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The patience with the peer of one connection.
///
/// Without limits it is the system's, which is a quarter of an hour: so long does a peer that vanished without closing
/// the connection seem to be there.
#[derive(Clone, Debug, Default)]
pub struct UserTimeout(Arc<Timeouts>);

#[derive(Debug, Default)]
struct Timeouts {
    /// One for each that is in force; a connection of HTTP/2 may have several.
    all: Mutex<Vec<Duration>>,
    /// The shortest of them; 0 for none.
    shortest_ms: AtomicU32,
}

/// A limit that is in force for as long as this lives.
#[derive(Debug)]
pub struct UserTimeoutGuard {
    limits: Arc<Timeouts>,
    limit: Duration,
}

impl UserTimeout {
    /// From the next write on, what the peer does not acknowledge within `limit` ends the connection.
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
        // A list of durations is whole whoever panicked.
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

/// A connection that tells the system how patient to be, before it writes.
pub(super) struct UserTimeoutStream {
    stream: TcpStream,
    patience: UserTimeout,
    told_ms: u32,
}

impl UserTimeoutStream {
    pub(super) fn new(stream: TcpStream, patience: UserTimeout) -> Self {
        Self {
            stream,
            patience,
            told_ms: 0,
        }
    }

    /// The stream to write to. Nearly always nothing has changed, and then this is one comparison.
    fn writer(&mut self) -> Pin<&mut TcpStream> {
        let wanted_ms = self.patience.0.shortest_ms.load(Ordering::Relaxed);
        if wanted_ms != self.told_ms {
            self.told_ms = wanted_ms;
            if let Err(error) = tell(&self.stream, Duration::from_millis(wanted_ms.into())) {
                tracing::debug!(%error, "the system could not be told how patient to be");
            }
        }
        Pin::new(&mut self.stream)
    }
}

/// Zero means as patient as the system is by itself.
#[cfg(target_os = "linux")]
fn tell(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(limit))
}

/// Elsewhere there is no such option: a peer that vanished is noticed as late as the system notices it.
#[cfg(not(target_os = "linux"))]
fn tell(_: &TcpStream, _: Duration) -> io::Result<()> {
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
