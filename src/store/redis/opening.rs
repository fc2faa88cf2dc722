//! Opening the store: what it is made of, and what is refused at the start.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::task::AbortOnDropHandle;

use super::RedisStore;
use super::cluster::Cluster;
use super::cluster::partitions;
use super::connector::Connector;
use super::failure::Failure;
use super::keys::RedisKeys;
use super::listing::Snapshots;
use super::node::Node;
use super::pool::Pool;
use super::probe;
use super::pubsub::PubSub;
use super::recovery::{FleetState, QuorumMember, Recovery};
use super::refused_right::RefusedRight;
use super::replication::Replication;
use super::sentinel::switches;
use crate::config::{ClusterAddress, QuorumNode, RedisAddress, RedisConfig, SentinelAddress};
use crate::domain::Attempt;
use crate::store::StoreError;
use crate::store::pace::Pace;

impl RedisStore {
    /// Opens the Redis at `address` and checks it. `lease_max` is the longest lease that may have been granted there.
    ///
    /// # Errors
    /// The Redis is configured in a way that would lose leases; or it refuses this process, until the configuration of
    /// one of them is changed. One that does not answer is no error here.
    pub async fn open(
        address: &RedisAddress,
        config: &RedisConfig,
        lease_max: Duration,
    ) -> Result<Self, StoreError> {
        let connector = Connector::to(address, config).map_err(unusable)?;
        Self::over_one(connector, address.database, config, lease_max).await
    }

    /// The same with the Redis that these Sentinels name.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub async fn open_by_sentinels(
        address: &SentinelAddress,
        config: &RedisConfig,
        lease_max: Duration,
    ) -> Result<Self, StoreError> {
        let connector = Connector::by(address, config).map_err(unusable)?;
        Self::over_one(connector, address.database, config, lease_max).await
    }

    /// The same with a Redis Cluster.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub async fn open_cluster(
        address: &ClusterAddress,
        config: &RedisConfig,
        lease_max: Duration,
    ) -> Result<Self, StoreError> {
        let (cluster, connectors) = Connector::within(address, config).map_err(unusable)?;
        let mut builder = NodeBuilder::new(0, partitions::COUNT, config, lease_max);
        let connectors = connectors.into_iter().enumerate();
        let nodes = connectors.map(|(partition, connector)| {
            builder.node(partition, RedisKeys::of_partition(partition), connector)
        });
        Self::over(nodes.collect::<Vec<_>>(), Some(cluster), config).await
    }

    /// Opens the nodes of a quorum, which wait for each other's leases if they are empty. `lease_max` is the longest time
    /// for which a node may have to keep a lease. Also returns what is wrong with each node that cannot vote until
    /// somebody changes that.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub async fn open_nodes(
        addresses: &[QuorumNode],
        config: &RedisConfig,
        lease_max: Duration,
    ) -> Result<Vec<(Self, Option<StoreError>)>, StoreError> {
        let databases = addresses.iter().map(|address| match address {
            QuorumNode::Redis(address) => address.database,
            QuorumNode::Sentinel(address) => address.database,
        });
        let databases: Vec<_> = databases.collect();
        let members = QuorumMember::all(&databases, lease_max, config.check_interval);
        let mut opening = Vec::new();
        for ((address, database), member) in addresses.iter().zip(databases).zip(members) {
            let connector = match address {
                QuorumNode::Redis(address) => Connector::to(address, config),
                QuorumNode::Sentinel(address) => Connector::by(address, config),
            };
            let mut builder = NodeBuilder::new(database, 1, config, lease_max);
            builder.member = Some(member);
            builder.fleets[0].set_node(address.to_string());
            let node = builder.node(0, RedisKeys::default(), connector.map_err(unusable)?);
            opening.push(Self::checked([node], None, config));
        }
        Ok(join_all(opening).await)
    }

    async fn over_one(
        connector: Connector,
        database: u32,
        config: &RedisConfig,
        lease_max: Duration,
    ) -> Result<Self, StoreError> {
        let mut builder = NodeBuilder::new(database, 1, config, lease_max);
        let node = builder.node(0, RedisKeys::default(), connector);
        Self::over([node], None, config).await
    }

    async fn over(
        nodes: impl Into<Box<[Node]>>,
        cluster: Option<Arc<Cluster>>,
        config: &RedisConfig,
    ) -> Result<Self, StoreError> {
        match Self::checked(nodes, cluster, config).await {
            (store, None) => Ok(store),
            (_, Some(problem)) => Err(problem),
        }
    }

    /// The store, and what is wrong with it until somebody changes that.
    async fn checked(
        nodes: impl Into<Box<[Node]>>,
        cluster: Option<Arc<Cluster>>,
        config: &RedisConfig,
    ) -> (Self, Option<StoreError>) {
        let store = Self {
            nodes: nodes.into(),
            cluster,
            last_health: Mutex::default(),
            check_interval: config.check_interval,
            pace: Pace::of_listings(),
            count_pace: Pace::of_counts(),
            snapshots: Snapshots::default(),
        };
        let check = store.check().await;
        if let Err(failure) = &check
            && failure.is_lasting
        {
            // Only at the start: later it may be repaired without anybody restarting this process.
            let problem = StoreError::unavailable(failure.fault, failure.sentence());
            return (store, Some(problem));
        }
        store.log_changes(&check);
        let refusal = store.refusal();
        let problem = refusal.map(|(fault, why)| StoreError::unavailable(fault, why));
        (store, problem)
    }
}

