//! Leases in Redis or Valkey: one script, one round trip for every operation, on Redis' own clock.
//!
//! Only this module knows Redis. Every operation is one request to a `node`, which is the only Redis or a partition of a
//! `cluster`, which has the operations on locks of several. `encode` builds the command, `scripts` has its script, and
//! `decode` reads the answer. `keys` builds the keys; `pool` keeps the connections; `pubsub` and
//! `subscriber` handle messages between processes; `recovery` knows whether the data can be trusted, and `reports`
//! announces what the others must know before a grant is reported.

mod assign;
mod barriers;
mod check_failure;
mod cluster;
mod connector;
mod constants;
mod counting;
mod decode;
mod dispatch;
mod encode;
mod events;
mod failure;
mod health;
mod info;
mod keys;
mod listing;
mod node;
mod opening;
mod operations;
mod pool;
mod probe;
mod pubsub;
mod record;
mod recovery;
mod redirection;
mod refused_right;
mod replication;
mod reply;
mod reports;
mod scripts;
mod sentinel;
mod subscriber;
mod tls;
mod transport;
mod views;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::pace::Pace;
use super::{Deadlines, ListQuery, Listener, LockStore, ScanSteps, StoreHealth, StoreResult};
use crate::domain::{
    Acquired, Attempt, Claim, Evicted, Listing, LockName, LockNames, LockView, QueueRequest,
    Released, RenewOptions, Renewed, Rollback, StepBack, SuspendOptions, Suspended, Token,
};
use cluster::{Cluster, partitions};
use encode::Purpose;
pub(crate) use failure::{CONNECTION_REFUSED, explained};
use health::{CHECK_TIMEOUT, HealthCheck};
use listing::Snapshots;
use node::Node;
use operations::AcquireScope;

/// Why no mutex of this module is poisoned.
const UNPOISONED: &str = "nobody panics while holding it";

/// Leases in a Redis.
pub struct RedisStore {
    /// The only Redis, or the partitions of a cluster.
    nodes: Box<[Node]>,
    cluster: Option<Arc<Cluster>>,
    last_health: Mutex<HealthCheck>,
    check_interval: Duration,
    /// The pace of listings, and of corrections after a clock that was set back.
    pace: Pace,
    count_pace: Pace,
    snapshots: Snapshots,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisStore")
    }
}

impl RedisStore {
    /// For each partition of a cluster the name of a lock that is there, with this beginning: together they are on all
    /// primaries.
    ///
    /// # Panics
    /// The beginning is none of a name.
    #[must_use]
    pub fn lock_in_each_partition(beginning: &str) -> Vec<LockName> {
        let mut names = BTreeMap::new();
        for number in 0.. {
            let name = LockName::parse(format!("{beginning}{number}").as_bytes());
            let name = name.expect("the beginning of a name and a number make a name");
            names
                .entry(name.bucket().index() % partitions::COUNT)
                .or_insert(name);
            if names.len() == partitions::COUNT {
                break;
            }
        }
        names.into_values().collect()
    }

    /// Where a lock is.
    fn node_for(&self, name: &LockName) -> &Node {
        &self.nodes[self.number_for(name)]
    }

    /// The number of a lock's node: its partition in a cluster.
    fn number_for(&self, name: &LockName) -> usize {
        name.bucket().index() % self.nodes.len()
    }

    /// Where these locks are, if they are in one place.
    fn node_of(&self, names: &LockNames) -> Option<&Node> {
        if let [node] = &self.nodes[..] {
            return Some(node);
        }
        let first = self.number_for(names.first()?);
        let is_one = names.len() == 1 || names.iter().all(|it| self.number_for(it) == first);
        is_one.then(|| &self.nodes[first])
    }
}

#[async_trait]
impl LockStore for RedisStore {
    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        queue_request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let (mut acquired, may_arrive) = match self.node_of(&claim.names) {
            Some(node) => {
                let scope = AcquireScope::ALONE;
                let acquiring = node.acquire(scope, claim, attempt, queue_request, deadline);
                let (outcome, may_arrive) = acquiring.await?;
                (outcome?, may_arrive)
            }
            // Boxed, so that the futures of other requests need no space for it.
            None => Box::pin(self.acquire_across(claim, attempt, queue_request, deadline)).await?,
        };
        if may_arrive {
            self.resolve_ambiguous(&mut acquired, claim, attempt, deadline)
                .await?;
        }
        Ok(acquired)
    }

    async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        match self.node_of(&claim.names) {
            Some(node) => node.suspend(claim, options, deadline).await,
            None => Box::pin(self.suspend_across(claim, options, deadline)).await,
        }
    }

    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<usize> {
        match self.node_of(&claim.names) {
            Some(node) => node.withdraw(claim, attempt, rollback, deadline).await,
            None => Box::pin(self.withdraw_across(claim, attempt, rollback, deadline)).await,
        }
    }

    async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        match self.node_of(names) {
            Some(node) => {
                node.renew(names, token, change, Purpose::Grant, deadline)
                    .await
            }
            None => Box::pin(self.renew_across(names, token, change, deadline)).await,
        }
    }

    async fn release(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        match self.node_of(names) {
            Some(node) => node.release(names, token, step_back, deadline).await,
            None => Box::pin(self.release_across(names, token, step_back, deadline)).await,
        }
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        self.node_for(name).evict(name, reason, deadlines).await
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        self.node_for(name).inspect(name, deadline).await
    }

    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> StoreResult<Listing> {
        self.list_page(query, deadlines).await
    }

    async fn refresh_health(&self) {
        let check = self.check().await;
        self.log_changes(&check);
    }

    fn check_interval(&self) -> Duration {
        self.check_interval
    }

    async fn sweep(&self) {
        self.sweep_if_due().await;
    }

    fn health(&self) -> StoreHealth {
        let last_health = self.last_health.lock().expect(UNPOISONED);
        let findings = self.findings(&last_health);
        let contacted = findings.is_some();
        let (findings, clock_offset_ms) = findings.unwrap_or_default();
        StoreHealth {
            contacted,
            up: matches!(last_health.last_check, Some(Ok(()))),
            trouble: self.trouble(&last_health),
            refused: self.refusal_of_all(),
            recovering_for: self
                .nodes
                .iter()
                .filter_map(|it| it.recovery.grace_left())
                .max(),
            findings,
            held_locks: last_health.held_locks,
            scan_steps: ScanSteps {
                listings: self.pace.steps(),
                counts: self.count_pace.steps(),
            },
            clock_offset_ms: contacted.then_some(clock_offset_ms),
            pool: Some(self.pool_health()),
            disk: None,
            response_mismatches: (self.nodes.iter())
                .map(|node| node.mismatches.load(Ordering::Relaxed))
                .sum(),
            fencing_regressions: (self.nodes.iter())
                .map(|node| node.fencing_regressions.load(Ordering::Relaxed))
                .sum(),
            nodes: Vec::new(),
        }
    }

    fn set_listener(&self, listener: Arc<dyn Listener>) {
        let pools: Vec<_> = self.nodes.iter().map(|node| &node.pool).collect();
        self.nodes[0].messages.set_listener(&pools, listener);
    }

    async fn set_event_delivery(&self, wanted: bool) {
        let setting = self.nodes[0].messages.set_event_delivery(wanted);
        // If the connection is lost, the listener gets `events_lost` once events arrive again.
        let _ = tokio::time::timeout(CHECK_TIMEOUT, setting).await;
    }
}
