//! One connection: its protocol, its limits, and its timeouts. What is served is not known here.

use std::convert::Infallible;
use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::{Either, FutureExt as _, TryFutureExt as _, ready};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::activity::{Activity, RequestBody};
use super::delivery;
use super::delivery::{AnswerBody, RequestInProgress, StreamExecutor};
use super::peer::Peer;
use super::preface::{Beginning, beginning};
use super::socket::{Socket, SocketDeadlines};
use super::tls::{Encrypted, Tls};
use super::user_timeout::UserTimeoutStream;
use crate::config::ServerConfig;
use crate::limits::{Budget, Limit, Refusals};

/// The same as the default limit of a body: `DELETE` takes up to 64 names in its query string, which are 48 KiB if every
/// byte is percent-encoded. This is a maximum; a buffer grows only with the data that arrives.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The number of headers that hyper accepts over HTTP/1. Over HTTP/2 only their bytes are limited, and the shortest
/// headers take five times the memory that they count for.
const HEADERS_MAX: usize = 100;
/// How many streams the peer may reset before they are processed, or cause us to reset by its errors, before the
/// connection is closed (CVE-2023-44487, CVE-2025-8671).
const RESET_STREAMS_MAX: usize = 50;
/// How many bytes of the bodies of one connection may arrive before they are read: by default the size of the largest
/// body.
const RECEIVE_WINDOW: u32 = 64 * 1024;
/// How many bytes of one answer h2 may buffer. It gets only a few pieces at a time.
const SEND_BUFFER: usize = 64 * 1024;
/// A dead HTTP/2 peer is noticed within twice this time.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How long a connection that was closed for a flood still counts as an HTTP/2 connection. Each can cause about 10 ms of
/// work before it is closed, and its peer could open another one at once.
const FLOOD_PAUSE: Duration = Duration::from_secs(10);

/// How many connections are open, for metrics.
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
pub trait HttpApp:
    Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S> HttpApp for S where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// What all connections share: the settings of the protocols, and the limits.
pub(super) struct Protocol {
    http1: http1::Builder,
    http2: http2::Builder<StreamExecutor>,
    first_request_timeout: Duration,
    idle_timeout: Duration,
    deadlines: SocketDeadlines,
    http2_connections: Budget,
    pub(super) requests: Budget,
    refusals: Refusals,
    /// Cancelled when the server stops. Connections without a first byte are then waited for no longer.
    pub(super) stopping: CancellationToken,
}

