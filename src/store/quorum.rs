//! A store made of several independent ones, of which a majority decides: Redlock, with fencing tokens that are ordered.
//!
//! Every operation goes to all nodes at once, and is answered as soon as a majority has decided it. Nobody waits for a
//! slow node; it follows in the background. A lease holds while a majority of nodes keeps it. How a grant is made, and why
//! its fencing tokens are ordered, is in `round`.
//!
//! This needs a majority of nodes that keep what they have recorded and whose clocks run at about the right rate; which time
//! they show does not matter. What a node is, is not known here.

mod acquire;
mod attempts;
mod drift;
mod holding;
mod merge;
mod nodes;
mod reading;
mod renewal;
mod reports;
mod round;
mod turns;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::assignment::AssignFences;
use super::{Deadlines, Finding, ListQuery, Listener, LockStore, StoreHealth, StoreResult};
use crate::domain::{
    Acquired, Attempt, Claim, Evicted, HoldCount, Listing, LockName, LockNames, LockView,
    QueueRequest, Released, RenewOptions, Renewed, Rollback, SuspendOptions, Suspended, Token,
};
use attempts::Attempts;
pub use drift::Drift;
use nodes::Nodes;
use reports::{NodeListener, Reports};

/// Leases and queues that a majority of nodes keeps.
#[derive(Debug)]
pub struct QuorumStore(Core);

/// What the operations have in common.
#[derive(Debug)]
struct Core {
    nodes: Nodes,
    drift: Drift,
    attempts: Attempts,
    reports: Arc<Reports>,
}

impl QuorumStore {
    /// A store made of these nodes, which no other store of this process uses. An odd number of them is best: an even
    /// one tolerates no more failures than one node less.
    ///
    /// A node must not grant anything while it may have forgotten leases.
    #[must_use]
    pub fn new(nodes: Vec<Arc<dyn AssignFences>>, drift: Drift) -> Self {
        let reports = Arc::new(Reports::new(nodes.len(), drift));
        for (node, store) in nodes.iter().enumerate() {
            let reports = Arc::clone(&reports);
            store.set_listener(Arc::new(NodeListener { node, reports }));
        }
        Self(Core {
            nodes: Nodes::new(nodes),
            drift,
            attempts: Attempts::default(),
            reports,
        })
    }

    /// How many operations nodes have not completed yet, although a majority has.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.0.nodes.in_progress()
    }
}

#[async_trait]
impl LockStore for QuorumStore {
    async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        self.0.acquire(claim, attempt, request, deadline).await
    }

    async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        self.0.suspend(claim, options, deadline).await
    }

    async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<()> {
        self.0.withdraw(claim, attempt, rollback, deadline).await
    }

    async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        self.0.renew(names, token, change, deadline).await
    }

    async fn release(
        &self,
        names: &LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        self.0.release(names, token, hold_count, deadline).await
    }

    async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        self.0.evict(name, reason, deadlines).await
    }

    async fn inspect(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        self.0.inspect(name, deadline).await
    }

    async fn list(&self, query: &ListQuery, deadlines: Deadlines) -> StoreResult<Listing> {
        self.0.list(query, deadlines).await
    }

    async fn refresh_health(&self) {
        self.0.attempts.forget_old();
        join_all(self.0.nodes.all().iter().map(|node| node.refresh_health())).await;
    }

    fn check_interval(&self) -> Duration {
        let intervals = self.0.nodes.all().iter().map(|node| node.check_interval());
        intervals.min().unwrap_or(super::CHECK_INTERVAL)
    }

    async fn sweep(&self) {
        join_all(self.0.nodes.all().iter().map(|node| node.sweep())).await;
    }

    fn health(&self) -> StoreHealth {
        self.0.health()
    }

    fn set_listener(&self, listener: Arc<dyn Listener>) {
        self.0.reports.set_listener(listener);
    }

    async fn set_event_delivery(&self, wanted: bool) {
        let nodes = self.0.nodes.all().iter();
        join_all(nodes.map(|node| node.set_event_delivery(wanted))).await;
    }

    async fn close(&self) {
        join_all(self.0.nodes.all().iter().map(|node| node.close())).await;
    }
}

impl Core {
    fn health(&self) -> StoreHealth {
        let nodes: Vec<_> = self.nodes.all().iter().map(|node| node.health()).collect();
        let majority = self.nodes.majority();
        let votes = |health: &&StoreHealth| {
            health.up && health.refused.is_none() && health.recovering_for.is_none()
        };
        let up = nodes.iter().filter(|health| health.up).count();
        let voting = nodes.iter().filter(votes).count();
        let recovering = nodes
            .iter()
            .filter(|health| health.refused.is_none() && health.up);
        let mut waits: Vec<_> = recovering
            .map(|health| health.recovering_for.unwrap_or_default())
            .collect();
        waits.sort_unstable();
        let first = |of: fn(&StoreHealth) -> Option<&String>| nodes.iter().find_map(of).cloned();
        StoreHealth {
            contacted: nodes.iter().filter(|health| health.contacted).count() >= majority,
            up: up >= majority,
            trouble: first(|health| health.trouble.as_ref()).filter(|_| up < majority),
            refused: first(|health| health.refused.as_ref()).filter(|_| {
                let refused = nodes.iter().filter(|health| health.refused.is_some());
                nodes.len() - refused.count() < majority
            }),
            recovering_for: waits
                .get(majority - 1)
                .copied()
                .filter(|wait| !wait.is_zero()),
            findings: findings(&nodes, voting, majority),
            held_locks: merge::reached_by(
                majority,
                nodes.iter().filter_map(|health| health.held_locks),
            ),
            clock_offset_ms: nodes
                .iter()
                .filter_map(|health| health.clock_offset_ms)
                .max_by_key(|offset| offset.abs()),
            pool: None,
            disk: None,
            response_mismatches: nodes.iter().map(|health| health.response_mismatches).sum(),
        }
    }
}

/// What an operator learns of the nodes: how many vote, and what each finds.
fn findings(nodes: &[StoreHealth], voting: usize, majority: usize) -> Vec<Finding> {
    let detail = match voting >= majority {
        true => format!(
            "{voting} of {} nodes vote, {majority} are needed",
            nodes.len()
        ),
        false => format!(
            "only {voting} of {} nodes vote, {majority} are needed: nothing is granted; bring nodes back",
            nodes.len()
        ),
    };
    let quorum = Finding {
        topic: "quorum",
        is_fine: voting == nodes.len(),
        detail,
    };
    let of_nodes = nodes.iter().enumerate().map(|(index, health)| {
        let problem = health.trouble.clone().or_else(|| health.refused.clone());
        let recovering = health.recovering_for.map(|wait| {
            format!(
                "has no vote for {} s, because it may have forgotten leases",
                wait.as_secs()
            )
        });
        let problem = problem.or(recovering);
        let offset = health.clock_offset_ms.unwrap_or_default();
        let state = problem.clone().unwrap_or_else(|| "votes".to_owned());
        Finding {
            topic: "node",
            is_fine: problem.is_none(),
            detail: format!(
                "node {}: {state}; its clock is {offset} ms ahead",
                index + 1
            ),
        }
    });
    let of_stores = nodes.iter().enumerate().flat_map(|(index, health)| {
        health.findings.iter().map(move |finding| Finding {
            detail: format!("node {}: {}", index + 1, finding.detail),
            ..finding.clone()
        })
    });
    std::iter::once(quorum)
        .chain(of_nodes)
        .chain(of_stores)
        .collect()
}
