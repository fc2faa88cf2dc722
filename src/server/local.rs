//! Connections that are not encrypted, from the socket that was accepted: over TCP, and over a Unix socket, whose first bytes
//! cannot be looked at without taking them.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;

use hyper_util::server::graceful::Watcher;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout_at;

use super::connections::{HttpApp, Protocol};
use super::peer::Peer;
use super::preface;
use super::tls::Tls;

impl Protocol {
    /// Serves one connection over TCP to its end, with TLS if there is a certificate.
    ///
    /// # Errors
    /// The runtime cannot wait for the socket.
    pub(super) async fn serve_tcp(
        &self,
        tls: Option<Tls>,
        stream: std::net::TcpStream,
        peer: Peer,
        app: impl HttpApp,
        watcher: Watcher,
    ) -> io::Result<()> {
        let stream = TcpStream::from_std(stream)?;
        match tls {
            None => self.serve(stream, peer, app, watcher).await,
            // On the heap, so that connections without TLS need no space for it.
            Some(tls) => {
                Box::pin(self.serve_encrypted(&tls, stream, peer, app, watcher)).await;
            }
        }
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
