//! A network between a client and Redis that fails on demand.

mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::config::RedisAddress;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A connection whose commands arrived late is closed after this time without an answer.
const LATE_QUIET: Duration = Duration::from_secs(1);

/// A TCP proxy on 127.0.0.1. Its faults can be changed at any time; it ends when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    listener: JoinHandle<()>,
}

/// Shared by all connections.
struct State {
    target: Mutex<String>,
    refuses: AtomicBool,
    refused: Mutex<Option<IpAddr>>,
    swallows: AtomicBool,
    delay_ms: AtomicU64,
    open: AtomicUsize,
    accepted: AtomicUsize,
    /// The last of the connections that end at their next command.
    ends_up_to: AtomicUsize,
    swallowed: AtomicUsize,
    loses_commands: AtomicBool,
    holds_back: AtomicBool,
    /// How long after the cut of its connection a held back command arrives.
    late_ms: AtomicU64,
    lost: AtomicUsize,
    late: AtomicUsize,
    stalled: AtomicUsize,
    /// Whether nothing is forwarded, in either direction.
    stalls: watch::Sender<bool>,
    /// How often all connections were cut. A connection ends when this changes.
    cuts: watch::Sender<u64>,
}

impl Proxy {
    /// A proxy that forwards everything to `target`.
    pub(crate) async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(State {
            target: Mutex::new(target),
            refuses: AtomicBool::new(false),
            refused: Mutex::default(),
            swallows: AtomicBool::new(false),
            delay_ms: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            ends_up_to: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            swallowed: AtomicUsize::new(0),
            loses_commands: AtomicBool::new(false),
            holds_back: AtomicBool::new(false),
            late_ms: AtomicU64::new(0),
            lost: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            stalled: AtomicUsize::new(0),
            stalls: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
        });
        let listener = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self {
            address,
            state,
            listener,
        }
    }

    /// The address of a database behind the proxy, for a store.
    pub(crate) fn database(&self, database: u16) -> RedisAddress {
        RedisAddress {
            host: self.address.ip().to_string(),
            port: self.address.port(),
            database: database.into(),
            is_encrypted: false,
        }
    }

    /// The address that clients connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forwards new connections to another server from now on. Open connections are not changed.
    pub(crate) fn redirect(&self, target: String) {
        *self.state.target.lock().expect("whole") = target;
    }

    /// Ends every open connection.
    pub(crate) fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Each connection that is open now ends at its next command.
    pub(crate) fn end_at_next_command(&self) {
        let accepted = self.state.accepted.load(SeqCst);
        self.state.ends_up_to.store(accepted, SeqCst);
    }

    /// Sets whether new connections are closed at once.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.state.refuses.store(refuses, SeqCst);
    }

    /// Sets the address from which new connections are closed at once.
    pub(crate) fn refuse_from(&self, address: Option<IpAddr>) {
        *self.state.refused.lock().expect("whole") = address;
    }

    /// Drops replies from now on, but not commands.
    pub(crate) fn swallow_replies(&self) {
        self.state.swallows.store(true, SeqCst);
    }

    /// Forwards replies again. Cuts all connections, because a TCP stream cannot continue after lost bytes.
    pub(crate) fn pass_replies(&self) {
        self.state.swallows.store(false, SeqCst);
        self.cut();
    }

    /// Sets the delay of each reply.
    pub(crate) fn delay_replies(&self, delay: Duration) {
        let delay_ms = u64::try_from(delay.as_millis()).expect("a short delay");
        self.state.delay_ms.store(delay_ms, SeqCst);
    }

    /// Forwards new connections to another server from now on, and cuts the open ones.
    pub(crate) fn switch(&self, target: String) {
        *self.state.target.lock().expect("whole") = target;
        self.cut();
    }

    /// Sets whether nothing is forwarded, in either direction, while all connections stay open.
    pub(crate) fn stall(&self, stalls: bool) {
        self.state.stalls.send_replace(stalls);
    }

    /// Drops commands from now on.
    pub(crate) fn lose_commands(&self) {
        self.state.loses_commands.store(true, SeqCst);
    }

    /// Forwards commands again. Cuts all connections, because a TCP stream cannot continue after lost bytes.
    pub(crate) fn pass_commands(&self) {
        self.state.loses_commands.store(false, SeqCst);
        self.cut();
    }

    /// Holds commands back from now on.
    pub(crate) fn hold_back(&self) {
        self.state.holds_back.store(true, SeqCst);
    }

    /// Cuts all connections of the clients; commands that were held back still arrive after `late`. New connections
    /// forward everything.
    pub(crate) fn deliver_late(&self, late: Duration) {
        let late_ms = u64::try_from(late.as_millis()).expect("a short delay");
        self.state.late_ms.store(late_ms, SeqCst);
        self.state.holds_back.store(false, SeqCst);
        self.cut();
    }

    /// How many pieces of commands were dropped.
    pub(crate) fn lost(&self) -> usize {
        self.state.lost.load(SeqCst)
    }

    /// How many connections had commands that arrived after the cut.
    pub(crate) fn late(&self) -> usize {
        self.state.late.load(SeqCst)
    }

    /// How many pieces of commands or replies were stalled.
    pub(crate) fn stalled(&self) -> usize {
        self.state.stalled.load(SeqCst)
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(SeqCst)
    }

    /// How many connections were accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(SeqCst)
    }

    /// How many pieces of replies were dropped.
    pub(crate) fn swallowed(&self) -> usize {
        self.state.swallowed.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    loop {
        let (client, from) = listener.accept().await.expect("a listening socket accepts");
        let is_refused = *state.refused.lock().expect("whole") == Some(from.ip());
        if !is_refused && !state.refuses.load(SeqCst) {
            let number = state.accepted.fetch_add(1, SeqCst) + 1;
            state.open.fetch_add(1, SeqCst);
            tokio::spawn(connection(number, client, Arc::clone(&state)));
        }
    }
}

