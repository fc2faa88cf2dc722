//! A TCP proxy that delays what a server answers, as a slow network does: everything arrives later, nothing arrives more
//! slowly. It runs on a thread of its own, because the thread of an experiment waits for wrk.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// Forwards to one server until this is dropped.
pub(crate) struct DelayingProxy {
    address: SocketAddr,
    _end: oneshot::Sender<()>,
}

impl DelayingProxy {
    pub(crate) fn start(target: SocketAddr, delay: Duration) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::select! {
                    // Dropping the sender ends it, too.
                    _ = ended => {}
                    () = accept(TcpListener::from_std(listener).unwrap(), target, delay) => {}
                }
            });
        });
        Self { address, _end: end }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, delay: Duration) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(async move { forward(client, target, delay).await });
    }
}

async fn forward(client: TcpStream, target: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::select! {
        ended = copy(&mut from_client, &mut to_server) => ended.map(drop),
        ended = read(from_server, sender, delay) => ended,
        ended = write(to_client, receiver) => ended,
    }
}

/// Reads at once, so that what follows is delayed no longer than the first.
async fn read(
    mut from: OwnedReadHalf,
    sender: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
    delay: Duration,
) -> io::Result<()> {
    loop {
        let mut piece = Vec::with_capacity(16 * 1024);
        if from.read_buf(&mut piece).await? == 0
            || sender.send((Instant::now() + delay, piece)).is_err()
        {
            return Ok(());
        }
    }
}

async fn write(
    mut to: OwnedWriteHalf,
    mut receiver: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
) -> io::Result<()> {
    while let Some((at, piece)) = receiver.recv().await {
        sleep_until(at).await;
        to.write_all(&piece).await?;
    }
    Ok(())
}
