//! The sockets to the nodes of a Redis Cluster, and what the server behind each has reported about itself. Which nodes there
//! are, `cluster` knows.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use redis::RedisConnectionInfo;
use redis::aio::MultiplexedConnection;
use tokio::runtime;
use tokio::time::Instant;

use super::UNPOISONED;
use crate::store::Fault;
use crate::store::redis::failure::Failure;
use crate::store::redis::info::ServerInfo;
use crate::store::redis::transport::{Endpoint, Transport};

/// The sockets to all nodes.
pub(in crate::store::redis) struct NodeSockets {
    transport: Arc<Transport>,
    settings: RedisConnectionInfo,
    /// The most sockets to each node, for each runtime.
    of_node_max: usize,
    sockets: Mutex<HashMap<SocketKey, Arc<tokio::sync::Mutex<SocketState>>>>,
    /// By node, when the last attempt began that could open a new socket, or else the first attempt.
    opened_at: Mutex<HashMap<Endpoint, Instant>>,
}

/// For how long a node need not be tried again to which a socket could be opened.
const OPENED_LATELY: Duration = Duration::from_secs(1);

/// Runtime, node and number. A socket is driven by the runtime that opened it.
type SocketKey = (runtime::Id, Endpoint, usize);

#[derive(Default)]
struct SocketState {
    socket: Option<NodeSocket>,
    /// When the last attempt to open it began that failed, and why.
    failed: Option<(Instant, Failure)>,
}

impl NodeSockets {
    pub(super) fn new(
        (transport, settings): (Arc<Transport>, RedisConnectionInfo),
        of_node_max: usize,
    ) -> Self {
        Self {
            transport,
            settings,
            of_node_max,
            sockets: Mutex::default(),
            opened_at: Mutex::default(),
        }
    }

    /// Opens a socket to each of these nodes, and closes it again. Those that are open to a node to which none could be
    /// opened for so long are not used any more: a lasting cause must not show only when they break.
    pub(super) async fn try_all(&self, nodes: impl Iterator<Item = Endpoint>, patience: Duration) {
        let trying = nodes.map(async |node| {
            let began = Instant::now();
            let is_certain = {
                let opened_at = self.opened_at.lock().expect(UNPOISONED);
                let last = opened_at.get(&node);
                last.is_some_and(|last| last.elapsed() < OPENED_LATELY)
            };
            if is_certain {
                return;
            }
            let is_open = self.transport.open(&node, &self.settings).await.is_ok();
            let mut opened_at = self.opened_at.lock().expect(UNPOISONED);
            let last = opened_at.entry(node.clone()).or_insert(began);
            if is_open {
                *last = began;
            } else if last.elapsed() >= patience {
                self.abandon(&node);
            }
        });
        join_all(trying).await;
    }

    /// The sockets to a node are not used any more.
    fn abandon(&self, node: &Endpoint) {
        let mut sockets = self.sockets.lock().expect(UNPOISONED);
        sockets.retain(|(_, endpoint, _), state| {
            // One that is being opened is not one of before.
            if endpoint == node
                && let Ok(state) = state.try_lock()
                && let Some(socket) = &state.socket
            {
                socket.is_broken.store(true, Ordering::Relaxed);
            }
            endpoint != node
        });
    }

    /// Why a node has not answered for longer than a caller waits.
    pub(super) async fn why_silent(&self, endpoint: &Endpoint) -> Failure {
        self.transport.why_silent(endpoint).await
    }

    /// A socket to a node. Callers with different numbers get different ones, as far as there may be several.
    pub(in crate::store::redis) async fn open(
        &self,
        endpoint: &Endpoint,
        number: usize,
    ) -> Result<NodeSocket, Failure> {
        let wanted_at = Instant::now();
        let runtime = runtime::Handle::current().id();
        let key = (runtime, endpoint.clone(), number % self.of_node_max);
        let entry = {
            let mut sockets = self.sockets.lock().expect(UNPOISONED);
            Arc::clone(sockets.entry(key).or_default())
        };
        let mut state = entry.lock().await;
        if let Some(socket) = &state.socket
            && !socket.is_broken.load(Ordering::Relaxed)
        {
            return Ok(socket.clone());
        }
        // One attempt is enough for all that wait.
        if let Some((began, failure)) = &state.failed
            && *began >= wanted_at
        {
            return Err(failure.clone());
        }
        state.socket = None;
        let began = Instant::now();
        match self.transport.open(endpoint, &self.settings).await {
            Ok(shared) => {
                let socket = NodeSocket::new(shared);
                state.failed = None;
                state.socket = Some(socket.clone());
                Ok(socket)
            }
            Err(failure) => {
                state.failed = Some((began, failure.clone()));
                Err(failure)
            }
        }
    }

