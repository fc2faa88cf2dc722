//! Opens connections to the Redis of the store, wherever it is now: at its address, where Sentinels say, or where the slot
//! of a partition is. `pool` and `subscriber` decide when to try again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{Cmd, ConnectionAddr, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo};
use tokio::time::timeout;

use super::barriers::Barriers;
use super::cluster::Cluster;
use super::cluster::partitions;
use super::failure::{Execution, Failure};
use super::info::ServerInfo;
use super::redirection::Redirection;
use super::sentinel::Sentinels;
use super::transport::{Endpoint, Transport};
use crate::config::{ClusterAddress, RedisAddress, RedisConfig, Secret, SentinelAddress};
use crate::store::Fault;

const REPLICA_OF_CLUSTER: &str =
    "a replica is known as the primary of some slots; a failover is not over";

/// Opens connections to the Redis of the store.
pub(super) struct Connector {
    transport: Arc<Transport>,
    target: Target,
    settings: RedisConnectionInfo,
    /// The URL of the store, without credentials.
    url: String,
}

/// How the Redis is found.
enum Target {
    At(Endpoint),
    By(Sentinels),
    /// The primary that has a partition of a cluster.
    Of(Arc<Cluster>, usize),
}

/// A connection for commands.
pub(super) struct Opened {
    pub(super) shared: MultiplexedConnection,
    /// What the Redis behind it has just reported about itself.
    pub(super) server: ServerInfo,
    /// Set by whoever finds that it cannot be used any more.
    pub(super) is_broken: Arc<AtomicBool>,
}

