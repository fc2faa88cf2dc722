//! Several Leasehold processes on one Redis.

use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::RwLockWriteGuard;

use super::client::{Addresses, Client};
use crate::process::Serving;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::{TURN, eventually_within};

/// How long places are kept, unless a test sets it. It is short, so that a test can wait for the end.
const PLACE_KEPT: &str = "2s";

/// No periodic check disturbs the counting of commands, thousands of refusals are not logged, and operations do not
/// time out under load on a busy machine.
const ARGUMENTS: [&str; 14] = [
    "--operation-timeout",
    "10s",
    "--waiting-wait-max",
    "10m",
    "--server-drain-delay",
    "0s",
    "--redis-check-interval",
    "1h",
    "--log-requests",
    "off",
    "--server-connections-max",
    "15000",
    "--server-connections-per-peer-max",
    "15000",
];

/// Processes with the Redis that they share.
pub(super) struct Fleet {
    processes: Vec<Serving>,
    stores: Vec<String>,
    place_kept: &'static str,
    pub(super) addresses: Addresses,
    pub(super) redis: RedisServer,
    _turn: RwLockWriteGuard<'static, ()>,
}

/// The store URL of a Redis.
pub(super) fn store_of(redis: &RedisServer) -> String {
    format!("redis://{}", redis.address())
}

impl Fleet {
    /// Starts `count` processes.
    pub(super) async fn start(count: usize) -> Self {
        Self::start_keeping(PLACE_KEPT, count).await
    }

    /// Starts `count` processes, which keep places for `place_kept`.
    pub(super) async fn start_keeping(place_kept: &'static str, count: usize) -> Self {
        Self::start_at(place_kept, async |redis| vec![store_of(redis); count]).await
    }

    /// Starts one process for each store URL that `stores` returns for the started Redis.
    pub(super) async fn start_with(stores: impl AsyncFnOnce(&RedisServer) -> Vec<String>) -> Self {
        Self::start_at(PLACE_KEPT, stores).await
    }

    async fn start_at(
        place_kept: &'static str,
        stores: impl AsyncFnOnce(&RedisServer) -> Vec<String>,
    ) -> Self {
        let turn = TURN.write().await;
        let redis = RedisServer::start(RedisOptions::forgetful()).await;
        let stores = stores(&redis).await;
        let mut fleet = Self {
            processes: Vec::new(),
            stores,
            place_kept,
            addresses: Addresses::default(),
            redis,
            _turn: turn,
        };
        for number in 0..fleet.stores.len() {
            let process = fleet.launch(number);
            fleet.processes.push(process);
        }
        fleet
    }

    fn launch(&self, number: usize) -> Serving {
        let own = [
            "--store",
            &self.stores[number],
            "--waiting-place-kept",
            self.place_kept,
        ];
        let arguments = [&own[..], &ARGUMENTS].concat();
        let process = tokio::task::block_in_place(|| Serving::start(&arguments));
        let address = process.url.strip_prefix("http://").expect("an address");
        let address = address.parse().expect("an address");
        self.addresses.set(number, address);
        process
    }

    pub(super) fn client(&self, process: usize, lock: &str) -> Client {
        Client::new(&self.addresses, process, lock)
    }

    /// The URL of a process, for other HTTP clients.
    pub(super) fn url(&self, process: usize) -> &str {
        &self.processes[process].url
    }

    pub(super) fn signal(&self, process: usize, signal: Signal) {
        self.processes[process].signal(signal);
    }

    /// Kills a process, as in a crash. Returns the name of its queues in Redis.
    pub(super) async fn kill(&mut self, process: usize) -> String {
        let before = self.names().await;
        self.signal(process, Signal::SIGKILL);
        self.processes[process].wait();
        eventually_within(
            Duration::from_secs(5),
            "its channel is closed",
            async || {
                let left = self.names().await;
                let mut gone = before.iter().filter(|name| !left.contains(name));
                gone.next().cloned()
            },
        )
        .await
    }

    /// Restarts a killed process.
    pub(super) fn restart(&mut self, process: usize) {
        self.processes[process] = self.launch(process);
    }

    /// Starts another process in the place of this one, then stops this one with SIGTERM and waits until it has ended.
    pub(super) async fn replace(&mut self, process: usize, within: Duration) -> ExitStatus {
        let replacement = self.launch(process);
        let mut replaced = std::mem::replace(&mut self.processes[process], replacement);
        replaced.signal(Signal::SIGTERM);
        eventually_within(within, "the replaced process ends", async || {
            replaced.has_ended().then_some(())
        })
        .await;
        replaced.wait()
    }

    /// The names of all running processes in Redis, which are also those of their wake-up channels.
    async fn names(&self) -> Vec<String> {
        let answer = self
            .redis
            .command(&["PUBSUB", "CHANNELS", "lh:1:wake:*"])
            .await;
        let channels: Vec<String> = redis::from_redis_value(answer).expect("channels");
        let names = channels.iter().map(|channel| channel.rsplit(':').next());
        names.flatten().map(str::to_owned).collect()
    }

    /// The keys of leases in Redis.
    pub(super) async fn leases(&self) -> Vec<String> {
        self.keys("lh:1:{*}:[lhs]:*").await
    }

    /// The keys of queues in Redis.
    pub(super) async fn queues(&self) -> Vec<String> {
        self.keys("lh:1:{*}:[qw]:*").await
    }

    /// The keys of tickets in Redis, including those of kept places.
    async fn tickets(&self) -> Vec<String> {
        self.keys("lh:1:{*}:t:*").await
    }

    /// Whether Redis still has waiters of this process in the queue of the lock.
    pub(super) async fn has_waiters_of(&self, process: &str, lock: &str) -> bool {
        let keys = self.queues().await;
        if keys.iter().any(|key| key.contains(process)) {
            return true;
        }
        let end = format!(":q:{lock}");
        let Some(queue) = keys.iter().find(|key| key.ends_with(&end)) else {
            return false;
        };
        let score = self.redis.command(&["ZSCORE", queue, process]).await;
        score != redis::Value::Nil
    }

    async fn keys(&self, pattern: &str) -> Vec<String> {
        let keys = self.redis.keys(0, pattern).await.into_iter();
        keys.map(|key| String::from_utf8_lossy(&key).into_owned())
            .collect()
    }

    /// Waits until there are no leases and no queues.
    pub(super) async fn becomes_free(&self, within: Duration) {
        let mut client = self.client(0, "");
        eventually_within(within, "no lock is held or waited for", async || {
            match client.ask_at("GET", "/locks", "").await {
                Ok(answer) => answer.json()["locks"].as_array()?.is_empty().then_some(()),
                // The process has ended.
                Err(_) => {
                    client.move_on();
                    None
                }
            }
        })
        .await;
        eventually_within(within, "nothing is left of queues", async || {
            self.queues().await.is_empty().then_some(())
        })
        .await;
    }

    /// Waits until there are no kept places either.
    pub(super) async fn becomes_empty(&self, within: Duration) {
        self.becomes_free(within).await;
        eventually_within(within, "nothing is left of waiters", async || {
            self.tickets().await.is_empty().then_some(())
        })
        .await;
    }

    /// The value of one metric of a process.
    pub(super) async fn figure(&self, process: usize, name: &str) -> f64 {
        let mut client = self.client(process, "");
        let answer = client
            .ask_at("GET", "/metrics", "")
            .await
            .expect("it lives");
        let text = String::from_utf8(answer.body).expect("text");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    }
}
