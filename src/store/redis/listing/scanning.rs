//! Visits the keys of every lock, in small steps. What is done with them is not known here.
//!
//! SCAN visits all keys of the database, also those of others. A node of a cluster visits only one slot for a pattern
//! that names its hash tag, since Redis 7.4 and Valkey 8; Leasehold has one slot for each partition. So foreign keys cost
//! a scan nothing there.

use std::sync::Arc;

use tokio::time::{Instant, sleep, timeout_at};

use super::progress::ScanProgress;
use super::step_size::{KEYS_MAX, StepSize};
use super::{MOVE_PAUSE, MOVE_TIMEOUT, ROUNDS_MAX};
use crate::store::pace::Pace;
use crate::store::redis::cluster::{NodeLine, Topology};
use crate::store::redis::failure::NO_PRIMARY;
use crate::store::redis::keys::RedisKeys;
use crate::store::redis::node::Node;
use crate::store::redis::scripts::ScriptRequest;
use crate::store::redis::views::{self, Scanned};
use crate::store::redis::{RedisStore, probe, scripts};
use crate::store::{Deadlines, Fault, StoreError};

/// What a scan looks for, and how.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    /// The names of the locks begin with this.
    pub(super) prefix: &'a str,
    pub(super) pace: &'a Pace,
    pub(super) deadlines: Deadlines,
}

/// How a scan of one node goes.
struct ScanCourse {
    progress: ScanProgress,
    size: StepSize,
}

impl Default for ScanCourse {
    fn default() -> Self {
        Self {
            progress: ScanProgress::default(),
            size: StepSize::FIRST,
        }
    }
}

