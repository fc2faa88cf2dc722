//! What happens first on a connection: whether it is encrypted over TCP, and over a Unix socket, whose first bytes cannot be
//! looked at without taking them.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use futures_util::future::FutureExt as _;
use hyper_util::server::graceful::Watcher;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

use super::connections::{HttpApp, Protocol};
use super::peer::Peer;
use super::preface;
use super::tls::{Tls, TlsMode};

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
                let begun = timeout_at(deadline, preface::is_handshake(&stream));
                let begun = match Box::pin(begun).await {
                    Ok(Ok(begun)) => begun,
                    Ok(Err(error)) => {
                        // Whoever connects can cause it.
                        tracing::debug!(peer = %peer.address(), %error, "a connection ended before it began");
                        return Ok(());
                    }
                    Err(_) => {
                        self.on_silence();
                        return Ok(());
                    }
                };
                if begun {
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
        match timeout_at(deadline, preface::read_beginning(&mut stream)).await {
            Ok(Ok(beginning)) => {
                self.serve_begun(stream, beginning, deadline, peer, app, watcher)
                    .await;
            }
            Ok(Err(error)) => {
                tracing::debug!(peer = %peer.address(), %error, "a connection sent no request");
            }
            Err(_) => self.on_silence(),
        }
        Ok(())
    }
}