impl Connector {
    /// To the Redis at this address.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn to(address: &RedisAddress, config: &RedisConfig) -> Result<Self, Failure> {
        Ok(Self {
            transport: Arc::new(Transport::new(config, address.is_encrypted)?),
            target: Target::At((address.host.clone(), address.port)),
            settings: settings(address.database, &config.username, &config.password)?,
            url: config.with_user(address),
        })
    }

    /// To the primary that these Sentinels name.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn by(address: &SentinelAddress, config: &RedisConfig) -> Result<Self, Failure> {
        let of_sentinels = settings(0, &config.sentinel_username, &config.sentinel_password)?;
        Ok(Self {
            transport: Arc::new(Transport::new(config, address.is_encrypted)?),
            target: Target::By(Sentinels::new(address, of_sentinels)),
            settings: settings(address.database, &config.username, &config.password)?,
            url: config.with_user(address),
        })
    }

    /// To the primaries of the partitions of a cluster, in their order.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub(super) fn within(
        address: &ClusterAddress,
        config: &RedisConfig,
    ) -> Result<(Arc<Cluster>, Vec<Self>), Failure> {
        let transport = Arc::new(Transport::new(config, address.is_encrypted)?);
        let settings = settings(0, &config.username, &config.password)?;
        let url = config.with_user(address);
        let of_cluster = (Arc::clone(&transport), settings.clone());
        let cluster = Arc::new(Cluster::new(address, of_cluster, config.connections));
        let of_partition = |partition| Self {
            transport: Arc::clone(&transport),
            target: Target::Of(Arc::clone(&cluster), partition),
            settings: settings.clone(),
            url: url.clone(),
        };
        let connectors = (0..partitions::COUNT).map(of_partition).collect();
        Ok((cluster, connectors))
    }

    /// A connection for commands. The partitions of a cluster share theirs.
    pub(super) async fn open(&self) -> Result<Opened, Failure> {
        let Target::Of(cluster, partition) = &self.target else {
            return self.open_alone().await;
        };
        let endpoint = cluster.owner(*partition).await?;
        let within = self.timeout();
        let answer = cluster.sockets.answer(&endpoint, *partition, |socket| {
            Box::pin(async move {
                let reading = timeout(within, socket.report()).await;
                reading.unwrap_or_else(|_| Err(Failure::timed_out().before_any_command()))
            })
        });
        // If there is none, another primary may have taken over.
        let answered = answer.await;
        let (socket, server) = answered.inspect_err(|_| cluster.may_have_moved())?;
        if !server.is_primary() {
            cluster.may_have_moved();
            return Err(no_primary(REPLICA_OF_CLUSTER));
        }
        Ok(Opened {
            shared: socket.shared,
            server,
            is_broken: socket.is_broken,
        })
    }

    /// A connection for commands that shares its socket with no other one.
    pub(super) async fn open_alone(&self) -> Result<Opened, Failure> {
        let endpoint = self.endpoint().await?;
        let mut shared = self.transport.open(&endpoint, &self.settings).await?;
        if let Target::By(_) = &self.target {
            self.is_primary(&mut shared).await?;
        }
        let is_of_cluster = matches!(self.target, Target::Of(..));
        let reading = ServerInfo::read(&mut shared, is_of_cluster);
        let server = match timeout(self.timeout(), reading).await {
            Ok(read) => read.map_err(|error| Failure::of(&error).before_any_command())?,
            Err(_) => return Err(Failure::timed_out().before_any_command()),
        };
        if let (Target::Of(cluster, _), false) = (&self.target, server.is_primary()) {
            cluster.may_have_moved();
            return Err(no_primary(REPLICA_OF_CLUSTER));
        }
        Ok(Opened {
            shared,
            server,
            is_broken: Arc::default(),
        })
    }

    /// A connection to whichever Redis has the partition now, for a command that a node passed on to this endpoint.
    pub(super) async fn open_at(
        &self,
        endpoint: &Endpoint,
    ) -> Result<MultiplexedConnection, Failure> {
        match &self.target {
            Target::Of(cluster, partition) => {
                let opening = cluster.sockets.open(endpoint, *partition).await;
                let socket = opening.inspect_err(|_| cluster.may_have_moved())?;
                Ok(socket.shared)
            }
            Target::At(_) | Target::By(_) => self.transport.open(endpoint, &self.settings).await,
        }
    }

    /// The answer to a command on one key of a partition, also where its slot is on its way and the key has arrived.
    pub(super) async fn read<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
        command: &Cmd,
    ) -> Result<T, Failure> {
        let answer = command.query_async(connection).await;
        let failure = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => Failure::of(&error),
        };
        let Some(Redirection::Ask(endpoint)) = &failure.redirection else {
            return Err(failure);
        };
        // To read it again changes nothing.
        let passed_on = |error: Failure| failure.passed_on(error.before_any_command());
        let mut other = self.open_at(endpoint).await.map_err(passed_on)?;
        let mut asking = redis::pipe();
        asking.cmd("ASKING").ignore().add_command(command.clone());
        let asked = asking.query_async(&mut other).await;
        let (answer,) = asked.map_err(|error| passed_on(Failure::of_first(&error)))?;
        Ok(answer)
    }

    /// A connection for messages.
    pub(super) async fn open_pubsub(&self) -> Result<PubSub, Failure> {
        let endpoint = self.endpoint().await?;
        self.transport.open_pubsub(&endpoint, &self.settings).await
    }

    async fn endpoint(&self) -> Result<Endpoint, Failure> {
        match &self.target {
            Target::At(endpoint) => Ok(endpoint.clone()),
            Target::By(sentinels) => sentinels.primary(&self.transport).await,
            Target::Of(cluster, partition) => cluster.owner(*partition).await,
        }
    }

    /// Where the Redis was last, as far as that is known.
    pub(super) fn known_endpoint(&self) -> Option<Endpoint> {
        match &self.target {
            Target::At(endpoint) => Some(endpoint.clone()),
            Target::By(sentinels) => sentinels.states.primary(),
            Target::Of(cluster, partition) => {
                let topology = cluster.topology();
                topology.owner(*partition).map(|node| node.endpoint.clone())
            }
        }
    }

    /// The primary of a cluster that had the partition last, as far as that is known; none outside of one.
    pub(super) fn known_node(&self) -> Option<Endpoint> {
        match &self.target {
            Target::At(_) | Target::By(_) => None,
            Target::Of(..) => self.known_endpoint(),
        }
    }

    /// The Sentinels that name the Redis, and how to reach them; none if its address is known.
    pub(super) fn sentinels(&self) -> Option<(&Sentinels, &Transport)> {
        match &self.target {
            Target::At(_) | Target::Of(..) => None,
            Target::By(sentinels) => Some((sentinels, &self.transport)),
        }
    }

    /// The barriers of the primary that has the partition of a cluster; none outside of one.
    pub(super) async fn barriers(&self) -> Result<Option<Arc<Barriers>>, Failure> {
        match &self.target {
            Target::At(_) | Target::By(_) => Ok(None),
            Target::Of(cluster, partition) => {
                // As far as it is known: a barrier finds out whether it is at the Redis that it was meant for.
                let known = cluster.topology();
                let endpoint = match known.owner(*partition) {
                    Some(node) => node.endpoint.clone(),
                    None => cluster.owner(*partition).await?,
                };
                Ok(Some(cluster.barriers(endpoint)))
            }
        }
    }

    /// Another primary may have the partition of a cluster by now.
    pub(super) fn may_have_moved(&self) {
        if let Target::Of(cluster, _) = &self.target {
            cluster.may_have_moved();
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
            false => Err(no_primary(
                "the Sentinels name a replica as the primary; a failover is not over",
            )),
        }
    }
}

fn no_primary(reason: &'static str) -> Failure {
    Failure::new(Fault::Replica, Execution::NotDone, "it is no primary")
        .because(reason)
        .passing()
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
