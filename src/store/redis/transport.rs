//! Opens connections to a Redis or a Sentinel: name resolution, TCP, TLS, and the greeting of the client library. Says in
//! words why one could not be opened.
//!
//! The client library could open them too. But it reads all root certificates of the system for each connection, opens
//! those for messages without a time limit, and cannot verify another name than the host's.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::failure::{Execution, Failure, NO_ROOM_FOR_CLIENTS, TOO_MANY_CLIENTS};
use super::tls::{self, ClientTls, TlsProblem};
use crate::config::RedisConfig;
use crate::store::Fault;

/// How long the search for the cause of a failure may take.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long Redis may take to say that it has no room for a client.
const GREETING_TIMEOUT: Duration = Duration::from_millis(100);

/// How many bytes that has at most.
const GREETING_MAX: u64 = 128;

/// A host and a port.
pub(super) type Endpoint = (String, u16);

/// Opens connections.
pub(super) struct Transport {
    timeout: Duration,
    /// None without TLS.
    tls: Option<ClientTls>,
}

/// The byte stream below Redis' protocol.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

type Stream = Box<dyn ByteStream>;

impl Transport {
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn new(config: &RedisConfig, is_encrypted: bool) -> Result<Self, Failure> {
        Ok(Self {
            timeout: config.connect_timeout,
            tls: is_encrypted
                .then(|| ClientTls::new(&config.tls))
                .transpose()?,
        })
    }

    /// A connection for commands.
    pub(super) async fn open(
        &self,
        endpoint: &Endpoint,
        settings: &RedisConnectionInfo,
    ) -> Result<MultiplexedConnection, Failure> {
        self.in_time(endpoint, async {
            // Every command has its own deadline, so the connection needs none.
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let stream = self.stream(endpoint).await?;
            let opening = MultiplexedConnection::new_with_config(settings, stream, config);
            let (connection, driver) = opening.await?;
            // It ends with the last clone of the connection.
            tokio::spawn(driver);
            Ok(connection)
        })
        .await
    }

    /// A connection for messages.
    pub(super) async fn open_pubsub(
        &self,
        endpoint: &Endpoint,
        settings: &RedisConnectionInfo,
    ) -> Result<PubSub, Failure> {
        self.in_time(endpoint, async {
            PubSub::new(settings, self.stream(endpoint).await?).await
        })
        .await
    }

    /// How long opening a connection may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn in_time<T>(
        &self,
        endpoint: &Endpoint,
        opening: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, Failure> {
        match timeout(self.timeout, opening).await {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(error)) => Err(self.diagnosed(endpoint, &error).await),
            Err(_) => Err(self.diagnosed(endpoint, &timed_out()).await),
        }
    }

    async fn stream(&self, endpoint: &Endpoint) -> RedisResult<Stream> {
        let stream = tcp(endpoint).await?;
        Ok(match &self.tls {
            Some(tls) => Box::new(tls.connect(&endpoint.0, stream).await?),
            None => Box::new(stream),
        })
    }

    /// Why a server has not answered for longer than a caller waits.
    pub(super) async fn why_silent(&self, endpoint: &Endpoint) -> Failure {
        self.diagnosed(endpoint, &timed_out()).await
    }

    /// Why a connection could not be opened. Nothing was done over it.
    async fn diagnosed(&self, endpoint: &Endpoint, error: &RedisError) -> Failure {
        let has_identity = self.tls.as_ref().is_some_and(ClientTls::has_identity);
        let failure = Failure::of(error).before_any_command();
        let mut problem = tls::problem_in(error, has_identity);
        if problem.is_none() && failure.fault == Fault::Io && self.refuses_clients(endpoint).await {
            return failure.because(TOO_MANY_CLIENTS);
        }
        let may_be_tls = matches!(failure.fault, Fault::Io | Fault::Timeout | Fault::Protocol);
        if problem.is_none() && may_be_tls && !error.is_connection_refusal() {
            problem = timeout(PROBE_TIMEOUT, self.probe(endpoint))
                .await
                .ok()
                .flatten();
        }
        match problem {
            Some(problem) => Failure::new(Fault::Tls, Execution::NotDone, error.to_string())
                .because(problem.explanation()),
            None => failure,
        }
    }

    /// Whether Redis has no room for another client. It says so before it reads anything, and what it says is lost if it
    /// closes a connection over which something was sent. With TLS it just closes.
    async fn refuses_clients(&self, endpoint: &Endpoint) -> bool {
        let listening = async {
            let mut said = String::new();
            let stream = tcp(endpoint).await.ok()?;
            stream
                .take(GREETING_MAX)
                .read_to_string(&mut said)
                .await
                .ok()?;
            said.contains(NO_ROOM_FOR_CLIENTS).then_some(())
        };
        self.tls.is_none() && matches!(timeout(GREETING_TIMEOUT, listening).await, Ok(Some(())))
    }

    /// Finds out whether the other side speaks TLS where it should not, or does not where it should, or wants a
    /// certificate: all of them may just close the connection.
    async fn probe(&self, endpoint: &Endpoint) -> Option<TlsProblem> {
        let mut stream = tcp(endpoint).await.ok()?;
        let Some(tls) = &self.tls else {
            let has_tls = tls::is_spoken_on(stream).await;
            return has_tls.then_some(TlsProblem::Expected);
        };
        stream.write_all(b"PING\r\n").await.ok()?;
        let mut first = [0; 1];
        if stream.read_exact(&mut first).await.is_ok() && b"+-".contains(&first[0]) {
            return Some(TlsProblem::Missing);
        }
        // Without a command, the last message of the other side cannot be lost to a reset.
        let mut stream = tls
            .connect(&endpoint.0, tcp(endpoint).await.ok()?)
            .await
            .ok()?;
        let error = stream.read_exact(&mut first).await.err()?;
        tls::problem_in(&error.into(), tls.has_identity())
    }
}

async fn tcp((host, port): &Endpoint) -> std::io::Result<TcpStream> {
    let addresses = lookup_host((host.as_str(), *port)).await?;
    // All at once: the first one may be of a network that leads nowhere.
    let attempts: Vec<_> = addresses
        .map(|address| TcpStream::connect(address).boxed())
        .collect();
    if attempts.is_empty() {
        return Err(std::io::Error::other(
            "failed to lookup address information",
        ));
    }
    let (stream, _) = select_ok(attempts).await?;
    // Without it, a small command waits for the acknowledgement of the previous one.
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}
