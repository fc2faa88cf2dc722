//! The changes of a lease that a node has missed.

use std::cmp::Ordering;

use tokio::time::Instant;

use super::super::nodes::NodeStore;
use super::Decided;
use crate::domain::{
    Holder, Lease, LockName, LockNames, Mode, RenewOptions, Renewal, RollbackRight, StepBack, Ttl,
};
use crate::store::StoreResult;

impl Decided {
    /// Makes up for the changes of the leases that the node has missed.
    pub(super) async fn make_up(
        &self,
        node: &NodeStore,
        at_node: &[Renewal],
        deadline: Instant,
    ) -> StoreResult<()> {
        let names = self.claim.names.iter();
        let locks = names.zip(at_node).zip(&self.renewals).enumerate();
        for (number, ((name, has), decided)) in locks {
            let (has, decided) = (&has.lease, &decided.lease);
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
            let lock = (number, name);
            self.set_hold_count(node, lock, [has, decided], deadline)
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

    async fn set_hold_count(
        &self,
        node: &NodeStore,
        (number, name): (usize, &LockName),
        [has, decided]: [&Lease; 2],
        deadline: Instant,
    ) -> StoreResult<()> {
        let hold_count = decided.holder.hold_count;
        let is_as_deep = |holder: &Holder| holder.hold_count == hold_count;
        if is_as_deep(&has.holder) || !self.is_still(name, deadline, is_as_deep).await {
            return Ok(());
        }
        match has.holder.hold_count.cmp(&hold_count) {
            Ordering::Less => {
                if let Some(one) = self.of_those(|it| it == number) {
                    let entered = node.acquire(&one.claim, one.attempt, None, deadline);
                    entered.await?;
                }
            }
            Ordering::Equal => {}
            Ordering::Greater => {
                let step_back = StepBack {
                    hold_count,
                    rollback_right: RollbackRight::AsBefore,
                };
                let (name, token) = (LockNames::from(name.clone()), self.claim.token);
                let stepped_back = node.release(&name, token, Some(step_back), deadline);
                stepped_back.await?;
            }
        }
        Ok(())
    }
}