/// What the nodes of a store have in common.
struct NodeBuilder<'a> {
    fleets: Vec<Arc<FleetState>>,
    messages: Arc<PubSub>,
    refused_right: Arc<RefusedRight>,
    config: &'a RedisConfig,
    lease_max: Duration,
    /// The place of the only node among those of a quorum.
    member: Option<QuorumMember>,
}

impl<'a> NodeBuilder<'a> {
    fn new(database: u32, nodes: usize, config: &'a RedisConfig, lease_max: Duration) -> Self {
        let fleets = FleetState::of_partitions(nodes, config.check_interval);
        let process = Attempt::random().0;
        let messages = PubSub::new(process, database, fleets.clone());
        Self {
            fleets,
            messages: Arc::new(messages),
            refused_right: Arc::default(),
            config,
            lease_max,
            member: None,
        }
    }

    fn node(&mut self, number: usize, keys: RedisKeys, connector: Connector) -> Node {
        let (config, messages) = (self.config, Arc::clone(&self.messages));
        let fleet = &self.fleets[number];
        let recovery = Recovery::new(
            config,
            self.lease_max,
            keys,
            Arc::clone(fleet),
            Arc::clone(&messages),
            self.member.take(),
        );
        let recovery = Arc::new(recovery);
        // The partitions of a cluster share their sockets.
        let connections = keys.partition().map_or(config.connections, |_| 1);
        let pool = Arc::new(Pool::new(connector, connections, Arc::clone(&recovery)));
        let replication = Replication::new(config, keys, &pool, &recovery);
        let probing = probe::run(Arc::downgrade(&pool), Arc::clone(&recovery));
        let mut tasks = vec![AbortOnDropHandle::new(tokio::spawn(probing))];
        if pool.connector().sentinels().is_some() {
            let listening =
                switches::run(pool.connector(), Arc::clone(fleet), Arc::downgrade(&pool));
            tasks.push(AbortOnDropHandle::new(tokio::spawn(listening)));
        }
        if let Some(replication) = &replication {
            let probing = Arc::clone(replication).probe();
            tasks.push(AbortOnDropHandle::new(tokio::spawn(probing)));
        }
        Node {
            keys,
            pool,
            recovery,
            messages,
            refused_right: Arc::clone(&self.refused_right),
            replication,
            _tasks: tasks,
            mismatches: AtomicU64::new(0),
            fencing_regressions: AtomicU64::new(0),
            announcing: tokio::sync::Mutex::default(),
        }
    }
}

fn unusable(failure: Failure) -> StoreError {
    StoreError::unavailable(failure.fault, failure.explanation())
}
