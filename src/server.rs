//! Sockets: the accept loop with the limits and timers that `axum::serve` does not have, and its orderly end.
//! Serves any [`HttpApp`]; nothing here knows what the paths mean.

mod activity;
mod client_certificate;
mod connections;
mod delivery;
pub mod descriptors;
mod forwarded;
mod frames;
mod listener;
mod local;
mod peer;
mod peer_address;
mod peer_table;
mod preface;
pub mod shutdown;
mod socket;
mod tls;
pub mod user_timeout;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use connections::Protocol;
pub use connections::{HttpApp, OpenConnections};
use listener::{AcceptedStream, BoundListener};
pub use peer::Peer;
use peer::Peers;
pub use peer_address::PeerAddress;
pub use tls::ServerTls;
use tls::{Tls, TlsMode};
pub use workers::Workers;

use crate::config::{ListenAddress, ServerConfig};
use crate::limits::{Budget, BudgetPermit, Refusals};

/// The pause after connections could not be accepted: long enough for others to close, too short for an outage.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long connections without a request have to close when the server stops.
const CLOSES_WITHIN: Duration = Duration::from_millis(100);

/// A bound listener.
pub struct Server {
    listener: BoundListener,
    address: ListenAddress,
    protocol: Arc<Protocol>,
    tls: TlsMode,
    permits: Arc<Semaphore>,
    /// How many permits are reserved for peers with few connections.
    kept: usize,
    peers: Arc<Peers>,
    refusals: Refusals,
    open: OpenConnections,
    drain_timeout: Duration,
}

/// An accepted connection.
struct Accepted {
    stream: AcceptedStream,
    peer: Peer,
    counted: (OwnedSemaphorePermit, BudgetPermit),
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every request under way was answered.
    Finished,
    /// The time for it ran out, and this many connections were cut.
    Cut {
        /// The number of connections.
        connections: usize,
    },
}

impl Drained {
    /// How two servers ended.
    fn and(self, other: Self) -> Self {
        match self.cut() + other.cut() {
            0 => Self::Finished,
            connections => Self::Cut { connections },
        }
    }

    fn cut(self) -> usize {
        match self {
            Self::Finished => 0,
            Self::Cut { connections } => connections,
        }
    }
}

impl Server {
    /// Binds the address; connections queue up in the system until [`run`](Self::run). What limits refuse is not counted.
    ///
    /// # Errors
    ///
    /// When the address is not ours, is taken, or needs a privilege.
    ///
    /// # Panics
    ///
    /// Outside of a runtime that does input and output.
    pub fn bind(config: &ServerConfig, address: impl Into<ListenAddress>) -> io::Result<Self> {
        Self::bind_counted(config, address, Refusals::uncounted())
    }

    /// As [`bind`](Self::bind), with a count of what limits refuse.
    ///
    /// # Errors
    ///
    /// When the address is not ours, is taken, or needs a privilege.
    ///
    /// # Panics
    ///
    /// Outside of a runtime that does input and output.
    pub fn bind_counted(
        config: &ServerConfig,
        address: impl Into<ListenAddress>,
        refusals: Refusals,
    ) -> io::Result<Self> {
        let listener = BoundListener::bind(&address.into(), config.socket_mode)?;
        Ok(Self {
            address: listener.address()?,
            listener,
            protocol: Arc::new(Protocol::new(config, refusals.clone())),
            tls: TlsMode::Never,
            permits: Arc::new(Semaphore::new(config.connections_max)),
            kept: config.connections_kept(),
            peers: Arc::new(Peers::new(config)),
            refusals,
            open: OpenConnections::default(),
            drain_timeout: config.drain_timeout,
        })
    }

    /// Serves with TLS, and not without it.
    #[must_use]
    pub fn with_tls(self, certificate: ServerTls, handshakes_max: usize) -> Self {
        let handshakes = Budget::new(handshakes_max);
        Self {
            tls: TlsMode::Always(Tls {
                certificate,
                has_http2: true,
                handshakes,
            }),
            ..self
        }
    }