    /// What a node answers to a question that changes nothing. A socket that has broken since it was last used is replaced
    /// once, so that it says nothing about the node.
    pub(in crate::store::redis) async fn answer<T>(
        &self,
        endpoint: &Endpoint,
        number: usize,
        ask: impl for<'a> Fn(&'a mut NodeSocket) -> BoxFuture<'a, Result<T, Failure>>,
    ) -> Result<(NodeSocket, T), Failure> {
        let mut socket = self.open(endpoint, number).await?;
        let mut answer = ask(&mut socket).await;
        if matches!(&answer, Err(failure) if failure.fault == Fault::Io) {
            socket.is_broken.store(true, Ordering::Relaxed);
            socket = self.open(endpoint, number).await?;
            answer = ask(&mut socket).await;
        }
        match answer {
            Ok(answer) => Ok((socket, answer)),
            Err(failure) => {
                // What a node refuses says nothing against the socket.
                if failure.fault != Fault::Permission {
                    socket.is_broken.store(true, Ordering::Relaxed);
                }
                Err(failure)
            }
        }
    }

    /// Closes the sockets to other nodes, and to former addresses of these.
    pub(super) fn keep(&self, known: &BTreeSet<&Endpoint>) {
        let mut sockets = self.sockets.lock().expect(UNPOISONED);
        sockets.retain(|(_, endpoint, _), _| known.contains(endpoint));
        let mut opened_at = self.opened_at.lock().expect(UNPOISONED);
        opened_at.retain(|endpoint, _| known.contains(endpoint));
    }

    /// How many sockets there are, and how many there may be.
    pub(in crate::store::redis) fn counts(&self) -> [usize; 2] {
        let sockets = self.sockets.lock().expect(UNPOISONED);
        let places: BTreeSet<_> = sockets.keys().map(|(_, endpoint, _)| endpoint).collect();
        let runtimes: HashSet<_> = sockets.keys().map(|key| key.0).collect();
        [
            sockets.len(),
            places.len() * runtimes.len() * self.of_node_max,
        ]
    }

    /// Where they lead to.
    #[cfg(test)]
    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        let sockets = self.sockets.lock().expect(UNPOISONED);
        sockets
            .keys()
            .map(|(_, endpoint, _)| endpoint.clone())
            .collect()
    }
}

/// How long what a server reports about itself is used for the partitions that are verified at the same time.
const REPORT_USED_FOR: Duration = Duration::from_millis(100);

/// A connection to a node, shared by the partitions that are there.
#[derive(Clone)]
pub(in crate::store::redis) struct NodeSocket {
    pub(in crate::store::redis) shared: MultiplexedConnection,
    pub(in crate::store::redis) is_broken: Arc<AtomicBool>,
    report: Arc<tokio::sync::Mutex<Option<(Instant, ServerInfo)>>>,
}

impl NodeSocket {
    fn new(shared: MultiplexedConnection) -> Self {
        Self {
            shared,
            is_broken: Arc::default(),
            report: Arc::default(),
        }
    }

    /// What the server reports about itself.
    pub(in crate::store::redis) async fn report(&mut self) -> Result<ServerInfo, Failure> {
        let mut report = self.report.lock().await;
        if let Some((read_at, server)) = &*report
            && read_at.elapsed() < REPORT_USED_FOR
        {
            return Ok(server.clone());
        }
        let reading = ServerInfo::read(&mut self.shared, true).await;
        let server = reading.map_err(|error| Failure::of(&error).before_any_command())?;
        *report = Some((Instant::now(), server.clone()));
        Ok(server)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::store::redis::recovery::tests::config;

    /// A server that answers all commands with OK, over two connections one after the other; and its ends of them.
    fn server() -> (Endpoint, Receiver<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (accepted, connections) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.expect("a client");
                let own_end = stream.try_clone().expect("it is open");
                accepted.send(own_end).expect("the test waits for it");
                let mut sent = [0; 1024];
                while let Ok(length @ 1..) = stream.read(&mut sent) {
                    // Each command is an array.
                    let count = sent[..length].iter().filter(|it| **it == b'*').count();
                    let answered = stream.write_all(&b"+OK\r\n".repeat(count));
                    answered.expect("the client is there");
                }
            }
        });
        (("127.0.0.1".to_owned(), port), connections)
    }

    fn ping(socket: &mut NodeSocket) -> BoxFuture<'_, Result<String, Failure>> {
        let shared = &mut socket.shared;
        async move {
            let answer = redis::cmd("PING").query_async(shared).await;
            answer.map_err(|error| Failure::of(&error))
        }
        .boxed()
    }

    #[tokio::test]
    async fn a_socket_that_broke_while_it_was_idle_says_nothing_about_its_node() {
        let transport = Transport::new(&config(), false).expect("it needs nothing");
        let with = (Arc::new(transport), RedisConnectionInfo::default());
        let sockets = NodeSockets::new(with, 1);
        let (node, connections) = server();
        sockets.answer(&node, 0, ping).await.expect("it is new");
        let first = connections.recv().expect("a connection");
        // Nothing else runs on this thread meanwhile, so the client cannot notice it before it asks.
        first.shutdown(Shutdown::Both).expect("it is open");
        let answer = sockets.answer(&node, 0, ping).await;
        assert!(answer.is_ok_and(|(_, answer)| answer == "OK"));
    }
}
