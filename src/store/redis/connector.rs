//! Opens connections to Redis: name resolution, TCP, TLS, and the greeting of the client library. Says in words why one
//! could not be opened; `pool` and `subscriber` decide when to try again.
//!
//! The client library could open them too. But it reads all root certificates of the system for each connection, does
//! not do so for messages under a time limit, and cannot verify another name than the host's.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    RedisResult,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::failure::{Failure, Fate};
use super::tls::{self, Tls, TlsProblem};
use crate::config::{RedisAddress, RedisConfig, StoreUrl};
use crate::store::Fault;

/// How long the search for the cause of a failure may take.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Opens connections to one Redis.
pub(super) struct Connector {
    address: RedisAddress,
    settings: RedisConnectionInfo,
    config: AsyncConnectionConfig,
    timeout: Duration,
    /// None without TLS.
    tls: Option<Tls>,
}

/// What Redis' protocol travels on.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

type Stream = Box<dyn ByteStream>;

impl Connector {
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn new(address: &RedisAddress, config: &RedisConfig) -> Result<Self, Failure> {
        let tls = match address.is_encrypted {
            true => Some(Tls::new(&address.host, &config.tls)?),
            false => None,
        };
        let settings = settings(address, config)
            .map_err(|error| Failure::new(Fault::Refused, Fate::NotDone, error.to_string()))?;
        // Every command has its own deadline, so the connection needs none.
        let connection = AsyncConnectionConfig::new().set_response_timeout(None);
        Ok(Self {
            address: address.clone(),
            settings,
            config: connection,
            timeout: config.connect_timeout,
            tls,
        })
    }

    /// A connection for commands.
    pub(super) async fn open(&self) -> Result<MultiplexedConnection, Failure> {
        self.in_time(async {
            let (stream, config) = (self.stream().await?, self.config.clone());
            let opening = MultiplexedConnection::new_with_config(&self.settings, stream, config);
            let (connection, driver) = opening.await?;
            // It ends with the last clone of the connection.
            tokio::spawn(driver);
            Ok(connection)
        })
        .await
    }

    /// A connection for messages.
    pub(super) async fn open_pubsub(&self) -> Result<PubSub, Failure> {
        self.in_time(async { PubSub::new(&self.settings, self.stream().await?).await })
            .await
    }

    /// The URL of the store, without credentials.
    pub(super) fn url(&self) -> String {
        StoreUrl::Redis(self.address.clone()).to_string()
    }

    /// How long opening a connection may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn in_time<T>(
        &self,
        opening: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, Failure> {
        match timeout(self.timeout, opening).await {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(error)) => Err(self.diagnosed(&error).await),
            Err(_) => Err(self.diagnosed(&timed_out()).await),
        }
    }

    async fn stream(&self) -> RedisResult<Stream> {
        let stream = self.tcp().await?;
        Ok(match &self.tls {
            Some(tls) => Box::new(tls.connect(stream).await?),
            None => Box::new(stream),
        })
    }

    async fn tcp(&self) -> std::io::Result<TcpStream> {
        let RedisAddress { host, port, .. } = &self.address;
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

    /// Why a connection could not be opened. Nothing was done over it.
    async fn diagnosed(&self, error: &RedisError) -> Failure {
        let has_identity = self.tls.as_ref().is_some_and(Tls::has_identity);
        let failure = Failure::of(error).before_any_command();
        let mut problem = tls::problem_in(error, has_identity);
        let may_be_tls = matches!(failure.fault, Fault::Io | Fault::Timeout | Fault::Protocol);
        if problem.is_none() && may_be_tls && !error.is_connection_refusal() {
            problem = timeout(PROBE_TIMEOUT, self.probe()).await.ok().flatten();
        }
        match problem {
            Some(problem) => Failure::of_tls(problem, error.to_string()),
            None => failure,
        }
    }

    /// Finds out whether the other side speaks TLS where it should not, or does not where it should, or wants a
    /// certificate: all of them may just close the connection.
    async fn probe(&self) -> Option<TlsProblem> {
        let mut stream = self.tcp().await.ok()?;
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
        let mut stream = tls.connect(self.tcp().await.ok()?).await.ok()?;
        let error = stream.read_exact(&mut first).await.err()?;
        tls::problem_in(&error.into(), tls.has_identity())
    }
}

fn settings(address: &RedisAddress, config: &RedisConfig) -> RedisResult<RedisConnectionInfo> {
    // Only the settings are used; the address is not.
    let info = ConnectionAddr::Tcp(address.host.clone(), address.port).into_connection_info()?;
    let mut settings = info
        .redis_settings()
        .clone()
        .set_db(i64::from(address.database))
        .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    if let Some(username) = &config.username {
        settings = settings.set_username(username);
    }
    if let Some(password) = &config.password {
        settings = settings.set_password(password.expose());
    }
    Ok(settings)
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}
