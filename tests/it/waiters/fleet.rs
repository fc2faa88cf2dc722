//! Several Leasehold processes on one Redis.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::NamedTempFile;
use tokio::sync::RwLockWriteGuard;

use super::client::{Addresses, Client};
use crate::process::{Serving, leasehold};
use crate::support::certificates::Authority;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::tls_tunnel::TlsTunnel;
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

/// The key of a fleet that wants one.
const KEY: &str = "0b9d2f4c6a8e1d3f5b7a9c0e2d4f6a8b";
/// The path of the binary of a former release: a fleet with TLS and a key begins with it.
const FORMER_VARIABLE: &str = "LEASEHOLD_FORMER";

/// TLS and a key, which the processes of a fleet want from clients.
struct Protection {
    authority: Authority,
    certificate: String,
    certificate_key: String,
    api_key: NamedTempFile,
    /// Clients do not speak TLS themselves. A tunnel lives as long as the fleet, because the process behind it serves its
    /// connections until it ends.
    tunnels: Vec<TlsTunnel>,
}

impl Protection {
    fn new() -> Self {
        let authority = Authority::new();
        let files = authority.files_for("localhost");
        let mut api_key = NamedTempFile::new().expect("a temporary file");
        api_key.write_all(KEY.as_bytes()).expect("a writable file");
        Self {
            authority,
            certificate: files.certificate,
            certificate_key: files.key,
            api_key,
            tunnels: Vec::new(),
        }
    }

    fn arguments(&self) -> [&str; 6] {
        let api_key = self.api_key.path().to_str().expect("a path in UTF-8");
        [
            "--server-tls-cert-file",
            &self.certificate,
            "--server-tls-key-file",
            &self.certificate_key,
            "--api-key-file",
            api_key,
        ]
    }

    /// Where clients that do not speak TLS reach a process.
    fn tunnel_to(&mut self, process: SocketAddr) -> SocketAddr {
        let tunnel = TlsTunnel::start(process, &self.authority);
        let address = tunnel.address;
        self.tunnels.push(tunnel);
        address
    }
}

/// Processes with the Redis that they share.
pub(super) struct Fleet {
    processes: Vec<Serving>,
    stores: Vec<String>,
    place_kept: &'static str,
    protection: Option<Protection>,
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
        Self::start_at(place_kept, None, async |redis| vec![store_of(redis); count]).await
    }

    /// Starts `count` processes that speak TLS and want a key. They are of the former release if its binary is known.
    pub(super) async fn start_protected(place_kept: &'static str, count: usize) -> Self {
        let protection = Some(Protection::new());
        let stores = async |redis: &_| vec![store_of(redis); count];
        Self::start_at(place_kept, protection, stores).await
    }

    /// Starts one process for each store URL that `stores` returns for the started Redis.
    pub(super) async fn start_with(stores: impl AsyncFnOnce(&RedisServer) -> Vec<String>) -> Self {
        Self::start_at(PLACE_KEPT, None, stores).await
    }

    async fn start_at(
        place_kept: &'static str,
        protection: Option<Protection>,
        stores: impl AsyncFnOnce(&RedisServer) -> Vec<String>,
    ) -> Self {
        let turn = TURN.write().await;
        let redis = RedisServer::start(RedisOptions::forgetful()).await;
        let stores = stores(&redis).await;
        let mut fleet = Self {
            processes: Vec::new(),
            stores,
            place_kept,
            protection,
            addresses: Addresses::default(),
            redis,
            _turn: turn,
        };
        for number in 0..fleet.stores.len() {
            let process = fleet.launch(number, fleet.first_binary());
            fleet.processes.push(process);
        }
        fleet
    }

    /// What the first processes run.
    fn first_binary(&self) -> Command {
        let former = former_release().filter(|_| self.protection.is_some());
        former.unwrap_or_else(|| leasehold(&[]))
    }

    /// Whether the first processes were those of a former release.
    pub(super) fn began_with_former_release(&self) -> bool {
        self.protection.is_some() && former_release().is_some()
    }

    fn launch(&mut self, number: usize, binary: Command) -> Serving {
        let own = [
            "--store",
            &self.stores[number],
            "--waiting-place-kept",
            self.place_kept,
        ];
        let protection = self.protection.as_ref().map(Protection::arguments);
        let protection = protection.as_ref().map_or(&[][..], |arguments| arguments);
        let arguments = [&own[..], &ARGUMENTS, protection].concat();
        let process = tokio::task::block_in_place(|| Serving::start_as(binary, &arguments));
        let (_, address) = process.url.split_once("://").expect("a URL");
        let address = address.parse().expect("an address");
        let address = match &mut self.protection {
            Some(protection) => protection.tunnel_to(address),
            None => address,
        };
        self.addresses.set(number, address);
        process
    }

    pub(super) fn client(&self, process: usize, lock: &str) -> Client {
        self.clients(lock)(process)
    }

    /// New clients for one lock, each by the number of the process that it uses.
    pub(super) fn clients(&self, lock: &str) -> impl Fn(usize) -> Client + Clone + use<> {
        let (addresses, lock, key) = (self.addresses.clone(), lock.to_owned(), self.key());
        move |process| Client::new(&addresses, process, &lock).with_key(key)
    }

    /// The key that clients need.
    fn key(&self) -> Option<&'static str> {
        self.protection.as_ref().map(|_| KEY)
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
        self.processes[process] = self.launch(process, leasehold(&[]));
    }

    /// Starts another process in the place of this one, then stops this one with SIGTERM and waits until it has ended.
    pub(super) async fn replace(
        &mut self,
        process: usize,
        binary: Command,
        within: Duration,
    ) -> ExitStatus {
        let replacement = self.launch(process, binary);
        let mut replaced = std::mem::replace(&mut self.processes[process], replacement);
        replaced.signal(Signal::SIGTERM);
        ended(&mut replaced, within).await
    }

    /// Waits until a process that was told to stop has ended.
    pub(super) async fn ended(&mut self, process: usize, within: Duration) -> ExitStatus {
        ended(&mut self.processes[process], within).await
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

/// The binary of a former release, if it is known.
#[expect(
    clippy::disallowed_methods,
    reason = "a knob of the tests is no configuration of the service"
)]
pub(super) fn former_release() -> Option<Command> {
    let path = std::env::var_os(FORMER_VARIABLE)?;
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::null());
    Some(command)
}

async fn ended(process: &mut Serving, within: Duration) -> ExitStatus {
    eventually_within(within, "the process ends", async || {
        process.has_ended().then_some(())
    })
    .await;
    process.wait()
}
