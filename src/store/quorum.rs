//! A store made of several independent ones, of which a majority decides: Redlock, with fencing tokens that are ordered.
//!
//! Every operation goes to all nodes at once, and is answered as soon as a majority has decided it. Nobody waits for a
//! slow node; it follows in the background. A lease holds while a majority of nodes keeps it. How a grant is made, and why
//! its fencing tokens are ordered, is in `round`.
//!
//! This needs a majority of nodes that keep what they have recorded and whose clocks run at about the right rate; which time
//! they show does not matter. What a node is, is not known here.

mod acquire;
mod answers;
mod attempts;
mod busy;
mod counting;
mod decision;
mod disagreement;
mod drift;
mod follow_ups;
mod grants;
mod health;
mod holding;
mod late_changes;
mod lease;
mod listing;
mod merge;
mod nodes;
mod not_held;
mod part_held;
mod reading;
mod recording;
mod renewal;
mod reports;
mod restoring;
mod round;
mod turns;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::assignment::AssignFences;
use super::{Deadlines, ListQuery, Listener, LockStore, StoreHealth, StoreResult};
use crate::domain::{
    Acquired, Attempt, Claim, Evicted, Listing, LockName, LockNames, LockView, QueueRequest,
    Released, RenewOptions, Renewed, Rollback, StepBack, SuspendOptions, Suspended, Token,
};
use attempts::Attempts;
use disagreement::Disagreements;
pub use drift::Drift;
use listing::Listings;
use nodes::Nodes;
use reports::{NodeListener, Reports};

/// Leases and queues that a majority of nodes keeps.
#[derive(Debug)]
pub struct QuorumStore(Core);

/// What the operations have in common.
#[derive(Debug)]
struct Core {
    nodes: Arc<Nodes>,
    /// What operators know the nodes by.
    addresses: Vec<String>,
    drift: Drift,
    attempts: Attempts,
    listings: Listings,
    disagreements: Disagreements,
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
            addresses: (1..=nodes.len()).map(|it| format!("node {it}")).collect(),
            disagreements: Disagreements::of_nodes(nodes.len()),
            nodes: Arc::new(Nodes::new(nodes)),
            drift,
            attempts: Attempts::default(),
            listings: Listings::default(),
            reports,
        })
    }

    /// The same, with nodes that operators know by these addresses.
    #[must_use]
    pub fn at(mut self, addresses: Vec<String>) -> Self {
        self.0.addresses = addresses;
        self
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
    ) -> StoreResult<usize> {
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
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        self.0.release(names, token, step_back, deadline).await
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

    async fn view(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        self.0.view(name, deadline).await
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
        let reports = &self.0.reports;
        let nodes = self.0.nodes.all().iter().enumerate();
        let set = nodes.map(async |(index, node)| match wanted {
            true => {
                let begins = node.set_event_delivery(true);
                reports.begin_delivery(index, begins).await;
            }
            false => node.set_event_delivery(false).await,
        });
        if !wanted {
            reports.end_deliveries();
        }
        join_all(set).await;
    }

    async fn close(&self) {
        for (node, left) in self.0.addresses.iter().zip(self.0.nodes.left_to_follow()) {
            if left > 0 {
                tracing::warn!(
                    node,
                    left,
                    "a node has not followed what was decided without it, and is not asked again: leases that have \
                     ended elsewhere may last there as long as their TTL"
                );
            }
        }
        join_all(self.0.nodes.all().iter().map(|node| node.close())).await;
    }
}
