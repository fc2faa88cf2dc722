//! A primary with its replicas, the Sentinels that watch them, and a proxy between each process and each Sentinel, so that
//! one process can be kept from learning of a failover.

use std::time::Duration;

use tokio::time::timeout;

use super::record::Micros;
use super::recorder::Recorder;
use crate::support::eventually_within;
use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisOptions, RedisServer};
use crate::support::sentinels::{PRIMARY, PROCESSES, Sentinels};

/// How many replicas the primary has.
pub(super) const REPLICAS: usize = 2;

/// How many Sentinels there are.
pub(super) const SENTINELS: usize = 3;

/// How long a failover may take, on a machine on which Sentinels are slow to agree.
const SETTLES: Duration = Duration::from_secs(60);

/// After this time without another primary, the Sentinels have given up a failover, because a server was slow.
const GIVEN_UP: Duration = Duration::from_secs(8);

/// The servers, of which one is the primary at a time.
pub(super) struct Watched {
    pub(super) servers: Vec<RedisServer>,
    pub(super) sentinels: Sentinels,
    /// Those of each process.
    proxies: Vec<Vec<Proxy>>,
}

impl Watched {
    /// For `count` processes.
    pub(super) async fn start(count: usize) -> Self {
        let options = RedisOptions::forgetful();
        let primary = RedisServer::start(options.clone()).await;
        let mut servers = vec![primary];
        for _ in 0..REPLICAS {
            let replica = RedisServer::start(options.clone()).await;
            replica.follow(servers[0].port()).await;
            servers.push(replica);
        }
        for server in &servers {
            server.admit_processes().await;
        }
        servers[0].is_confirmed_by(REPLICAS).await;
        let sentinels = Sentinels::watch(servers[0].port(), SENTINELS, None).await;
        let mut proxies = Vec::new();
        for _ in 0..count {
            let mut of_process = Vec::new();
            for address in sentinels.addresses() {
                of_process.push(Proxy::start(address).await);
            }
            proxies.push(of_process);
        }
        let watched = Self {
            servers,
            sentinels,
            proxies,
        };
        watched.is_settled().await;
        watched
    }

    /// The URL for a process.
    pub(super) fn url(&self, process: usize) -> String {
        let proxies = self.proxies[process].iter();
        let addresses: Vec<_> = proxies.map(|proxy| proxy.address().to_string()).collect();
        let [name, password] = PROCESSES;
        format!(
            "redis+sentinel://{name}:{password}@{}/{PRIMARY}",
            addresses.join(",")
        )
    }

    /// Waits until no failover is in progress, and all replicas follow the primary. Returns its number.
    pub(super) async fn is_settled(&self) -> usize {
        eventually_within(SETTLES, "all replicas follow the primary", async || {
            let port = self.sentinels.settled_primary(REPLICAS).await?;
            let number = self.number_of(port);
            let section = self.servers[number].info_section("replication").await;
            let online = section.matches("state=online").count();
            (section.contains("role:master") && online == REPLICAS).then_some(number)
        })
        .await
    }

    /// Waits until another server than this one is a primary. Returns the last time, by the clock of the record, at which
    /// none was.
    pub(super) async fn is_promoted(&self, former: usize, recorder: &Recorder) -> Micros {
        let mut none_was = recorder.now();
        eventually_within(SETTLES, "a replica becomes a primary", async || {
            let asked = recorder.now();
            let others = self.servers.iter().enumerate();
            // The former primary may be one that does not answer this.
            for (_, server) in others.filter(|(number, _)| *number != former) {
                // A Sentinel ends the connections of a server when it promotes it: then the next answer shows it.
                let answer = server.try_command(0, &["INFO", "replication"]).await.ok()?;
                let section: String = redis::from_redis_value(answer).ok()?;
                if section.contains("role:master") {
                    return Some(none_was);
                }
            }
            none_was = asked;
            None
        })
        .await
    }

    /// Waits until the Sentinels name another primary than this one. Returns its number.
    pub(super) async fn is_replaced(&self, former: usize) -> usize {
        eventually_within(SETTLES, "a replica is promoted", async || {
            let port = self.sentinels.primary().await?;
            let number = self.number_of(port);
            (number != former).then_some(number)
        })
        .await
    }

    /// Promotes a replica, as an operator does, and returns its number.
    pub(super) async fn fail_over(&self, former: usize) -> usize {
        loop {
            self.sentinels.fail_over().await;
            if let Ok(primary) = timeout(GIVEN_UP, self.is_replaced(former)).await {
                return primary;
            }
        }
    }

    /// Waits until a failover that may be in progress is over, or has replaced this primary. Returns the number of the
    /// primary.
    pub(super) async fn is_settled_or_replaced(&self, former: usize) -> usize {
        eventually_within(SETTLES, "no failover is in progress", async || {
            let named = self.number_of(self.sentinels.primary().await?);
            if named != former {
                return Some(named);
            }
            let settled = self.sentinels.settled_primary(REPLICAS).await?;
            Some(self.number_of(settled))
        })
        .await
    }

    /// Up to where a primary has written.
    pub(super) async fn offset(&self, primary: usize) -> u64 {
        self.replication(primary, "master_repl_offset").await
    }

    /// Waits until a primary has written more than this.
    pub(super) async fn has_written(&self, primary: usize, more_than: u64) {
        eventually_within(SETTLES, "the primary writes", async || {
            (self.offset(primary).await > more_than).then_some(())
        })
        .await;
    }

    /// Up to where it had everything when it was promoted.
    pub(super) async fn promoted_at(&self, primary: usize) -> u64 {
        let next = self.replication(primary, "second_repl_offset").await;
        next.saturating_sub(1)
    }

    async fn replication(&self, server: usize, field: &str) -> u64 {
        let figure = self.servers[server].info("replication", field).await;
        figure.parse().expect("a number")
    }

    /// Starts a server again that was killed.
    pub(super) async fn restart(&mut self, number: usize) {
        self.servers[number].restart().await;
        self.servers[number].admit_processes().await;
    }

    /// Makes a server follow the primary, as an operator does. The Sentinels do so too, but only after eight seconds.
    pub(super) async fn demote(&self, former: usize, primary: usize) {
        let port = self.servers[primary].port();
        self.servers[former].follow(port).await;
    }

    /// Cuts a process off from all Sentinels.
    pub(super) fn hide_sentinels(&self, process: usize) {
        for proxy in &self.proxies[process] {
            proxy.refuse(true);
            proxy.cut();
        }
    }

    /// Ends that.
    pub(super) fn show_sentinels(&self, process: usize) {
        for proxy in &self.proxies[process] {
            proxy.refuse(false);
        }
    }

    fn number_of(&self, port: u16) -> usize {
        let mut ports = self.servers.iter().map(RedisServer::port);
        let number = ports.position(|it| it == port);
        number.expect("it is one of these")
    }
}
