//! Faults of the primaries of a cluster: killed, paused, emptied, or with slots that move.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::record::Effect;
use super::{Nemesis, Struck};
use crate::support::cluster::RedisCluster;
use crate::support::eventually;

/// How many slots move at a time.
const SLOTS_MOVED: usize = 8;

impl Nemesis<'_> {
    fn cluster(&self) -> &RedisCluster {
        let cluster = self.fleet.cluster.as_ref();
        cluster.expect("the fault is for a cluster")
    }

    /// The number of a primary.
    async fn any_primary(&mut self) -> usize {
        let primaries = self.cluster().primaries().await;
        primaries[self.chance.index(primaries.len())]
    }

    /// Kills a primary. Its replica takes over, and it comes back as a replica.
    pub(super) async fn failover(&mut self) -> Struck {
        let killed = self.any_primary().await;
        let away = self.chance.millis(50, 1_500);
        let replica = self.cluster().replica_of(killed).await;
        let from = self.recorder.now();
        let cluster = self.fleet.cluster.as_mut();
        let cluster = cluster.expect("the fault is for a cluster");
        cluster.nodes[killed].kill();
        let words = ["CLUSTER", "FAILOVER", "TAKEOVER"];
        cluster.nodes[replica].command(&words).await;
        sleep(away).await;
        cluster.nodes[killed].restart().await;
        eventually("the former primary follows", async || {
            let follower = cluster.nodes[killed].info("replication", "master_link_status");
            let is_replica = cluster.nodes[killed].info("replication", "role").await == "slave";
            (is_replica && follower.await == "up").then_some(())
        })
        .await;
        cluster.is_well().await;
        self.struck(from, Effect::Loss, 1)
    }

    pub(super) async fn pause_primary(&mut self) -> Struck {
        let paused = self.any_primary().await;
        let away = self.chance.millis(100, 5_000);
        let from = self.recorder.now();
        let node = &self.cluster().nodes[paused];
        node.pause();
        let began = Instant::now();
        let is_silent = timeout(away, node.command(&["PING"])).await.is_err();
        sleep(away.saturating_sub(began.elapsed())).await;
        node.resume();
        self.struck(from, Effect::Away, u64::from(is_silent))
    }

    pub(super) async fn flush_primary(&mut self) -> Struck {
        let emptied = self.any_primary().await;
        let node = &self.cluster().nodes[emptied];
        let size = node.integer(0, &["DBSIZE"]).await;
        let from = self.recorder.now();
        node.command(&["FLUSHALL"]).await;
        self.struck(from, Effect::Loss, u64::try_from(size).unwrap_or(0))
    }

    /// Moves the slots of some parts of the locks, one after the other, to another primary.
    pub(super) async fn reshard(&mut self) -> Struck {
        let primaries = self.cluster().primaries().await;
        let from_index = self.chance.index(primaries.len());
        let to_index = (from_index + 1 + self.chance.index(primaries.len() - 1)) % primaries.len();
        let (source, target) = (primaries[from_index], primaries[to_index]);
        let from = self.recorder.now();
        let slots = self.cluster().slots_in_use(source).await;
        let mut moved = 0;
        for slot in slots.into_iter().take(SLOTS_MOVED) {
            self.cluster().move_slot(slot, source, target).await;
            moved += 1;
            sleep(Duration::from_millis(20)).await;
        }
        self.struck(from, Effect::Slower, moved)
    }
}
