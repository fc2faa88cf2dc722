//! Clients that acquire one lock after the other without a pause, while a test changes something about the service: over
//! HTTP/1.1 and HTTP/2, each over one connection and over a new one for each request. A refusal or a connection that is
//! cut fails the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper::Method;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::eventually;
use super::single_connection::SingleConnection;

/// What distinguishes the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) is_http2: bool,
    /// Whether it has one connection, or one for each request.
    pub(crate) is_kept: bool,
}

/// How the clients of a test connect, and what they show.
pub(crate) trait LoadClient: Clone + Send + Sync + 'static {
    fn open(&self, kind: Kind) -> impl Future<Output = SingleConnection> + Send;

    /// The API key of the next request.
    fn key(&self, _: Kind) -> Option<String> {
        None
    }
}

/// One client of each kind.
pub(crate) struct Load {
    clients: JoinSet<()>,
    /// How many requests each has begun.
    begun: Vec<Arc<AtomicU32>>,
    end: CancellationToken,
}

impl Load {
    pub(crate) fn start(client: &impl LoadClient) -> Self {
        let mut load = Self {
            clients: JoinSet::new(),
            begun: Vec::new(),
            end: CancellationToken::new(),
        };
        for (is_http2, is_kept) in [(false, false), (false, true), (true, false), (true, true)] {
            let kind = Kind { is_http2, is_kept };
            let begun = Arc::default();
            load.begun.push(Arc::clone(&begun));
            let sending = send(client.clone(), kind, begun, load.end.clone());
            load.clients.spawn(sending);
        }
        load
    }

    /// Waits until each client sends a request, over a new connection if it opens them, that it begins from now on.
    /// Those before it have been answered then.
    pub(crate) async fn goes_on(&self) {
        for begun in &self.begun {
            let before = begun.load(Ordering::SeqCst);
            eventually("each client goes on", async || {
                (begun.load(Ordering::SeqCst) > before + 1).then_some(())
            })
            .await;
        }
    }

    /// Lets the clients end.
    pub(crate) async fn end(self) {
        self.end.cancel();
        self.clients.join_all().await;
    }
}

async fn send(client: impl LoadClient, kind: Kind, begun: Arc<AtomicU32>, end: CancellationToken) {
    let mut connection = client.open(kind).await;
    while !end.is_cancelled() {
        let number = begun.fetch_add(1, Ordering::SeqCst);
        if !kind.is_kept {
            connection = client.open(kind).await;
        }
        let path = format!("/locks/{}/{}/{number}", kind.is_http2, kind.is_kept);
        let key = client.key(kind).map(|key| format!("Bearer {key}"));
        let header = key.as_deref().map(|key| ("authorization", key));
        let status = connection.status(Method::POST, &path, header.as_slice());
        let status = status.await.expect("the connection is not cut");
        assert_eq!(status, 201, "{path}");
    }
}
