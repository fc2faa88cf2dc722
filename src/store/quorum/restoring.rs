//! What a node gets of a lease that a majority has renewed: the lease itself if it lacks it, the decided token, and the
//! changes that it has missed. Otherwise a lease that is renewed for long would lose one node after the other, and a
//! majority might have missed different changes of it. When that is done is in `renewal`.

use std::cmp::Ordering;
use std::iter::repeat;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answers::ByNode;
use super::drift::{Drift, TokenLead};
use super::lease;
use super::nodes::{NodeOperation, NodeStore, Nodes};
use super::recording::changes;
use crate::domain::{
    Acquired, Attempt, Claim, Fence, GrantKind, Holder, Lease, LockName, LockNames, LockState,
    LockView, Mode, Refused, RenewOptions, Renewal, Renewed, Rollback, RollbackRight, StepBack,
    Ttl,
};
use crate::store::StoreResult;
use crate::store::memory::wall_time;

/// How much longer or shorter than was decided a lease may last that nobody has renewed or changed since: nodes renew it at
/// different moments, and their clocks run at different rates.
const RENEWED_LATER: Duration = Duration::from_millis(100);
const RENEWED_BEFORE: Duration = Duration::from_secs(1);

/// What a majority holds, for nodes that do not.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) claim: Claim,
    /// What a node that lacks the lease grants it to.
    pub(super) attempt: Attempt,
    /// Whether this attempt may roll it back at a majority. Else nobody knows it.
    pub(super) is_withdrawable: bool,
    /// The lease of each lock, as its holder is told of it.
    pub(super) leases: Vec<Lease>,
    /// When that was decided.
    pub(super) since: Instant,
    /// Whether a majority has them so, apart from the tokens.
    pub(super) is_agreed: bool,
    pub(super) nodes: Arc<Nodes>,
    pub(super) drift: Drift,
}

/// What became of an attempt to bring a node to what was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// The node has what it can have.
    Done,
    /// It lacks the lease: another claim is in the way there, or it grants nothing for at least this long.
    NotYet(Duration),
}

