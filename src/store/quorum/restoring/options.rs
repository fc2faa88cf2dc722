//! What else applies to a lease at a node that was granted it by a request which asked for something else: a request of a claim
//! that held it already, while this node lacked it.

use std::iter::zip;

use tokio::time::Instant;

use super::super::lease;
use super::super::nodes::NodeStore;
use super::Decided;
use crate::domain::Renewal;
use crate::store::StoreResult;
use crate::store::assignment::FenceChange;

impl Decided {
    /// Gives leases that a node has the options that a majority has, unless they have other tokens by now.
    pub(super) async fn bring_options(
        &self,
        node: &NodeStore,
        at_node: &[Renewal],
        deadline: Instant,
    ) -> StoreResult<()> {
        for (number, (has, decided)) in zip(at_node, &self.renewals).enumerate() {
            let [node_has, told] = [has, decided].map(|it| (&it.lease.holder, it.options));
            if lease::has_options(node_has, told, lease::RIGHT_WITHIN) {
                continue;
            }
            let one = self.of_those(|it| it == number);
            let Some(claim) = one.and_then(|one| one.claim_as_left()) else {
                continue;
            };
            let fence = has.lease.holder.fence;
            let change = FenceChange {
                proposed: fence,
                decided: fence,
                is_recorded: true,
                // The token stays as it is, whoever has received the lease since.
                attempt: None,
                gives_options: true,
            };
            node.assign_fences(&claim, &[change], deadline).await?;
        }
        Ok(())
    }
}
