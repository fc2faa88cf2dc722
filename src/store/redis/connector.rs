//! Opens connections to the Redis of the store, wherever it is now: at its address, or where Sentinels say. `pool` and
//! `subscriber` decide when to try again.

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use tokio::time::timeout;

use super::failure::{Failure, Fate};
use super::sentinel::Sentinels;
use super::transport::{Endpoint, Transport};
use crate::config::{RedisAddress, RedisConfig, Secret, SentinelAddress, StoreUrl};
use crate::store::Fault;

/// Opens connections to the Redis of the store.
pub(super) struct Connector {
    transport: Transport,
    target: Target,
    settings: RedisConnectionInfo,
    /// The URL of the store, without credentials.
    url: String,
}

/// How the Redis is found.
enum Target {
    At(Endpoint),
    By(Sentinels),
}

impl Connector {
    /// To the Redis at this address.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn to(address: &RedisAddress, config: &RedisConfig) -> Result<Self, Failure> {
        Ok(Self {
            transport: Transport::new(config, address.is_encrypted)?,
            target: Target::At((address.host.clone(), address.port)),
            settings: settings(address.database, &config.username, &config.password)?,
            url: StoreUrl::Redis(address.clone()).to_string(),
        })
    }

    /// To the primary that these Sentinels name.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn by(address: &SentinelAddress, config: &RedisConfig) -> Result<Self, Failure> {
        let of_sentinels = settings(0, &config.sentinel_username, &config.sentinel_password)?;
        Ok(Self {
            transport: Transport::new(config, address.is_encrypted)?,
            target: Target::By(Sentinels::new(address, of_sentinels)),
            settings: settings(address.database, &config.username, &config.password)?,
            url: address.to_string(),
        })
    }

    /// A connection for commands.
    pub(super) async fn open(&self) -> Result<MultiplexedConnection, Failure> {
        match &self.target {
            Target::At(endpoint) => self.transport.open(endpoint, &self.settings).await,
            Target::By(sentinels) => {
                let endpoint = sentinels.primary(&self.transport).await?;
                let mut connection = self.transport.open(&endpoint, &self.settings).await?;
                self.is_primary(&mut connection).await?;
                Ok(connection)
            }
        }
    }

    /// A connection for messages.
    pub(super) async fn open_pubsub(&self) -> Result<PubSub, Failure> {
        let endpoint = match &self.target {
            Target::At(endpoint) => endpoint,
            Target::By(sentinels) => &sentinels.primary(&self.transport).await?,
        };
        self.transport.open_pubsub(endpoint, &self.settings).await
    }

    /// The Sentinels that name the Redis, and how to reach them; none if its address is known.
    pub(super) fn sentinels(&self) -> Option<(&Sentinels, &Transport)> {
        match &self.target {
            Target::At(_) => None,
            Target::By(sentinels) => Some((sentinels, &self.transport)),
        }
    }

    /// The URL of the store, without credentials.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// How long one step of opening a connection may take.
    pub(super) fn timeout(&self) -> std::time::Duration {
        self.transport.timeout()
    }

    /// Whether the Redis that Sentinels named takes writes. One that was just promoted or demoted may not know it yet.
    async fn is_primary(&self, connection: &mut MultiplexedConnection) -> Result<(), Failure> {
        let mut info = redis::cmd("INFO");
        let asking = info.arg("replication").query_async::<String>(connection);
        let info = match timeout(self.timeout(), asking).await {
            Ok(Ok(info)) => info,
            Ok(Err(error)) => return Err(Failure::of(&error).before_any_command()),
            Err(_) => return Err(Failure::timed_out().before_any_command()),
        };
        match info.lines().any(|line| line.trim_end() == "role:master") {
            true => Ok(()),
            false => {
                let detail = "the Redis that the Sentinels name is no primary";
                Err(Failure::new(Fault::Replica, Fate::NotDone, detail)
                    .because("the Sentinels name a replica as the primary; a failover is not over")
                    .passing())
            }
        }
    }
}

fn settings(
    database: u32,
    username: &Option<String>,
    password: &Option<Secret>,
) -> Result<RedisConnectionInfo, Failure> {
    // Only the settings are used; the address is not.
    let info = ConnectionAddr::Tcp(String::new(), 0).into_connection_info();
    let info = info.map_err(|error| Failure::of(&error))?;
    let mut settings = info
        .redis_settings()
        .clone()
        .set_db(i64::from(database))
        .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    if let Some(username) = username {
        settings = settings.set_username(username);
    }
    if let Some(password) = password {
        settings = settings.set_password(password.expose());
    }
    Ok(settings)
}
