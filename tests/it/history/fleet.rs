//! The processes under test, each behind its own proxies, and the Redis that they share, or the nodes of a quorum; or
//! processes on a cluster or on a Redis with Sentinels, which they reach directly; or one process with its directory.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::clock::Clock;
use super::record::Micros;
use super::recorder::micros;
use super::watched::Watched;
use crate::process::{Serving, leasehold};
use crate::support::cluster::RedisCluster;
use crate::support::disk::FaultyDisk;
use crate::support::proxy::Proxy;
use crate::support::redis_server::{Persistence, RedisOptions, RedisServer};
use crate::support::stores;
use crate::waiters::client::Addresses;

/// How long places are kept.
pub(super) const PLACE_KEPT: Duration = Duration::from_secs(3);

/// Request logging is off, because there are thousands of refusals.
pub(super) const ARGUMENTS: [&str; 6] = [
    "--waiting-place-kept",
    "3s",
    "--server-drain-delay",
    "0s",
    "--log-requests",
    "off",
];

/// Processes and their store.
#[derive(Default)]
pub(super) struct Fleet {
    pub(super) processes: Vec<Serving>,
    pub(super) addresses: Addresses,
    /// The Redis, if there is one, or the nodes of a quorum.
    pub(super) stores: Vec<Store>,
    /// The cluster, if there is one.
    pub(super) cluster: Option<RedisCluster>,
    /// The Redis that Sentinels watch, if there is one.
    pub(super) watched: Option<Watched>,
    /// How many replicas have to confirm what is reported.
    wait_replicas: usize,
    /// The directory of the file store, if there is one.
    pub(super) directory: Option<Directory>,
}

/// A directory on a disk that can lose power.
pub(super) struct Directory {
    directory: TempDir,
    disk: FaultyDisk,
    _records: TempDir,
}

/// A Redis, and a proxy to it for each process.
pub(super) struct Store {
    pub(super) redis: RedisServer,
    /// One for each process, and one that no network fault affects.
    pub(super) proxies: Vec<Proxy>,
    pub(super) clock: Option<Clock>,
    pub(super) persistence: Persistence,
}

impl Fleet {
    /// One process with a store of its own.
    pub(super) fn in_memory() -> Self {
        Self::default().with(1)
    }

    /// One process on a directory.
    pub(super) fn on_file() -> Self {
        let (directory, records) = (stores::directory(), stores::directory());
        let directory = Directory {
            directory,
            disk: FaultyDisk::new(records.path()),
            _records: records,
        };
        let fleet = Self {
            directory: Some(directory),
            ..Self::default()
        };
        fleet.with(1)
    }

    /// `count` processes on a cluster of three primaries, each with a replica.
    pub(super) async fn on_cluster(count: usize) -> Self {
        const PRIMARIES: usize = 3;
        let options = RedisOptions::forgetful();
        let mut cluster = RedisCluster::start(PRIMARIES, options.clone()).await;
        for primary in 0..PRIMARIES {
            cluster.replica(primary, options.clone()).await;
        }
        let fleet = Self {
            cluster: Some(cluster),
            ..Self::default()
        };
        fleet.with(count)
    }

    /// `count` processes on a Redis that Sentinels watch.
    pub(super) async fn on_sentinels(count: usize, wait_replicas: usize) -> Self {
        let fleet = Self {
            watched: Some(Watched::start(count).await),
            wait_replicas,
            ..Self::default()
        };
        fleet.with(count)
    }

    /// `count` processes on a Redis, or on a quorum of several.
    pub(super) async fn on_redis(
        nodes: usize,
        count: usize,
        persistence: Persistence,
        has_clock: bool,
    ) -> Self {
        let mut fleet = Self::default();
        for _ in 0..nodes {
            let store = Store::start(count, persistence, has_clock).await;
            fleet.stores.push(store);
        }
        fleet.with(count)
    }

    /// The same with `count` processes.
    fn with(mut self, count: usize) -> Self {
        for number in 0..count {
            let process = self.launch(number);
            self.processes.push(process);
        }
        self
    }

