//! Replicas of a Redis that a test starts.

use super::eventually;
use super::redis_server::{RedisOptions, RedisServer};

impl RedisServer {
    /// Starts a replica of it, and waits until that has everything.
    pub(crate) async fn replica(&self, options: RedisOptions) -> Self {
        let replica = Self::start(options).await;
        replica.follow(self.port()).await;
        self.is_in_step_with(&replica).await;
        self.is_confirmed_by(1).await;
        replica
    }

    /// Waits until its replicas confirm what they have, which they do for the first time after a second.
    pub(crate) async fn is_confirmed_by(&self, replicas: usize) {
        // Those that have confirmed nothing yet count as having nothing.
        self.command(&["PUBLISH", "of-tests", ""]).await;
        eventually("the replicas confirm", async || {
            let section = self.info_section("replication").await;
            let lines = section
                .lines()
                .filter_map(|line| line.trim_end().split_once(':'));
            let has_confirmed = |line: &str| !line.contains("offset=0,");
            let of_replicas = lines.filter(|(field, _)| field.starts_with("slave"));
            let confirming = of_replicas.filter(|(_, line)| has_confirmed(line)).count();
            (confirming == replicas).then_some(())
        })
        .await;
    }

    /// Makes it a replica of the Redis at this port.
    pub(crate) async fn follow(&self, port: u16) {
        let port = port.to_string();
        self.command(&["REPLICAOF", "127.0.0.1", &port]).await;
    }

    /// Waits until this replica has everything.
    pub(crate) async fn is_in_step_with(&self, replica: &Self) {
        eventually("the replica has everything", async || {
            let offset = |server| Self::info(server, "replication", "master_repl_offset");
            let (there, here) = (offset(self).await, offset(replica).await);
            let link = replica.info("replication", "master_link_status").await;
            (there == here && link == "up").then_some(())
        })
        .await;
    }
}