impl Protocol {
    pub(super) fn new(config: &ServerConfig, refusals: Refusals) -> Self {
        let mut http1 = http1::Builder::new();
        // hyper runs this timer from an answer to the end of the next head, including idle time. With the timeout of a head
        // it would close every idle connection of a proxy, so it has the idle timeout, and the socket has that of a head.
        // The number of headers stays at hyper's 100: any other number costs an allocation for each request.
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(config.idle_timeout)
            .keep_alive(true)
            .max_buf_size(HEAD_BYTES_MAX)
            // A read into a nearly full buffer may complete a head of twice this size.
            .max_header_size(HEAD_BYTES_MAX);
        let mut http2 = http2::Builder::new(StreamExecutor {
            write_timeout: config.write_timeout,
            answer_timeout: config.answer_timeout,
            refusals: refusals.clone(),
        });
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_INTERVAL)
            .max_concurrent_streams(config.http2_streams_max)
            .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
            .max_local_error_reset_streams(RESET_STREAMS_MAX)
            .initial_stream_window_size(RECEIVE_WINDOW)
            .initial_connection_window_size(4 * RECEIVE_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("64 KiB fit"));
        Self {
            http1,
            http2,
            first_request_timeout: config.header_read_timeout,
            idle_timeout: config.idle_timeout,
            deadlines: SocketDeadlines {
                head: Some(config.header_read_timeout),
                write: config.write_timeout,
                answer: Some(config.answer_timeout),
            },
            http2_connections: Budget::new(config.http2_connections_max),
            requests: Budget::new(config.requests_max),
            refusals,
            stopping: CancellationToken::new(),
        }
    }

    /// Serves one connection to its end, in the protocol of its first bytes.
    ///
    /// hyper has no timeout for the first bytes, so a connection without a first request in time is dropped here, whatever
    /// its protocol.
    pub(super) async fn serve(
        &self,
        mut stream: TcpStream,
        deadline: Instant,
        peer: Peer,
        app: impl HttpApp,
        watcher: Watcher,
    ) {
        let beginning = beginning(&mut stream);
        let Some(beginning) = self.begun(beginning, deadline, &peer).await else {
            return;
        };
        let stream = UserTimeoutStream::new(stream, peer.user_timeout().clone());
        self.serve_begun(stream, beginning, deadline, peer, app, watcher)
            .await;
    }

    /// The same with TLS. The handshake counts from the opening of the connection, as the first head does.
    pub(super) async fn serve_encrypted(
        &self,
        tls: &Tls,
        stream: TcpStream,
        deadline: Instant,
        peer: Peer,
        app: impl HttpApp,
        watcher: Watcher,
    ) {
        let handshake = match peer.begin_handshake(&tls.handshakes) {
            Ok(taken) => taken,
            Err(limit) => return self.refusals.count(limit),
        };
        let user_timeout = peer.user_timeout().clone();
        let accepted = tls.accept(stream, user_timeout);
        let accepted = self.begun(accepted, deadline, &peer).await;
        drop(handshake);
        let Some(Encrypted {
            stream,
            is_http2,
            names,
        }) = accepted
        else {
            return;
        };
        let peer = peer.after_handshake(names);
        let read = Vec::new();
        let beginning = Beginning { is_http2, read };
        self.serve_begun(stream, beginning, deadline, peer, app, watcher)
            .await;
    }

    /// Serves a connection whose protocol is known.
    pub(super) async fn serve_begun<S>(
        &self,
        stream: S,
        Beginning { is_http2, read }: Beginning,
        deadline: Instant,
        peer: Peer,
        app: impl HttpApp,
        watcher: Watcher,
    ) where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let address = peer.address();
        // Held until the connection ends, or longer after a flood. Dropping the last reference to a peer resets its share.
        let http2 = match is_http2.then(|| peer.begin_http2(&self.http2_connections)) {
            Some(Err(limit)) => return self.refusals.count(limit),
            Some(Ok(taken)) => Some((taken, peer.clone())),
            None => None,
        };
        let activity = Arc::<Activity>::default();
        let deadlines = match is_http2 {
            false => self.deadlines,
            // Over HTTP/2, requests and answers are concurrent, so each stream has its own deadlines.
            true => SocketDeadlines {
                head: None,
                answer: None,
                ..self.deadlines
            },
        };
        let refusals = self.refusals.clone();
        let mut socket = Socket::new(stream, read, deadlines, Arc::clone(&activity), refusals);
        if is_http2 {
            socket = socket.with_flood_limit();
        }
        let socket = TokioIo::new(socket);
        let service = service_fn({
            let activity = Arc::clone(&activity);
            move |request| self.answer(request, is_http2, &activity, &peer, app.clone())
        });
        let served = if is_http2 {
            let connection = self.http2.serve_connection(socket, service);
            // On the heap, because few connections are HTTP/2, and the others should not reserve space for it.
            let mut connection = Box::pin(watcher.watch(connection));
            match self.in_time(connection.as_mut(), deadline, &activity).await {
                Some(served) => served,
                None => self.until_idle(connection.as_mut(), &activity).await,
            }
        } else {
            let connection = self.http1.serve_connection(socket, service);
            let mut connection = std::pin::pin!(watcher.watch(connection));
            match self.in_time(connection.as_mut(), deadline, &activity).await {
                Some(served) => served,
                None => connection.await,
            }
        };
        if served.as_ref().is_err_and(hyper::Error::is_parse_too_large) {
            self.refusals.count(Limit::HeadSize);
        }
        let is_misused = is_http2 && served.as_ref().is_err_and(is_misuse);
        if is_misused {
            self.refusals.count(Limit::Http2Flood);
        }
        if is_misused || activity.is_flooded() {
            keep_after_flood(http2);
        }
        if let Err(error) = served {
            // Peers that vanish or send invalid data are normal on an open port.
            tracing::debug!(peer = %address, %error, "a connection ended with an error");
        }
    }

    /// Answers one request, once it is its turn. It counts until its answer is complete.
    fn answer<A: HttpApp>(
        &self,
        request: Request<Incoming>,
        is_http2: bool,
        activity: &Arc<Activity>,
        peer: &Peer,
        mut app: A,
    ) -> impl Future<Output = Result<axum::http::Response<AnswerBody>, Infallible>> + Send + use<A>
    {
        let (answer, permit) = if request.headers().len() > HEADERS_MAX {
            self.refusals.count(Limit::HeadSize);
            let mut refused = Response::new(Body::empty());
            *refused.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            (Either::Left(ready(Ok(refused))), None)
        } else {
            let path_and_query = request.uri().path_and_query();
            activity.receive(path_and_query.map_or(0, |path| path.as_str().len()));
            let mut request =
                request.map(|body| Body::new(RequestBody::new(body, Arc::clone(activity))));
            let peer = peer.of_request(request.headers());
            let permit = peer.begin_request(&self.requests);
            let permit = permit.inspect_err(|limit| self.refusals.count(*limit));
            let peer = peer.in_request(permit.clone());
            request.extensions_mut().insert(peer);
            (Either::Right(app.call(request)), permit.ok())
        };
        let in_progress = RequestInProgress::new(activity, permit);
        // Not an async block: a future that is moved into one and awaited there is stored twice.
        let answer = answer.map_ok(move |response: Response| {
            response.map(|body| AnswerBody::new(body, in_progress, delivery::of_this_stream()))
        });
        // Streams of HTTP/2 have tasks of their own, which take turns.
        match is_http2 || !activity.is_pipelined() {
            true => Either::Left(answer),
            false => Either::Right(peer.turn().then(|()| answer)),
        }
    }

    /// By when a connection that opens now must have sent its first request.
    pub(super) fn first_request_ends(&self) -> Instant {
        Instant::now() + self.first_request_timeout
    }

    /// A connection is closed because no request has arrived in time.
    pub(super) fn on_silence(&self) {
        self.refusals.count(Limit::HeadTimeout);
        tracing::debug!("closed a connection that sent no request in time");
    }

    /// Serves until the first request must have arrived. `None` if it has, and the connection goes on. The caller pins the
    /// connection, because a future that is moved into another one is stored twice.
    async fn in_time(
        &self,
        connection: Pin<&mut impl Future<Output = hyper::Result<()>>>,
        deadline: Instant,
        activity: &Activity,
    ) -> Option<hyper::Result<()>> {
        match timeout_at(deadline, connection).await {
            Ok(served) => Some(served),
            Err(_) if activity.begun() > 0 => None,
            Err(_) => {
                self.on_silence();
                Some(Ok(()))
            }
        }
    }

    /// Serves until there was no request for the idle timeout. Answered PINGs do not count as use.
    async fn until_idle(
        &self,
        mut connection: Pin<&mut impl Future<Output = hyper::Result<()>>>,
        activity: &Activity,
    ) -> hyper::Result<()> {
        let mut begun = activity.begun();
        loop {
            if let Ok(served) = timeout(self.idle_timeout, connection.as_mut()).await {
                return served;
            }
            if !activity.is_answering() && activity.begun() == begun {
                tracing::debug!("closed a connection of HTTP/2 that was idle");
                return Ok(());
            }
            begun = activity.begun();
        }
    }
}

/// Whether hyper has ended a connection of HTTP/2 because of what the peer sent, such as more streams that it resets than
/// [`RESET_STREAMS_MAX`].
fn is_misuse(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    cause.is_some_and(|cause: &h2::Error| cause.is_go_away() && cause.is_library())
}

/// Keeps the permits of a connection for a while, in a task that a shutdown does not wait for.
fn keep_after_flood(taken: impl Send + 'static) {
    tokio::spawn(async move {
        sleep(FLOOD_PAUSE).await;
        drop(taken);
    });
}