impl RedisStore {
    /// Passes on the key of every lock that is held or waited for, some of them twice. Returns how many are held.
    pub(super) async fn scan(
        &self,
        scan: Scan<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<u64, StoreError> {
        for _ in 0..ROUNDS_MAX {
            let before = self.settled_places(scan.deadlines).await?;
            let mut held = 0;
            for number in &before.numbers {
                let partitions = before.topology.partitions_beside(*number);
                held += self
                    .scan_node(*number, &partitions, scan, &mut each)
                    .await?;
            }
            // A lock that has moved meanwhile may have been missed.
            if self.places(scan.deadlines).await?.is_like(&before) {
                return Ok(held);
            }
        }
        Err(moving())
    }

    /// The nodes that have keys, once no slot of a lock is on its way: its keys are on two nodes until then.
    async fn settled_places(&self, deadlines: Deadlines) -> Result<ScannedNodes, StoreError> {
        let give_up = deadlines.end.min(Instant::now() + MOVE_TIMEOUT);
        loop {
            let places = self.places(deadlines).await?;
            let topology = &places.topology;
            if topology.is_settled() {
                return Ok(places);
            }
            let silent = topology.silent_primary();
            let node = silent.and_then(|primary| topology.first_of(primary));
            let node = node.map(|number| &self.nodes[number]);
            let down = node.and_then(|node| probe::known_down(&node.pool, &node.recovery));
            if down.is_some() || Instant::now() + MOVE_PAUSE >= give_up {
                return Err(match silent {
                    Some(primary) => silence_of(primary, node),
                    None => moving(),
                });
            }
            sleep(MOVE_PAUSE).await;
        }
    }

    /// The same at once: one node for each primary of a cluster.
    async fn places(&self, deadlines: Deadlines) -> Result<ScannedNodes, StoreError> {
        let Some(cluster) = &self.cluster else {
            return Ok(ScannedNodes {
                numbers: vec![0],
                topology: Arc::default(),
            });
        };
        match timeout_at(deadlines.of_step(), cluster.refresh_from_all()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return Err(failure.into_error(false)),
            Err(_) => {
                return Err(StoreError::unavailable(
                    Fault::Timeout,
                    "the nodes do not answer",
                ));
            }
        }
        let topology = cluster.topology();
        if topology.count_without_primary() > 0 {
            let detail = format!("{NO_PRIMARY} the slots of some locks");
            return Err(StoreError::unavailable(Fault::ClusterDown, detail));
        }
        Ok(ScannedNodes {
            numbers: topology.representatives(),
            topology,
        })
    }

    /// The same of one node, or of one primary of a cluster, which has these partitions.
    async fn scan_node(
        &self,
        number: usize,
        partitions: &[usize],
        scan: Scan<'_>,
        each: &mut impl FnMut(&[u8]),
    ) -> Result<u64, StoreError> {
        let node = &self.nodes[number];
        let pattern = RedisKeys::default().lock_pattern(scan.prefix);
        let (mut cursor, mut held) = (0, 0);
        let mut course = ScanCourse::default();
        loop {
            let scanned = self
                .scan_step(node, cursor, &pattern, scan, &mut course)
                .await?;
            let is_slower = is_slower_than_by_slots(scanned.total, partitions);
            if cursor == 0 && scanned.visits_slots && is_slower {
                return self.scan_slots(partitions, scan, each).await;
            }
            held += scanned.held;
            scanned.keys.iter().for_each(|key| each(key));
            if scanned.next == 0 {
                return Ok(held);
            }
            course.progress.check(scanned.total, scan.deadlines.end)?;
            cursor = scanned.next;
        }
    }

    /// The same, slot by slot.
    async fn scan_slots(
        &self,
        partitions: &[usize],
        scan: Scan<'_>,
        each: &mut impl FnMut(&[u8]),
    ) -> Result<u64, StoreError> {
        let mut held = 0;
        let mut course = ScanCourse::default();
        for (index, number) in partitions.iter().enumerate() {
            let node = &self.nodes[*number];
            let pattern = node.keys.lock_pattern(scan.prefix);
            let mut cursor = 0;
            loop {
                let scanned = self
                    .scan_step(node, cursor, &pattern, scan, &mut course)
                    .await?;
                held += scanned.held;
                scanned.keys.iter().for_each(|key| each(key));
                if scanned.next == 0 {
                    break;
                }
                // Names are spread evenly: the slots so far have had as many keys each as the others have, at least.
                let visited = course.progress.keys();
                let keys_in_all = visited * partitions.len() as u64 / (index as u64 + 1);
                course.progress.check(keys_in_all, scan.deadlines.end)?;
                cursor = scanned.next;
            }
        }
        Ok(held)
    }

    async fn scan_step(
        &self,
        node: &Node,
        cursor: u64,
        pattern: &str,
        scan: Scan<'_>,
        course: &mut ScanCourse,
    ) -> Result<Scanned, StoreError> {
        let request = ScriptRequest::new(&scripts::SCAN);
        let keys = course.size.keys();
        let step = async {
            let began = Instant::now();
            let command = |_| {
                let mut command = request.command(&[&node.keys.node()]);
                command.arg(cursor).arg(pattern).arg(keys);
                // One command reads keys of several slots only outside of a cluster.
                command.arg(u8::from(self.cluster.is_none()));
                command
            };
            let answer = node.run(request, scan.deadlines.of_step(), command, views::scanned);
            let (scanned, worked) = answer.await?;
            course.size = course.size.after(worked);
            let worked = worked.unwrap_or_else(|| began.elapsed());
            Ok(((scanned, worked), Some(worked)))
        };
        let (scanned, worked): (Scanned, _) = scan.pace.step(scan.deadlines.end, step).await?;
        course.progress.step(keys, scan.pace.time_for(worked));
        Ok(scanned)
    }
}

/// Whether a scan of all keys, of which there are so many, takes more steps than one of each partition's slot, which is at
/// least one step. Outside of a cluster, there are no partitions.
fn is_slower_than_by_slots(keys: u64, partitions: &[usize]) -> bool {
    !partitions.is_empty() && keys / KEYS_MAX as u64 > partitions.len() as u64
}

/// Where locks are.
struct ScannedNodes {
    numbers: Vec<usize>,
    topology: Arc<Topology>,
}

impl ScannedNodes {
    /// Whether nothing has moved from one to the other.
    fn is_like(&self, other: &Self) -> bool {
        let both = [&self.topology, &other.topology];
        both[0].has_same_owners(both[1]) && both.iter().all(|it| it.is_settled())
    }
}

/// While slots move, a scan could miss a lock that is held all the time, or count it twice.
fn moving() -> StoreError {
    StoreError::unavailable(Fault::Moving, "slots of the cluster are on their way")
}

/// Nobody else knows which slots this primary gives away.
fn silence_of(primary: &NodeLine, node: Option<&Node>) -> StoreError {
    let detail = format!("{} does not say which slots it has", primary.place());
    match node {
        Some(node) => node.pool.not_connected(&detail).into_error(false),
        None => StoreError::unavailable(Fault::Io, detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_of_a_cluster_is_scanned_by_slots_if_that_is_less() {
        assert!(is_slower_than_by_slots(300, &[0, 1]));
        assert!(!is_slower_than_by_slots(200, &[0, 1]));
        assert!(!is_slower_than_by_slots(1_000_000, &[]));
    }
}