impl Restored {
    fn after(refused: &Refused) -> Self {
        match refused {
            // The node may have the lease by now, as it was before a change.
            Refused::Blocked(_) | Refused::Mismatched(_) => Self::NotYet(Duration::ZERO),
            Refused::Recovering { retry_in } => Self::NotYet(*retry_in),
            Refused::Ended(_) | Refused::TooManyWaiters { .. } | Refused::TooManyLeases { .. } => {
                Self::Done
            }
        }
    }
}

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
    /// Brings a node to what was decided, which has answered this to the renewal.
    pub(super) async fn restore(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        renewed: &Renewed,
        deadline: Instant,
    ) -> StoreResult<Restored> {
        match renewed {
            Renewed::Extended(renewals) => {
                let received_by = renewals.iter().map(|it| it.withdrawable_by);
                self.bring_tokens(node, &fences(renewals), received_by, deadline)
                    .await?;
                if self.is_agreed {
                    self.make_up(node, renewals, deadline).await?;
                }
                Ok(Restored::Done)
            }
            Renewed::NotHolder(lacking)
                if lacking.len() == self.leases.len() && self.are_alike() =>
            {
                self.put_back(node, token_lead, deadline).await
            }
            Renewed::NotHolder(_) => self.restore_each(node, token_lead, deadline).await,
            Renewed::Mismatched(_) => Ok(Restored::Done),
        }
    }

    /// Whether one claim can have all leases: it has one TTL, mode and hold count.
    fn are_alike(&self) -> bool {
        let terms = |lease: &Lease| (lease.ttl, lease.holder.mode, lease.holder.hold_count);
        let mut pairs = self.leases.windows(2);
        pairs.all(|pair| terms(&pair[0]) == terms(&pair[1]))
    }

    /// Brings the node to each lock of its own. One that has some of them has refused to extend those, and refuses to grant them
    /// together with the others.
    async fn restore_each(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        deadline: Instant,
    ) -> StoreResult<Restored> {
        let options = RenewOptions {
            rollback_right: match self.is_withdrawable {
                true => RollbackRight::AsBefore,
                false => RollbackRight::default(),
            },
            ..RenewOptions::default()
        };
        let mut restored = Restored::Done;
        for (name, lease) in self.claim.names.iter().zip(&self.leases) {
            let one = self.of_one(name, lease);
            let renewed = node.renew(&one.claim.names, one.claim.token, options, deadline);
            let renewed = renewed.await?;
            let restoring = one.restore(node, token_lead, &renewed, deadline);
            match Box::pin(restoring).await? {
                Restored::Done => {}
                not_yet @ Restored::NotYet(_) => restored = not_yet,
            }
        }
        Ok(restored)
    }

    fn of_one(&self, name: &LockName, lease: &Lease) -> Self {
        Self {
            claim: Claim {
                names: LockNames::from(name.clone()),
                ttl: self.drift.kept_at_nodes(lease.ttl),
                mode: lease.holder.mode,
                hold_count: lease.holder.hold_count,
                ..self.claim.clone()
            },
            leases: vec![lease.clone()],
            nodes: Arc::clone(&self.nodes),
            ..*self
        }
    }

    /// Whether a majority may still have all leases as they were renewed, counting the nodes that do not answer. Another
    /// process may have ended them, which a node that lacked them does not remember, or have changed them.
    pub(super) async fn is_unchanged(&self, deadline: Instant) -> bool {
        let is_same = |lease: &Lease, holder: &Holder| {
            let renewed = &lease.holder;
            let lasts = self.drift.at_nodes(renewed.expires_in);
            let left = lasts.saturating_sub(self.since.elapsed());
            (holder.fence, holder.mode, holder.hold_count)
                == (renewed.fence, renewed.mode, renewed.hold_count)
                && holder.expires_in <= left + RENEWED_LATER
                && holder.expires_in + RENEWED_BEFORE >= left
        };
        let (all, majority) = (self.nodes.all().len(), self.nodes.majority());
        for (name, lease) in self.claim.names.iter().zip(&self.leases) {
            let at_nodes = self.at_nodes(name, deadline, |holder| is_same(lease, holder));
            let at_nodes = at_nodes.await;
            let silent = all - at_nodes.answered;
            if at_nodes.answered < majority || at_nodes.alike + silent < majority {
                return false;
            }
        }
        true
    }

    /// Whether so many nodes lack one of the leases that no majority has it.
    async fn is_over(&self, deadline: Instant) -> bool {
        let minority = self.nodes.all().len() - self.nodes.majority();
        for name in self.claim.names.iter() {
            if self.at_nodes(name, deadline, |_| true).await.lacking > minority {
                return true;
            }
        }
        false
    }

    /// Has the decided tokens recorded at a node that has others, unless another attempt has received a lease there since: its
    /// process may have decided on the token that the node has.
    async fn bring_tokens(
        &self,
        node: &NodeStore,
        present: &[Fence],
        received_by: impl Iterator<Item = Option<Attempt>>,
        deadline: Instant,
    ) -> StoreResult<()> {
        let decided = lease::fences(&self.leases);
        if present == decided {
            return Ok(());
        }
        let mut changes = changes(present, &decided, true, None);
        for (change, received_by) in changes.iter_mut().zip(received_by) {
            change.attempt = received_by.or_else(|| Some(Attempt::random()));
            if received_by.is_none() {
                // Since a renewal, nobody lowers a token.
                change.decided = change.decided.max(change.proposed);
            }
        }
        if changes.iter().all(|it| it.proposed == it.decided) {
            return Ok(());
        }
        let assigned = node.assign_fences(&self.claim, &changes, deadline);
        assigned.await.map(drop)
    }

    /// Puts the lease back at a node that lacks it, with the decided tokens.
    async fn put_back(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        deadline: Instant,
    ) -> StoreResult<Restored> {
        let acquired = node.acquire(&self.claim, self.attempt, None, deadline);
        let granted = match acquired.await? {
            Acquired::Granted(granted) => granted,
            Acquired::Refused(refused) => return Ok(Restored::after(&refused)),
            Acquired::Waiting(_) | Acquired::Superseded | Acquired::WaitExpired => {
                return Ok(Restored::Done);
            }
        };
        let is_too_far = token_lead.is_too_far(&granted.leases, wall_time().unix_us());
        let is_of_other = granted.kind != GrantKind::New;
        // A node whose tokens are too large has no vote. If it failed before it has the decided token, a later renewal would find
        // its own. And a later attempt that has got the lease there meanwhile keeps the right to roll it back.
        let mut is_undone = is_too_far || is_of_other && self.is_withdrawable;
        if !is_too_far && !is_of_other {
            let present = lease::fences(&granted.leases);
            let received_by = repeat(Some(self.attempt));
            let brought = self.bring_tokens(node, &present, received_by, deadline);
            // If the node fails now, a later renewal brings it the tokens.
            let _ = brought.await;
            // Another process may have released the claim meanwhile, before the node had the lease.
            is_undone = self.is_over(deadline).await;
        }
        if is_undone {
            let undo = node.withdraw(&self.claim, self.attempt, Rollback::Undo, deadline);
            undo.await?;
        }
        Ok(Restored::Done)
    }

    /// Makes up for the changes of the leases that the node has missed.
    async fn make_up(
        &self,
        node: &NodeStore,
        at_node: &[Renewal],
        deadline: Instant,
    ) -> StoreResult<()> {
        let names = self.claim.names.iter();
        for ((name, has), decided) in names.zip(at_node).zip(&self.leases) {
            let has = &has.lease;
            // A node that alone has the lease shared keeps it so: nothing makes it exclusive there again.
            let mode = (has.holder.mode != decided.holder.mode).then_some(decided.holder.mode);
            let mode = mode.filter(|mode| *mode != Mode::Exclusive);
            let ttl = self.missed_ttl(name, has.ttl, decided.ttl, deadline).await;
            if mode.is_some() || ttl.is_some() {
                let change = RenewOptions {
                    ttl: ttl.map(|ttl| self.drift.kept_at_nodes(ttl)),
                    mode,
                    rollback_right: RollbackRight::AsBefore,
                };
                let name = LockNames::from(name.clone());
                let renewed = node.renew(&name, self.claim.token, change, deadline);
                renewed.await?;
            }
            self.set_hold_count(node, name, [has, decided], deadline)
                .await?;
        }
        Ok(())
    }

    /// The TTL that the node has missed, if it has another one. A shorter one only if a majority still has the lease for no
    /// longer than that: it may have been lengthened since, and the node may be one of a majority that knows.
    async fn missed_ttl(
        &self,
        name: &LockName,
        at_node: Ttl,
        decided: Ttl,
        deadline: Instant,
    ) -> Option<Ttl> {
        let has = self.drift.ttl_of_holder(at_node);
        if has == decided {
            return None;
        }
        let longest = self.drift.kept_at_nodes(decided).get();
        let is_as_long = move |holder: &Holder| holder.expires_in <= longest;
        let is_missed =
            has.get() < decided.get() || self.is_still(name, deadline, is_as_long).await;
        is_missed.then_some(decided)
    }

    /// Whether a majority still has the lease so. The node may differ because another request has changed it there already,
    /// which the other nodes have carried out since.
    async fn is_still(
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

    async fn set_hold_count(
        &self,
        node: &NodeStore,
        name: &LockName,
        [has, decided]: [&Lease; 2],
        deadline: Instant,
    ) -> StoreResult<()> {
        let hold_count = decided.holder.hold_count;
        let is_as_deep = |holder: &Holder| holder.hold_count == hold_count;
        if is_as_deep(&has.holder) || !self.is_still(name, deadline, is_as_deep).await {
            return Ok(());
        }
        let name = LockNames::from(name.clone());
        match has.holder.hold_count.cmp(&hold_count) {
            Ordering::Less => {
                let claim = Claim {
                    names: name,
                    mode: decided.holder.mode,
                    hold_count,
                    ..self.claim.clone()
                };
                let entered = node.acquire(&claim, self.attempt, None, deadline);
                entered.await?;
            }
            Ordering::Equal => {}
            Ordering::Greater => {
                let step_back = StepBack {
                    hold_count,
                    rollback_right: RollbackRight::AsBefore,
                };
                let token = self.claim.token;
                let stepped_back = node.release(&name, token, Some(step_back), deadline);
                stepped_back.await?;
            }
        }
        Ok(())
    }
}

/// The tokens of the leases that a node has extended.
pub(super) fn fences(renewals: &[Renewal]) -> Vec<Fence> {
    lease::fences(renewals.iter().map(|renewal| &renewal.lease))
}