    /// Binds another address of the same process, with connections, handshakes and requests of its own, as `config` limits them. All other
    /// limits of a peer are those of this server, whichever address it comes to. If this server has TLS, the other one has
    /// it too, for clients that begin with a handshake, which are served by these workers.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub fn bind_another(
        &self,
        config: &ServerConfig,
        address: impl Into<ListenAddress>,
        workers: &Workers,
    ) -> io::Result<Self> {
        let bound = Self::bind_counted(config, address, self.refusals.clone())?;
        Ok(Self {
            peers: Arc::new(self.peers.of_another_address(config)),
            tls: match &self.tls {
                TlsMode::Never => TlsMode::Never,
                TlsMode::Always(tls) | TlsMode::IfBegun(tls, _) => {
                    let handshakes = Budget::new(config.tls_handshakes_max);
                    let tls = Tls {
                        handshakes,
                        has_http2: config.http2_connections_max > 0,
                        ..tls.clone()
                    };
                    TlsMode::IfBegun(tls, workers.clone())
                }
            },
            ..bound
        })
    }

    /// The requests without a complete answer, for work of another address that is to count among them.
    pub fn requests(&self) -> Budget {
        self.protocol.requests.clone()
    }

    /// The address that was bound, with the port that the system chose for port 0.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// The same, of a server that listens on a port.
    ///
    /// # Panics
    ///
    /// It listens on a Unix socket.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.address {
            ListenAddress::Tcp(address) => *address,
            ListenAddress::Unix(_) => panic!("a Unix socket has no port"),
        }
    }

    /// The number of open connections, readable while the server runs.
    pub fn open_connections(&self) -> OpenConnections {
        self.open.clone()
    }

    /// Serves on the threads of `workers` until `shutdown` completes, then closes the listener and lets requests under way
    /// finish.
    ///
    /// # Cancel safety
    ///
    /// Dropping this cuts all connections at once: their tasks are owned here.
    pub async fn run(
        self,
        app: impl HttpApp,
        workers: Workers,
        shutdown: impl Future<Output = ()>,
    ) -> Drained {
        let shutdown = async {
            shutdown.await;
            None
        };
        self.run_until(app, workers, shutdown).await.0
    }

    /// Serves as [`run`](Self::run), and beside it on another address, on this thread. That one ends after this one, so that
    /// probes are answered as long as possible, and its requests have no more time to finish than those of this one.
    ///
    /// # Cancel safety
    ///
    /// Dropping this cuts all connections at once: their tasks are owned here.
    pub async fn run_with(
        self,
        app: impl HttpApp,
        workers: Workers,
        (another, app_there): (Self, impl HttpApp),
        shutdown: impl Future<Output = ()>,
    ) -> Drained {
        let (ended, is_over) = oneshot::channel();
        let shutdown = async {
            shutdown.await;
            None
        };
        let here = async move {
            let (drained, deadline) = self.run_until(app, workers, shutdown).await;
            // The other one is dropped only together with this.
            let _ = ended.send(deadline);
            drained
        };
        let there = another.run_until(app_there, Workers::here(), is_over.map(Result::ok));
        // It changes whom it polls first: both share what one poll of this task may do, and one of them could use it up.
        let (here, (there, _)) = tokio::join!(here, there);
        here.and(there)
    }

    /// Serves until `shutdown` completes, with the deadline of requests under way if that is known already. Returns it.
    async fn run_until(
        self,
        app: impl HttpApp,
        workers: Workers,
        shutdown: impl Future<Output = Option<Instant>>,
    ) -> (Drained, Instant) {
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let deadline = loop {
            let Accepted {
                stream,
                peer,
                counted,
            } = tokio::select! {
                deadline = &mut shutdown => break deadline,
                accepted = self.accept() => accepted,
            };
            let (protocol, app, watcher) =
                (Arc::clone(&self.protocol), app.clone(), graceful.watcher());
            let tls = self.tls.clone();
            let worker = workers.least_busy();
            let guard = (counted, self.open.enter(), worker.open.enter());
            let connection = async move {
                let served = match stream {
                    AcceptedStream::Tcp(stream) => {
                        protocol.serve_tcp(tls, stream, peer, app, watcher).await
                    }
                    // On the heap, so that connections over TCP need no space for it.
                    AcceptedStream::Unix(stream) => {
                        Box::pin(protocol.serve_local(stream, peer, app, watcher)).await
                    }
                };
                if let Err(error) = served {
                    tracing::warn!(%error, "a connection cannot be waited on");
                }
                drop(guard);
            };
            connections.spawn_on(connection, &worker.runtime);
            // Finished tasks are collected here; they are never more than the connections that were open at once.
            while connections.try_join_next().is_some() {}
        };
        let deadline = deadline.unwrap_or_else(|| Instant::now() + self.drain_timeout);
        // New clients are refused from here on, which is clearer than silence. The file of a Unix socket is removed.
        drop(self.listener);
        self.protocol.stopping.cancel();
        (drain(graceful, connections, deadline).await, deadline)
    }

    /// The next connection within the limits. The permit is taken first: at the limit nothing is accepted, and clients wait
    /// in the system's queue, which has a limit too. Connections of a peer that has its share already are closed at once.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: a connection not yet accepted stays in the system's queue.
    async fn accept(&self) -> Accepted {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let mut is_told = false;
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let is_reserve = self.permits.available_permits() < self.kept;
                    let (peer, taken) = match self.peers.connect(address, is_reserve) {
                        Ok(connected) => connected,
                        Err(limit) => {
                            self.refusals.count(limit);
                            continue;
                        }
                    };
                    match stream.prepared() {
                        Ok(stream) => {
                            return Accepted {
                                stream,
                                peer,
                                counted: (permit, taken),
                            };
                        }
                        Err(error) => {
                            tracing::debug!(peer = %address, %error, "a connection ended before it began");
                        }
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // Logged once until connections are accepted again: at this pace it would fill the log.
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(%error, "connections cannot be accepted; trying until they can");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Whether only this connection failed. Other errors, such as too many open files, would recur at once.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

async fn drain(
    graceful: GracefulShutdown,
    mut connections: JoinSet<()>,
    deadline: Instant,
) -> Drained {
    // Connections without a request close at once, and are not cut, even if the deadline is over by now.
    let deadline = deadline.max(Instant::now() + CLOSES_WITHIN);
    if tokio::time::timeout_at(deadline, graceful.shutdown())
        .await
        .is_ok()
    {
        while connections.join_next().await.is_some() {}
        return Drained::Finished;
    }
    while connections.try_join_next().is_some() {}
    let cut = connections.len();
    connections.shutdown().await;
    Drained::Cut { connections: cut }
}
