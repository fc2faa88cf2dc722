//! Sockets: the accept loop with the limits and timers that `axum::serve` does not have, and its orderly end.
//! What is served is any [`App`]; nothing here knows a path.

mod activity;
mod connections;
mod delivery;
pub mod descriptors;
mod flood;
mod peer;
pub mod shutdown;
mod socket;
pub mod user_timeout;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use connections::Protocol;
pub use connections::{HttpApp, OpenConnections};
use peer::Peers;
pub use peer::{Peer, network_of};
pub use workers::Workers;

use crate::config::ServerConfig;
use crate::limits::{Refusals, Taken};

/// Long enough for other connections to give descriptors back, short enough to be no outage.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How many bytes of answers the system takes for one connection whose peer does not read, about. Left alone it takes
/// megabytes, which no limit of this process sees.
const SEND_BUFFER: u32 = 128 * 1024;

/// How many connections may wait to be accepted: as many as the system allows (`net.core.somaxconn`), which lowers this.
/// The usual 128 are fewer than the clients that come back at once when a process is replaced, and whoever finds no
/// room is silently turned away and tries again a second later.
const BACKLOG: u32 = i32::MAX.unsigned_abs();

/// A bound listener.
pub struct Server {
    listener: TcpListener,
    local_addr: SocketAddr,
    protocol: Arc<Protocol>,
    permits: Arc<Semaphore>,
    /// How many permits are kept for peers that have hardly any.
    kept: usize,
    peers: Peers,
    refusals: Refusals,
    open: OpenConnections,
    drain_timeout: Duration,
}

/// A connection that was let in.
struct Accepted {
    stream: std::net::TcpStream,
    peer: Peer,
    counted: (OwnedSemaphorePermit, Taken),
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
    pub fn bind(config: &ServerConfig, address: SocketAddr) -> io::Result<Self> {
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
        address: SocketAddr,
        refusals: Refusals,
    ) -> io::Result<Self> {
        let listener = listen(address)?;
        Ok(Self {
            local_addr: listener.local_addr()?,
            listener,
            protocol: Arc::new(Protocol::new(config, refusals.clone())),
            permits: Arc::new(Semaphore::new(config.connections_max)),
            kept: config.connections_kept(),
            peers: Peers::new(config),
            refusals,
            open: OpenConnections::default(),
            drain_timeout: config.drain_timeout,
        })
    }

    /// The address that was bound, with the port that the system chose for port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
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
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let Accepted {
                stream,
                peer,
                counted,
            } = tokio::select! {
                () = &mut shutdown => break,
                accepted = self.accept() => accepted,
            };
            let (protocol, app, watcher) =
                (Arc::clone(&self.protocol), app.clone(), graceful.watcher());
            let worker = workers.least_busy();
            let guard = (counted, self.open.enter(), worker.open.enter());
            let connection = async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => protocol.serve(stream, peer, app, watcher).await,
                    Err(error) => tracing::warn!(%error, "a connection cannot be waited on"),
                }
                drop(guard);
            };
            connections.spawn_on(connection, &worker.runtime);
            // Finished tasks are collected here; they are never more than the connections that were open at once.
            while connections.try_join_next().is_some() {}
        }
        // Refused is clearer than silence to whoever still comes.
        drop(self.listener);
        drain(graceful, connections, self.drain_timeout).await
    }

    /// The next connection that may come in. The permit comes first: at the limit nothing is accepted, and the system's
    /// queue, which has a limit too, is what makes callers wait. Whoever has its share already is closed at once.
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
                    match prepared(stream) {
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
                    // Told once until it is over: at this pace the log would fill up with it.
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(%error, "connections cannot be accepted; trying until they can");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Says of an answer that it shares its bytes with others, so that it costs no memory of its own however long it takes.
/// Whoever makes the answer leaves it among its extensions.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes;

/// As [`TcpListener::bind`], with room for more who wait.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A process that is started again finds its port free though connections to the one before are still closing.
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit it.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A connection that can be given to another runtime.
fn prepared(stream: TcpStream) -> io::Result<std::net::TcpStream> {
    // Answers are small and final; waiting to fill a packet would only delay them.
    stream.set_nodelay(true)?;
    stream.into_std()
}

/// Whether only the connection at hand failed. Other errors, such as too many open files, would come again at once.
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
    timeout: Duration,
) -> Drained {
    if tokio::time::timeout(timeout, graceful.shutdown())
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
