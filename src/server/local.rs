//! What happens first on a connection: the wait for its first bytes; whether it is encrypted over TCP, and over a Unix
//! socket, whose first bytes cannot be looked at without taking them.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use hyper_util::server::graceful::Watcher;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};

use super::connections::{HttpApp, Protocol};
use super::peer::Peer;
use super::preface;
use super::tls::{Tls, TlsMode};

/// How long the first bytes of a connection may still be on their way when the server stops: less than
/// [`CLOSES_WITHIN`](super::CLOSES_WITHIN).
const ON_THEIR_WAY_MAX: Duration = Duration::from_millis(20);

impl Protocol {
    /// Serves one connection over TCP to its end.
    ///
    /// # Errors
    /// The runtime cannot wait for the socket.
    pub(super) async fn serve_tcp(
        self: &Arc<Self>,
        tls: TlsMode,
        stream: std::net::TcpStream,
        peer: Peer,
        app: impl HttpApp,
        watcher: Watcher,
    ) -> io::Result<()> {
        let stream = TcpStream::from_std(stream)?;
        let deadline = self.first_request_ends();
        match tls {
            TlsMode::Never => self.serve(stream, deadline, peer, app, watcher).await,
            // On the heap, so that connections without TLS need no space for it.
            TlsMode::Always(tls) => {
                Box::pin(self.serve_encrypted(&tls, stream, deadline, peer, app, watcher)).await;
            }
            TlsMode::IfBegun(tls, workers) => {
                let first_byte = preface::is_handshake(&stream);
                let Some(is_handshake) = Box::pin(self.begun(first_byte, deadline, &peer)).await
                else {
                    return Ok(());
                };
                if is_handshake {
                    let (protocol, stream) = (Arc::clone(self), stream.into_std()?);
                    let served =
                        protocol.serve_on_worker(tls, stream, deadline, peer, app, watcher);
                    return workers.run(served.boxed()).await;
                }
                self.serve(stream, deadline, peer, app, watcher).await;
            }
        }
        Ok(())
    }

    /// Serves an encrypted connection to its end, on another thread than that which has accepted it.
    async fn serve_on_worker(
        self: Arc<Self>,
        tls: Tls,
        stream: std::net::TcpStream,
        deadline: Instant,
        peer: Peer,
        app: impl HttpApp,
        watcher: Watcher,
    ) -> io::Result<()> {
        let stream = TcpStream::from_std(stream)?;
        self.serve_encrypted(&tls, stream, deadline, peer, app, watcher)
            .await;
        Ok(())
    }

    /// Serves one connection over a Unix socket to its end.
    ///
    /// # Errors
    /// The runtime cannot wait for the socket.
    pub(super) async fn serve_local(
        &self,
        stream: StdUnixStream,
        peer: Peer,
        app: impl HttpApp,
        watcher: Watcher,
    ) -> io::Result<()> {
        let mut stream = UnixStream::from_std(stream)?;
        let deadline = self.first_request_ends();
        let beginning = preface::read_beginning(&mut stream);
        if let Some(beginning) = self.begun(beginning, deadline, &peer).await {
            self.serve_begun(stream, beginning, deadline, peer, app, watcher)
                .await;
        }
        Ok(())
    }

    /// What `bytes` says, which waits for the first bytes of a connection. `None` if they do not come in time, or the server
    /// stops before.
    pub(super) async fn begun<T>(
        &self,
        bytes: impl Future<Output = io::Result<T>>,
        deadline: Instant,
        peer: &Peer,
    ) -> Option<T> {
        let stopped = async {
            self.stopping.cancelled().await;
            sleep(ON_THEIR_WAY_MAX).await;
        };
        tokio::select! {
            begun = timeout_at(deadline, bytes) => match begun {
                Ok(Ok(begun)) => return Some(begun),
                // Whoever connects can cause it.
                Ok(Err(error)) => {
                    tracing::debug!(peer = %peer.address(), %error, "a connection ended before it began");
                }
                Err(_) => self.on_silence(),
            },
            () = stopped => {}
        }
        None
    }
}
