//! A client for what wrk cannot do: HTTP/2, certificates of clients, and a new connection for each request. It acquires
//! locks of fresh names, on the thread of the experiment. It takes more CPU time than wrk, so what the service takes says
//! more than the rate.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant};
use tokio_rustls::TlsConnector;

/// Where the requests go, and how.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) is_http2: bool,
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

/// How many requests were answered, and in what time.
pub(crate) struct Answered {
    pub(crate) requests: f64,
    pub(crate) seconds: f64,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    /// Acquires on so many connections that stay open, each with so many requests at once, which is one for HTTP/1.1.
    pub(crate) async fn on_kept_connections(
        &self,
        connections: usize,
        at_once: usize,
        seconds: f64,
    ) -> Answered {
        let mut senders = Vec::new();
        for _ in 0..connections {
            let (sender, _) = self.connect().await;
            senders.extend(sender.for_requests_at_once(at_once));
        }
        until(seconds, senders, async |sender, name| {
            acquire(sender, name).await;
        })
        .await
    }

    /// The same with a new connection for each request, so many at once. With TLS, every handshake is of this kind, after
    /// the first ones, whose sessions the others resume.
    pub(crate) async fn on_new_connections(
        &self,
        at_once: usize,
        seconds: f64,
        kind: HandshakeKind,
    ) -> Answered {
        let mut clients = Vec::new();
        for _ in 0..at_once {
            let mut client = self.clone();
            if let Some(tls) = &self.tls {
                // Sessions of its own: a ticket can be used once, so others must not take it.
                let mut tls = ClientConfig::clone(tls);
                tls.resumption = match kind {
                    HandshakeKind::Resumed => Resumption::in_memory_sessions(8),
                    HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest => {
                        Resumption::disabled()
                    }
                };
                client.tls = Some(Arc::new(tls));
            }
            let (mut sender, _) = client.connect().await;
            acquire(&mut sender, &uuid::Uuid::new_v4().to_string()).await;
            clients.push(client);
        }
        until(seconds, clients, async |client, name| {
            let (mut sender, was) = client.connect().await;
            assert!(was.is_none_or(|was| was == kind), "not {kind:?}: {was:?}");
            acquire(&mut sender, name).await;
        })
        .await
    }

    /// A connection, and which kind of handshake it took.
    async fn connect(&self) -> (Sender, Option<HandshakeKind>) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let Some(tls) = &self.tls else {
            return (self.start(stream).await, None);
        };
        let name = ServerName::from(self.address.ip());
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector.connect(name, stream).await.unwrap();
        let kind = stream.get_ref().1.handshake_kind();
        (self.start(stream).await, kind)
    }

    async fn start(&self, io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Sender {
        let io = TokioIo::new(io);
        if self.is_http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            Sender::Http1(sender)
        }
    }
}

impl Sender {
    fn for_requests_at_once(self, count: usize) -> Vec<Self> {
        match self {
            Self::Http2(sender) => (0..count).map(|_| Self::Http2(sender.clone())).collect(),
            Self::Http1(_) => {
                assert_eq!(count, 1, "HTTP/1.1 answers one request after the other");
                vec![self]
            }
        }
    }

    async fn send(&mut self, name: &str) -> Response<Incoming> {
        let body = Full::from(r#"{"ttl":"10s"}"#);
        let request = Request::post(match self {
            Self::Http1(_) => format!("/locks/{name}"),
            Self::Http2(_) => format!("http://localhost/locks/{name}"),
        });
        let request = request.header(CONTENT_TYPE, "application/json");
        match self {
            Self::Http1(sender) => {
                let request = request.header(HOST, "localhost").body(body).unwrap();
                sender.send_request(request).await.unwrap()
            }
            Self::Http2(sender) => {
                let request = request.body(body).unwrap();
                sender.send_request(request).await.unwrap()
            }
        }
    }
}

/// Each acquires one lock after the other until the time is over.
async fn until<T>(seconds: f64, workers: Vec<T>, acquire: impl AsyncFn(&mut T, &str)) -> Answered {
    let salt = uuid::Uuid::new_v4().simple().to_string();
    let began = Instant::now();
    let ends = began + Duration::from_secs_f64(seconds);
    let (salt, acquire) = (&salt[..8], &acquire);
    let work = |(index, mut worker): (usize, T)| async move {
        let mut count = 0;
        while Instant::now() < ends {
            count += 1;
            acquire(&mut worker, &format!("orders-{salt}-{index}-{count}")).await;
        }
        count
    };
    let counts: Vec<u32> = join_all(workers.into_iter().enumerate().map(work)).await;
    Answered {
        requests: counts.into_iter().map(f64::from).sum(),
        seconds: began.elapsed().as_secs_f64(),
    }
}

/// # Panics
/// It is not granted: what was measured would not be what it seems.
async fn acquire(sender: &mut Sender, name: &str) {
    let response = sender.send(name).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(status, StatusCode::CREATED, "{body:?}");
}
