//! The nodes: servers, Sentinels and processes, each with an address of its own, and how a test asks them from the bridge.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use super::super::fleet::ARGUMENTS;
use crate::support::eventually_within;
use crate::support::net::Net;
use crate::support::sentinels::PRIMARY;
use crate::waiters::http1::{Connection, Request};

pub(super) const SERVERS: [u8; 3] = [1, 2, 3];
pub(super) const SENTINELS: [u8; 3] = [4, 5, 6];
/// The process that is always on the side of the former primary, and the other one.
pub(super) const PROCESSES: [u8; 2] = [7, 8];

pub(super) const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const HTTP_PORT: u16 = 7625;

/// How long a change may take on a machine that does something else.
pub(super) const SETTLES: Duration = Duration::from_secs(90);

/// How long a server may take to answer.
const ASKS: Duration = Duration::from_secs(4);

/// Servers, Sentinels and processes.
pub(super) struct Site {
    pub(super) net: Net,
    /// They end with their nodes.
    children: Vec<Child>,
    directory: TempDir,
}

impl Site {
    pub(super) async fn start(wait_replicas: usize) -> Self {
        let net = Net::start(8);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut site = Self {
            net,
            children: Vec::new(),
            directory,
        };
        for node in SERVERS {
            let mut words = format!(
                "redis-server --port {REDIS_PORT} --bind 0.0.0.0 --protected-mode no --appendonly no \
                 --repl-diskless-sync-delay 0 --repl-timeout 5"
            );
            if node != SERVERS[0] {
                words += &format!(" --replicaof {} {REDIS_PORT}", site.net.address(SERVERS[0]));
            }
            // A replica keeps what it receives in a file, and a primary what it sends.
            let directory = site.directory.path().to_str().expect("a path in UTF-8");
            let file = format!("{node}.rdb");
            let files = ["--dir", directory, "--dbfilename", &file];
            let words = words.split_whitespace().chain(files).chain(["--save", ""]);
            site.spawn(node, &words.map(str::to_owned).collect::<Vec<_>>());
        }
        site.follows(SERVERS[0]).await;
        for node in SENTINELS {
            let own = site.net.address(node);
            let primary = site.net.address(SERVERS[0]);
            let file = site.directory.path().join(format!("{node}.conf"));
            let config = format!(
                "bind 0.0.0.0\nport {SENTINEL_PORT}\ndir {}\nprotected-mode no\nsentinel announce-ip {own}\n\
                 sentinel monitor {PRIMARY} {primary} {REDIS_PORT} 2\n\
                 sentinel down-after-milliseconds {PRIMARY} 1000\nsentinel failover-timeout {PRIMARY} 3000\n",
                site.directory.path().display()
            );
            std::fs::write(&file, config).expect("a writable directory");
            let file = file.to_str().expect("a path in UTF-8").to_owned();
            site.spawn(
                node,
                &["redis-server".to_owned(), file, "--sentinel".to_owned()],
            );
        }
        site.is_settled().await;
        let sentinels = SENTINELS.map(|node| format!("{}:{SENTINEL_PORT}", site.net.address(node)));
        let store = format!("redis+sentinel://{}/{PRIMARY}", sentinels.join(","));
        for node in PROCESSES {
            let listen = format!("{}:{HTTP_PORT}", site.net.address(node));
            let replicas = wait_replicas.to_string();
            let binary = env!("CARGO_BIN_EXE_leasehold");
            let own = ["--store", &store, "--redis-wait-replicas", &replicas];
            let words = [
                &[binary][..],
                &own,
                &["--listen", &listen, "--auth", "none"],
                &ARGUMENTS,
            ];
            site.spawn(node, &words.concat());
        }
        for node in PROCESSES {
            site.grants_at(node).await;
        }
        site
    }

    fn spawn<S: AsRef<OsStr>>(&mut self, node: u8, words: &[S]) {
        let child = self.net.spawn(node, words, Stdio::null());
        self.children.push(child);
    }

    pub(super) fn http(&self, node: u8) -> SocketAddr {
        (self.net.address(node), HTTP_PORT).into()
    }

    /// Asks a Redis or a Sentinel.
    pub(super) async fn ask<T: redis::FromRedisValue>(
        &self,
        node: u8,
        words: &[&str],
    ) -> Option<T> {
        let port = if SENTINELS.contains(&node) {
            SENTINEL_PORT
        } else {
            REDIS_PORT
        };
        let address = self.net.address(node);
        let client = redis::Client::open(format!("redis://{address}:{port}")).expect("a URL");
        let asked = timeout(ASKS, async {
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            redis::cmd(words[0])
                .arg(&words[1..])
                .query_async(&mut connection)
                .await
                .ok()
        });
        asked.await.ok().flatten()
    }

    /// The node of the primary, as this Sentinel knows it.
    pub(super) async fn primary(&self, sentinel: u8) -> Option<u8> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY];
        let (address, _): (Ipv4Addr, u16) = {
            let (address, port): (String, String) = self.ask(sentinel, &words).await?;
            (address.parse().ok()?, port.parse().ok()?)
        };
        SERVERS
            .into_iter()
            .find(|node| self.net.address(*node) == address)
    }

    /// Waits until all other servers follow this one.
    async fn follows(&self, primary: u8) {
        eventually_within(SETTLES, "all replicas confirm", async || {
            // Those that have confirmed nothing yet count as having nothing.
            self.ask::<i64>(primary, &["PUBLISH", "of-tests", ""])
                .await?;
            let section: String = self.ask(primary, &["INFO", "replication"]).await?;
            let online = section
                .lines()
                .filter(|line| line.contains("state=online") && !line.contains("offset=0,"));
            (section.contains("role:master") && online.count() == 2).then_some(())
        })
        .await;
    }

    /// Waits until the Sentinels name one primary, reach everything, and all other servers follow it. Returns its node.
    pub(super) async fn is_settled(&self) -> u8 {
        let primary = eventually_within(SETTLES, "the Sentinels agree", async || {
            let primary = self.primary(SENTINELS[0]).await?;
            for sentinel in SENTINELS {
                (self.primary(sentinel).await? == primary).then_some(())?;
                let words = ["INFO", "sentinel"];
                let section: String = self.ask(sentinel, &words).await?;
                section.contains("status=ok").then_some(())?;
                section.contains("slaves=2,sentinels=3").then_some(())?;
            }
            Some(primary)
        });
        let primary = primary.await;
        self.follows(primary).await;
        primary
    }

    /// The status that this process answers to a claim on an own lock of it.
    async fn claim_at(&self, node: u8) -> Option<u16> {
        let asked = timeout(Duration::from_secs(20), async {
            let mut connection = Connection::open(self.http(node)).await.ok()?;
            let lock = uuid::Uuid::new_v4();
            let path = format!("/locks/probe/{lock}?ttl=500ms");
            let request = Request {
                method: "POST",
                path: &path,
                token: None,
                body: "",
            };
            Some(connection.ask(request).await.ok()?.status)
        });
        asked.await.ok().flatten()
    }

    /// Waits until this process grants, and returns how long that took.
    pub(super) async fn grants_at(&self, node: u8) -> Duration {
        self.answers(node, 201).await
    }

    pub(super) async fn answers(&self, node: u8, status: u16) -> Duration {
        let began = Instant::now();
        let what = format!("the process at node {node} answers {status}");
        eventually_within(SETTLES, &what, async || {
            let answered = self.claim_at(node).await;
            (answered == Some(status)).then_some(())
        })
        .await;
        began.elapsed()
    }
}