    fn launch(&self, number: usize) -> Serving {
        let mut command = leasehold(&[]);
        let stores = self.stores.iter();
        let urls = stores.map(|store| format!("redis://{}", store.proxies[number].address()));
        let urls: Vec<_> = urls.collect();
        let store = if let Some(cluster) = &self.cluster {
            cluster.url()
        } else if let Some(watched) = &self.watched {
            watched.url(number)
        } else if let Some(directory) = &self.directory {
            directory.disk.attach(&mut command);
            format!("file:{}", directory.directory.path().display())
        } else {
            match &urls[..] {
                [] => "memory:".to_owned(),
                [one] => one.clone(),
                [_, ..] => format!("quorum:{}", urls.join(",")),
            }
        };
        let replicas = self.wait_replicas.to_string();
        let own = ["--store", &store, "--redis-wait-replicas", &replicas];
        let arguments = [&own[..], &ARGUMENTS].concat();
        let process = tokio::task::block_in_place(|| Serving::start_as(command, &arguments));
        let address = process.url.strip_prefix("http://").expect("an address");
        self.addresses
            .set(number, address.parse().expect("an address"));
        process
    }

    /// Whether the processes use a quorum.
    pub(super) fn is_quorum(&self) -> bool {
        self.stores.len() > 1
    }

    /// The Redis that processes reach directly: the nodes of a cluster, or the primary and its replicas.
    pub(super) fn direct(&self) -> &[RedisServer] {
        let of_cluster = self.cluster.as_ref().map(|cluster| &cluster.nodes);
        let watched = self.watched.as_ref().map(|watched| &watched.servers);
        of_cluster.or(watched).map_or(&[], Vec::as_slice)
    }

    /// The Redis, or one of them.
    pub(super) fn any_redis(&self) -> Option<&RedisServer> {
        let of_stores = self.stores.first().map(|store| &store.redis);
        of_stores.or(self.direct().first())
    }

    /// Kills a process, as in a crash.
    pub(super) fn kill(&mut self, process: usize) {
        self.processes[process].signal(Signal::SIGKILL);
        tokio::task::block_in_place(|| self.processes[process].wait());
    }

    /// Restarts a killed process.
    pub(super) fn restart(&mut self, process: usize) {
        self.processes[process] = self.launch(process);
    }

    /// Whether a process is really stopped by the system.
    pub(super) fn is_stopped(&self, process: usize) -> bool {
        let path = format!("/proc/{}/stat", self.processes[process].pid());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('T'))
    }

    /// The processes that ended without being killed.
    pub(super) fn crashed(&mut self) -> Vec<usize> {
        let processes = self.processes.iter_mut().enumerate();
        let ended = processes.filter_map(|(number, process)| process.has_ended().then_some(number));
        ended.collect()
    }
}

impl Directory {
    /// See [`FaultyDisk::lose_power`].
    pub(super) fn lose_power(&self, choose: impl FnMut(usize) -> usize) -> usize {
        let file = self.directory.path().join("leases.redb");
        self.disk.lose_power(&file, choose)
    }
}

impl Store {
    async fn start(processes: usize, persistence: Persistence, has_clock: bool) -> Self {
        let clock = has_clock.then(Clock::build);
        let redis = RedisServer::start(options(persistence, clock.as_ref())).await;
        let mut proxies = Vec::new();
        for _ in 0..=processes {
            proxies.push(Proxy::start(redis.address()).await);
        }
        Self {
            redis,
            proxies,
            clock,
            persistence,
        }
    }

    /// The address of a proxy to Redis that stays the same when Redis is replaced.
    pub(super) fn own_way(&self) -> SocketAddr {
        self.proxies.last().expect("there is one more").address()
    }

    /// Another Redis of the same kind.
    pub(super) async fn another(&self) -> RedisServer {
        RedisServer::start(options(self.persistence, self.clock.as_ref())).await
    }
}

fn options(persistence: Persistence, clock: Option<&Clock>) -> RedisOptions {
    RedisOptions {
        persistence,
        environment: clock.map(Clock::environment).unwrap_or_default(),
        ..RedisOptions::default()
    }
}

/// [`PLACE_KEPT`] as it is recorded.
pub(super) fn place_kept() -> Micros {
    micros(PLACE_KEPT)
}
