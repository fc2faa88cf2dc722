//! What the nodes have of the leases by now, before something is brought to one of them and after that.

use std::iter::zip;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::super::answers::ByNode;
use super::super::nodes::NodeOperation;
use super::Decided;
use crate::domain::{Holder, Lease, LockName, LockState, LockView};

/// How much longer or shorter than was decided a lease may last that nobody has renewed or changed since: nodes renew it at
/// different moments, and their clocks run at different rates.
const RENEWED_LATER: Duration = Duration::from_millis(100);
const RENEWED_BEFORE: Duration = Duration::from_secs(1);

/// How many locks all nodes are asked for at once.
const LOOKS_MAX: usize = 16;

/// What nodes have of a lease.
struct AtNodes {
    /// How many have answered.
    answered: usize,
    /// How many of those have it as it was looked for.
    alike: usize,
    /// How many have no such lease. One with more holders than it lists may have it.
    lacking: usize,
}

impl Decided {
    /// Whether a majority may still have all leases as they were renewed, counting the nodes that do not answer. Another
    /// process may have ended them, which a node that lacked them does not remember, or have changed them.
    pub(in super::super) async fn is_unchanged(&self, deadline: Instant) -> bool {
        let is_same = |lease: &Lease, holder: &Holder| {
            let lasts = self.drift.at_nodes(lease.holder.expires_in);
            let left = lasts.saturating_sub(self.since.elapsed());
            terms(holder) == terms(&lease.holder)
                && holder.expires_in <= left + RENEWED_LATER
                && holder.expires_in + RENEWED_BEFORE >= left
        };
        let (all, majority) = (self.nodes.all().len(), self.nodes.majority());
        let may_be_same = |at_nodes: AtNodes| {
            let silent = all - at_nodes.answered;
            at_nodes.answered >= majority && at_nodes.alike + silent >= majority
        };
        let unchanged = self.all_locks(deadline, is_same, may_be_same);
        unchanged.await
    }

    /// Whether a majority still has all leases with the same tokens, modes and hold counts, whenever they end.
    pub(super) async fn is_as_deep(&self, deadline: Instant) -> bool {
        let majority = self.nodes.majority();
        let is_same = |lease: &Lease, holder: &Holder| terms(holder) == terms(&lease.holder);
        let are_same = |at_nodes: AtNodes| at_nodes.alike >= majority;
        self.all_locks(deadline, is_same, are_same).await
    }

    /// Whether so many nodes lack one of the leases that no majority has it.
    pub(super) async fn is_over(&self, deadline: Instant) -> bool {
        let minority = self.nodes.all().len() - self.nodes.majority();
        let may_be_held = |at_nodes: AtNodes| at_nodes.lacking <= minority;
        !self.all_locks(deadline, |_, _| true, may_be_held).await
    }

    /// Whether the nodes have all leases so.
    async fn all_locks(
        &self,
        deadline: Instant,
        is_so: impl Fn(&Lease, &Holder) -> bool,
        are_so: impl Fn(AtNodes) -> bool,
    ) -> bool {
        let locks: Vec<_> = zip(self.claim.names.iter(), &self.renewals).collect();
        for some in locks.chunks(LOOKS_MAX) {
            let looks = some.iter().map(|(name, renewal)| {
                self.at_nodes(name, deadline, |holder| is_so(&renewal.lease, holder))
            });
            if !join_all(looks).await.into_iter().all(&are_so) {
                return false;
            }
        }
        true
    }

    /// Whether a majority still has the lease so. The node may differ because another request has changed it there already,
    /// which the other nodes have carried out since.
    pub(super) async fn is_still(
        &self,
        name: &LockName,
        deadline: Instant,
        is_so: impl Fn(&Holder) -> bool,
    ) -> bool {
        self.at_nodes(name, deadline, is_so).await.alike >= self.nodes.majority()
    }

    /// Asks the nodes for the lease, until a majority has it so.
    async fn at_nodes(
        &self,
        name: &LockName,
        deadline: Instant,
        is_so: impl Fn(&Holder) -> bool,
    ) -> AtNodes {
        let (lock, claim) = (name.clone(), self.claim.token.digest(name));
        let look: NodeOperation<LockView> = Arc::new(move |node, deadline| {
            let lock = lock.clone();
            Box::pin(async move { node.inspect(&lock, deadline).await })
        });
        let is_alike = |view: &&LockView| match &view.state {
            LockState::Held(holders) => {
                let mut listed = holders.listed.iter();
                listed.any(|it| it.claim == claim && is_so(it))
            }
            LockState::Free | LockState::Cooling { .. } => false,
        };
        let lists_all = |view: &&LockView| match &view.state {
            LockState::Held(holders) => holders.listed.len() as u64 == holders.total,
            LockState::Free | LockState::Cooling { .. } => true,
        };
        let alike = |views: &ByNode<LockView>| views.received().filter(is_alike).count();
        let is_decided = |views: &ByNode<LockView>| alike(views) >= views.majority();
        let views = self.nodes.ask(deadline, &look).until(deadline, is_decided);
        let views = views.await;
        let others = views.received().filter(|view| !is_alike(view));
        AtNodes {
            answered: views.received().count(),
            alike: alike(&views),
            lacking: others.filter(lists_all).count(),
        }
    }
}

fn terms(holder: &Holder) -> impl PartialEq {
    (holder.fence, holder.mode, holder.hold_count)
}
