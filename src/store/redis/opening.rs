//! Opening the store: what it is made of, and what is refused at the start.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use super::RedisStore;
use super::connector::Connector;
use super::failure::Failure;
use super::listing::Snapshots;
use super::node::Node;
use super::pool::Pool;
use super::probe;
use super::pubsub::PubSub;
use super::recovery::{FleetState, Recovery};
use super::replication::Replication;
use super::switches;
use crate::config::{RedisAddress, RedisConfig, SentinelAddress};
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
        Self::over(
            Connector::to(address, config),
            address.database,
            config,
            lease_max,
        )
        .await
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
        Self::over(
            Connector::by(address, config),
            address.database,
            config,
            lease_max,
        )
        .await
    }

    async fn over(
        connector: Result<Connector, Failure>,
        database: u32,
        config: &RedisConfig,
        lease_max: Duration,
    ) -> Result<Self, StoreError> {
        let connector = connector
            .map_err(|failure| StoreError::unavailable(failure.fault, failure.explanation()))?;
        let fleet = Arc::new(FleetState::new(config.check_interval));
        let process = Attempt::random().0;
        let messages = PubSub::new(process, database, Arc::clone(&fleet));
        let messages = Arc::new(messages);
        let fleet_of_switches = Arc::clone(&fleet);
        let recovery = Recovery::new(config, lease_max, fleet, Arc::clone(&messages));
        let recovery = Arc::new(recovery);
        let pool = Pool::new(connector, config.connections, Arc::clone(&recovery));
        let pool = Arc::new(pool);
        let replication = Replication::new(config, &pool, &recovery);
        let probing = probe::run(Arc::downgrade(&pool), Arc::clone(&recovery));
        let listening = switches::run(pool.connector(), fleet_of_switches, Arc::downgrade(&pool));
        let mut tasks = vec![
            AbortOnDropHandle::new(tokio::spawn(probing)),
            AbortOnDropHandle::new(tokio::spawn(listening)),
        ];
        if let Some(replication) = &replication {
            let probing = Arc::clone(replication).probe();
            tasks.push(AbortOnDropHandle::new(tokio::spawn(probing)));
        }
        let node = Node {
            pool,
            recovery,
            messages,
            replication,
            _tasks: tasks,
            mismatches: AtomicU64::new(0),
            announcing: tokio::sync::Mutex::default(),
        };
        let store = Self {
            node,
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
            return Err(StoreError::unavailable(failure.fault, failure.sentence()));
        }
        store.log_changes(&check);
        match store.node.recovery.refusal() {
            Some((fault, why)) => Err(StoreError::unavailable(fault, why)),
            None => Ok(store),
        }
    }
}
