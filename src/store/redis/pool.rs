//! Connections to Redis. `node` runs scripts over them.
//!
//! The stock manager of bb8-redis never notices a dead connection, and a checkout that lasts as long as its command
//! keeps requests from sharing a socket. So every failure sets a flag of its connection, the pool checks the flag
//! instead of a PING, and a request clones a multiplexed connection and returns the original at once: Redis sees the
//! commands of many requests as one pipeline.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bb8_redis::bb8::{self, ManageConnection};
use futures_util::FutureExt as _;
use redis::aio::MultiplexedConnection;
use tokio::runtime;
use tokio::time::{Instant, timeout_at};

use super::UNPOISONED;
use super::connector::{Connector, Opened};
use super::failure::{Execution, Failure};
use super::info::ServerInfo;
use super::recovery::Recovery;
use crate::store::{Fault, PoolHealth};

/// The shared connections: one pool per runtime.
///
/// A connection is driven by a task of the runtime that opened it. A request on another runtime would have to wake that
/// task with its command, and be woken with the answer.
pub(super) struct Pool {
    of_runtimes: RwLock<HashMap<runtime::Id, bb8::Pool<Manager>>>,
    manager: Manager,
    /// The connection generation when the shared connections were last closed.
    swept: AtomicU64,
    /// The most connections of each pool.
    size: u32,
    /// Without credentials, for the log.
    address: String,
    /// The requests that found no open connection at once.
    waits: AtomicU64,
    /// The requests that got no connection in time.
    timeouts: AtomicU64,
}

/// How long a request waits for a new connection before it uses one of another runtime. Redis may refuse connections,
/// and the requests of this runtime, its waiters among them, must not wait for that to end.
const BORROW_AFTER: Duration = Duration::from_millis(50);

const NOT_IN_TIME: &str = "no connection in time";

/// As [`Pool::refusal`] returns it.
type Refusal = Arc<Mutex<Option<Failure>>>;

/// One shared connection. Clones share the socket.
#[derive(Clone)]
pub(super) struct Connection {
    shared: MultiplexedConnection,
    is_broken: Arc<AtomicBool>,
    pub(super) generation: u64,
}

/// Opens connections and knows which are usable.
#[derive(Clone)]
struct Manager {
    connector: Arc<Connector>,
    recovery: Arc<Recovery>,
    refusal: Refusal,
}

impl Pool {
    /// Each runtime gets a pool with at most this number of connections.
    pub(super) fn new(connector: Connector, connections: usize, recovery: Arc<Recovery>) -> Self {
        Self {
            of_runtimes: RwLock::default(),
            swept: AtomicU64::new(0),
            address: connector.url().to_owned(),
            waits: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            manager: Manager {
                connector: Arc::new(connector),
                recovery,
                refusal: Refusal::default(),
            },
            size: u32::try_from(connections).unwrap_or(u32::MAX),
        }
    }

    /// A connection to a verified Redis, shared with other requests.
    pub(super) async fn get(&self, deadline: Instant) -> Result<Connection, Failure> {
        self.manager.recovery.renew_if_unverified();
        let own = self.of_this_runtime();
        let mut checkout = pin!(own.get());
        let connection = match checkout.as_mut().now_or_never() {
            Some(connection) => Ok(connection),
            None => {
                self.waits.fetch_add(1, Ordering::Relaxed);
                let borrow_at = deadline.min(Instant::now() + BORROW_AFTER);
                match timeout_at(borrow_at, &mut checkout).await {
                    Ok(connection) => Ok(connection),
                    Err(_) => match self.of_another_runtime() {
                        Some(connection) => return Ok(connection),
                        None => timeout_at(deadline, checkout).await,
                    },
                }
            }
        };
        match connection {
            Ok(Ok(connection)) => Ok(connection.clone()),
            Ok(Err(bb8::RunError::User(failure))) => Err(failure),
            Ok(Err(bb8::RunError::TimedOut)) | Err(_) => {
                self.timeouts.fetch_add(1, Ordering::Relaxed);
                let failure = self.not_connected(NOT_IN_TIME);
                // Without a connection, not even those requests are answered that Redis executes while a slot moves.
                if failure.is_moving() {
                    self.manager.recovery.note_no_answer(Instant::now());
                }
                Err(failure)
            }
        }
    }

    /// An open connection of any runtime, if there is one.
    fn of_another_runtime(&self) -> Option<Connection> {
        let of_runtimes = self.of_runtimes.read().expect(UNPOISONED);
        of_runtimes.values().find_map(|pool| {
            let is_open = pool.state().idle_connections > 0;
            let checkout = is_open.then(|| pool.get().now_or_never())?;
            Some(checkout?.ok()?.clone())
        })
    }

    fn of_this_runtime(&self) -> bb8::Pool<Manager> {
        let runtime = runtime::Handle::current().id();
        let known = self
            .of_runtimes
            .read()
            .expect(UNPOISONED)
            .get(&runtime)
            .cloned();
        known.unwrap_or_else(|| {
            let mut of_runtimes = self.of_runtimes.write().expect(UNPOISONED);
            of_runtimes
                .entry(runtime)
                .or_insert_with(|| self.open())
                .clone()
        })
    }

    fn open(&self) -> bb8::Pool<Manager> {
        bb8::Pool::builder()
            .max_size(self.size)
            // The check reads a flag; it costs no round trip.
            .test_on_check_out(true)
            .connection_timeout(self.manager.connector.timeout())
            .queue_strategy(bb8::QueueStrategy::Lifo)
            .idle_timeout(None)
            .max_lifetime(None)
            .build_unchecked(self.manager.clone())
    }

