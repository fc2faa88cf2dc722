//! One connection: how it is spoken to, and when it has been quiet for too long. What is served is not known here.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tower::Service;

use super::patience::{Patience, PatientStream};
use crate::config::ServerConfig;

/// As much as a body has by default. `DELETE` takes up to 64 names in its query string, and they have 48 KiB when every
/// byte of them is percent-encoded. It bounds what a connection may fill; a buffer grows only with what arrives.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const STREAMS_MAX: u32 = 100;
/// What a client of HTTP/2 begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How soon a preface that came in pieces is looked at again.
const PIECES_PAUSE: Duration = Duration::from_millis(5);
/// A dead HTTP/2 peer is noticed within twice this time.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How many connections are open, for whoever reports it.
#[derive(Debug, Clone, Default)]
pub struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    /// The number of connections open now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one connection for as long as the guard lives, however its task ends.
    pub(super) fn enter(&self) -> OpenConnection {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }
}

/// One counted connection.
pub(super) struct OpenConnection(OpenConnections);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What can be served: it answers every request, and is always ready for the next one.
pub trait App:
    Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S> App for S where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// The protocol settings that all connections share.
pub(super) struct Protocol {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    first_request_timeout: Duration,
}

impl Protocol {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let mut http1 = http1::Builder::new();
        // hyper runs this timer from one answer to the next request's head, idleness included. With the time that a
        // head may take it would close every kept connection under its proxy, hence the longer one. The number of
        // headers stays at hyper's 100: any other number costs an allocation for each request.
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(config.idle_timeout)
            .keep_alive(true)
            .max_buf_size(HEAD_BYTES_MAX);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_INTERVAL)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("64 KiB fit"));
        Self {
            http1,
            http2,
            first_request_timeout: config.header_read_timeout,
        }
    }

    /// Serves one connection to its end, in the protocol that its first bytes speak.
    ///
    /// hyper puts no time limit on the first bytes, so a connection that has not produced its first request in time is
    /// dropped here, whichever protocol it was going to speak.
    pub(super) async fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        app: impl App,
        watcher: Watcher,
    ) {
        let deadline = Instant::now() + self.first_request_timeout;
        let has_asked = Arc::new(AtomicBool::new(false));
        let patience = Patience::default();
        let service = service_fn({
            let (has_asked, patience) = (Arc::clone(&has_asked), patience.clone());
            move |request: Request<Incoming>| {
                has_asked.store(true, Ordering::Relaxed);
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(patience.clone());
                request.extensions_mut().insert(ConnectInfo(peer));
                app.clone().call(request)
            }
        });
        let is_http2 = match timeout_at(deadline, begins_with_preface(&stream)).await {
            Ok(Ok(is_http2)) => is_http2,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "a connection said nothing"),
            Err(_) => {
                return tracing::debug!(%peer, "closed a connection that said nothing in time");
            }
        };
        let stream = TokioIo::new(PatientStream::new(stream, patience));
        let served = if is_http2 {
            let connection = self.http2.serve_connection(stream, service);
            // On the heap, because most connections are not of this kind and need not have room for one.
            let mut connection = Box::pin(watcher.watch(connection));
            in_time(connection.as_mut(), deadline, &has_asked).await
        } else {
            let connection = self.http1.serve_connection(stream, service);
            let connection = std::pin::pin!(watcher.watch(connection));
            in_time(connection, deadline, &has_asked).await
        };
        if let Err(error) = served {
            // Peers that vanish and peers that speak nonsense are everyday life on an open port.
            tracing::debug!(%peer, %error, "a connection ended with an error");
        }
    }
}

/// Whether the first bytes are those of HTTP/2 without encryption (RFC 9113, 3.4). They are only looked at: hyper finds
/// them where they were, and reads a request in one piece, into one buffer of 8 KiB rather than one of 16.
///
/// # Cancel safety
///
/// Nothing is lost.
async fn begins_with_preface(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    loop {
        let length = stream.peek(&mut first).await?;
        if length == 0 || !PREFACE.starts_with(&first[..length]) {
            return Ok(false);
        }
        if length == PREFACE.len() {
            return Ok(true);
        }
        // What was looked at stays ready to be read, so there is nothing to wait on. Hardly ever does a preface come in
        // pieces.
        tokio::time::sleep(PIECES_PAUSE).await;
    }
}

/// Serves to the end, if the first request comes in time. The connection is pinned by the caller, because a future that is
/// moved into another takes its room twice.
async fn in_time(
    mut connection: Pin<&mut impl Future<Output = hyper::Result<()>>>,
    deadline: Instant,
    has_asked: &AtomicBool,
) -> hyper::Result<()> {
    match timeout_at(deadline, connection.as_mut()).await {
        Ok(served) => served,
        Err(_) if has_asked.load(Ordering::Relaxed) => connection.await,
        Err(_) => {
            tracing::debug!("closed a connection that sent no request in time");
            Ok(())
        }
    }
}
