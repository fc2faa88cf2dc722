//! One connection: how it is spoken to, and when it has been quiet for too long. What is served is not known here.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::net::TcpStream;
use tower::Service;

use super::patience::{Patience, PatientStream};
use crate::config::ServerConfig;

/// More than any client of ours sends; a request line with the longest lock name takes less than a tenth of it.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const STREAMS_MAX: u32 = 100;
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
#[derive(Clone)]
pub(super) struct Protocol {
    builder: auto::Builder<TokioExecutor>,
    first_request_timeout: Duration,
}

impl Protocol {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // hyper runs this timer from one answer to the next request's head, idleness included. With the time that a
        // head may take it would close every kept connection under its proxy, hence the longer one. The number of
        // headers stays at hyper's 100: any other number costs an allocation for each request.
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(config.idle_timeout)
            .keep_alive(true)
            .max_buf_size(HEAD_BYTES_MAX);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_INTERVAL)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("16 KiB fit"));
        Self {
            builder,
            first_request_timeout: config.header_read_timeout,
        }
    }

    /// Serves one connection to its end.
    ///
    /// hyper-util puts no time limit on the bytes that tell HTTP/1.1 from HTTP/2, so a connection that has not
    /// produced its first request in time is dropped here, whichever protocol it was going to speak.
    pub(super) async fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        app: impl App,
        watcher: Watcher,
    ) {
        let has_asked = Arc::new(AtomicBool::new(false));
        let patience = Patience::default();
        let stream = PatientStream::new(stream, patience.clone());
        let service = hyper::service::service_fn({
            let has_asked = Arc::clone(&has_asked);
            move |request: Request<Incoming>| {
                has_asked.store(true, Ordering::Relaxed);
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(patience.clone());
                app.clone().call(request)
            }
        });
        let connection = self
            .builder
            .serve_connection(TokioIo::new(stream), service)
            .into_owned();
        let mut connection = std::pin::pin!(watcher.watch(connection));
        let result =
            match tokio::time::timeout(self.first_request_timeout, connection.as_mut()).await {
                Ok(result) => result,
                Err(_) if has_asked.load(Ordering::Relaxed) => connection.await,
                Err(_) => {
                    tracing::debug!(%peer, "closed a connection that sent no request in time");
                    return;
                }
            };
        if let Err(error) = result {
            // Peers that vanish and peers that speak nonsense are everyday life on an open port.
            tracing::debug!(%peer, %error, "a connection ended with an error");
        }
    }
}