    /// The failure of a request without a connection: `what` happened, and why, if it is known. Nothing was sent.
    pub(super) fn not_connected(&self, what: &str) -> Failure {
        let mut failure = match self.refusal() {
            Some(mut refusal) => {
                refusal.detail = format!("{what}: {}", refusal.detail);
                refusal
            }
            None => Failure::new(Fault::Io, Execution::NotDone, what),
        };
        // A failure that may pass is worth retrying for the rest of the request's time.
        failure.is_worth_retrying = !failure.is_lasting();
        failure
    }

    /// Why the last attempt to connect failed; none if it succeeded.
    pub(super) fn refusal(&self) -> Option<Failure> {
        self.manager.refusal.lock().expect(UNPOISONED).clone()
    }

    /// A connection that is not shared, to the current target of the address. Its Redis has been verified.
    pub(super) async fn connect(&self, deadline: Instant) -> Result<Connection, Failure> {
        match timeout_at(deadline, self.manager.connect()).await {
            Ok(opened) => opened,
            Err(_) => Err(self.not_connected(NOT_IN_TIME)),
        }
    }

    /// The same with a socket of its own, for commands that block it.
    pub(super) async fn connect_alone(&self, deadline: Instant) -> Result<Connection, Failure> {
        let opening = self.manager.noted(self.manager.connector.open_alone());
        match timeout_at(deadline, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(self.not_connected(NOT_IN_TIME)),
        }
    }

    /// Closes connections that will not be used again, because they may lead elsewhere than the address does now.
    /// Requests in flight finish on them.
    pub(super) fn sweep(&self) {
        let generation = self.manager.recovery.generation();
        if self.swept.swap(generation, Ordering::Relaxed) != generation {
            self.of_runtimes.write().expect(UNPOISONED).clear();
        }
    }

    /// Opens connections that the pool does not keep.
    pub(super) fn connector(&self) -> Arc<Connector> {
        Arc::clone(&self.manager.connector)
    }

    /// The URL of the store, without credentials.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn health(&self) -> PoolHealth {
        let of_runtimes = self.of_runtimes.read().expect(UNPOISONED);
        let open = of_runtimes.values().map(|pool| pool.state().connections);
        let pools = u32::try_from(of_runtimes.len()).unwrap_or(u32::MAX);
        PoolHealth {
            open: open.sum(),
            max: self.size.saturating_mul(pools),
            waits: self.waits(),
            timeouts: self.timeouts(),
        }
    }

    /// How often no connection was open at once.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// How often no connection was free in time.
    pub(super) fn timeouts(&self) -> u64 {
        self.timeouts.load(Ordering::Relaxed)
    }
}

impl Connection {
    /// Keeps the connection from being used again.
    pub(super) fn abandon(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// The socket that the clones share.
    pub(super) fn socket(&mut self) -> &mut MultiplexedConnection {
        &mut self.shared
    }
}

impl Manager {
    async fn verified(
        &self,
        opened: Result<Opened, Failure>,
        generation: u64,
    ) -> Result<Connection, Failure> {
        let Opened {
            mut shared,
            server,
            is_broken,
        } = opened?;
        let deadline = Instant::now() + self.connector.timeout();
        let verifying = self.verify(&mut shared, server, generation);
        let verified = timeout_at(deadline, verifying).await;
        match verified.unwrap_or_else(|_| Err(Failure::timed_out().passing())) {
            Ok(generation) => Ok(Connection {
                shared,
                is_broken,
                generation,
            }),
            Err(failure) => {
                let failure = failure.before_any_command();
                // An answer says nothing against the socket, which the partitions of a cluster share.
                let is_answered = failure.redirection.is_some() || failure.is_moving();
                if !is_answered && failure.fault != Fault::Permission {
                    is_broken.store(true, Ordering::Relaxed);
                }
                Err(failure)
            }
        }
    }

    async fn verify(
        &self,
        shared: &mut MultiplexedConnection,
        server: ServerInfo,
        generation: u64,
    ) -> Result<u64, Failure> {
        let (recovery, connector) = (&self.recovery, &self.connector);
        let verifying = recovery.verify(shared, server.clone(), generation);
        let refused = match verifying.await.map_err(|error| Failure::of(&error)) {
            Err(failure) if failure.is_moving() => failure,
            verified => return verified,
        };
        let verifying = recovery.verify_moving(connector, shared, &server, generation);
        verifying.await?.ok_or(refused)
    }

    async fn noted(
        &self,
        opening: impl Future<Output = Result<Opened, Failure>>,
    ) -> Result<Connection, Failure> {
        // Before it is opened: it may lead where the address no longer does, and is not used then.
        let (began, generation) = (Instant::now(), self.recovery.generation());
        let opened = self.verified(opening.await, generation).await;
        match &opened {
            Ok(_) => self.recovery.note_connected(began),
            Err(failure) => {
                let is_of_cluster = matches!(failure.fault, Fault::Cluster | Fault::ClusterDown);
                if failure.redirection.is_some() || is_of_cluster {
                    self.connector.may_have_moved();
                }
                match failure.is_moving() {
                    true => self.recovery.note_moving(began),
                    false => self.recovery.note_not_connected(began),
                }
            }
        }
        *self.refusal.lock().expect(UNPOISONED) = opened.as_ref().err().cloned();
        opened
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = Failure;

    async fn connect(&self) -> Result<Connection, Failure> {
        self.noted(self.connector.open()).await
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), Failure> {
        match self.has_broken(connection) {
            true => Err(Failure::new(Fault::Io, Execution::NotDone, "it broke")),
            false => Ok(()),
        }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_broken.load(Ordering::Relaxed)
            || connection.generation != self.recovery.generation()
    }
}