async fn connection(number: usize, client: TcpStream, state: Arc<State>) {
    drop(pass(number, client, &state).await);
    state.open.fetch_sub(1, SeqCst);
}

/// Forwards both directions until one of them ends, or the connection is cut.
async fn pass(number: usize, client: TcpStream, state: &Arc<State>) -> io::Result<()> {
    let mut cuts = state.cuts.subscribe();
    let target = state.target.lock().expect("whole").clone();
    let server = TcpStream::connect(&target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut held_back = Vec::new();
    let ended = tokio::select! {
        _ = cuts.changed() => Ok(()),
        ended = commands(number, &mut from_client, &mut to_server, state, &mut held_back) => ended,
        ended = replies(&mut from_server, to_client, state) => ended,
    };
    if !held_back.is_empty() {
        let state = Arc::clone(state);
        tokio::spawn(async move { deliver(held_back, from_server, to_server, &state).await });
    }
    ended
}

/// Forwards commands. After one was dropped or held back, so are all that follow: they must not overtake it.
async fn commands(
    number: usize,
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    state: &State,
    held_back: &mut Vec<u8>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut drops_commands = false;
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 || number <= state.ends_up_to.load(SeqCst) {
            return Ok(());
        }
        drops_commands |= state.loses_commands.load(SeqCst);
        if drops_commands {
            state.lost.fetch_add(1, SeqCst);
        } else if !held_back.is_empty() || state.holds_back.load(SeqCst) {
            held_back.extend_from_slice(&buffer[..length]);
        } else {
            pass_stalls(state).await;
            to.write_all(&buffer[..length]).await?;
        }
    }
}

/// Delivers what was held back, and discards the replies.
async fn deliver(
    held_back: Vec<u8>,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
) -> io::Result<()> {
    tokio::time::sleep(Duration::from_millis(state.late_ms.load(SeqCst))).await;
    to.write_all(&held_back).await?;
    let mut buffer = vec![0; 64 * 1024];
    // The first reply shows that the commands arrived. All others are read too: closing early could lose commands.
    let mut is_first = true;
    while let Ok(Ok(1..)) = tokio::time::timeout(LATE_QUIET, from.read(&mut buffer)).await {
        state.late.fetch_add(usize::from(is_first), SeqCst);
        is_first = false;
    }
    Ok(())
}

/// Waits while the proxy is stalled.
async fn pass_stalls(state: &State) {
    let mut stalls = state.stalls.subscribe();
    if *stalls.borrow() {
        state.stalled.fetch_add(1, SeqCst);
        drop(stalls.wait_for(|stalls| !stalls).await);
    }
}

async fn replies(
    from: &mut OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut drops_replies = false;
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(state.delay_ms.load(SeqCst))).await;
        pass_stalls(state).await;
        drops_replies |= state.swallows.load(SeqCst);
        if drops_replies {
            state.swallowed.fetch_add(1, SeqCst);
        } else {
            to.write_all(&buffer[..length]).await?;
        }
    }
}
