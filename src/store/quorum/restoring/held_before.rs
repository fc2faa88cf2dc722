//! What a majority has of the leases of a claim that held them before it was asked for again, for nodes that lack them, or have
//! them otherwise.

use std::iter::zip;
use std::sync::Arc;

use tokio::time::Instant;

use super::super::drift::{Drift, TokenLead};
use super::super::grants::{is_from_before, with_options};
use super::super::lease::{self, AtNode};
use super::super::nodes::{NodeStore, Nodes};
use super::Decided;
use crate::domain::{Attempt, Granted, Lease, LockNames, RenewOptions, Renewal, Renewed, Token};
use crate::store::StoreResult;

/// What a majority has.
#[derive(Debug)]
pub(in super::super) struct HeldBefore {
    pub(in super::super) nodes: Arc<Nodes>,
    pub(in super::super) drift: Drift,
    pub(in super::super) names: LockNames,
    pub(in super::super) token: Token,
    /// The leases as the nodes that had them have answered.
    pub(in super::super) granted: Granted,
    /// Whether a majority has it so, apart from the tokens.
    pub(in super::super) is_agreed: bool,
    /// When the nodes were asked.
    pub(in super::super) asked_at: Instant,
}

impl HeldBefore {
    /// Brings a node that has answered to this attempt as if it lacked the leases, or not at all, to what a majority has: also
    /// if that has changed since, as far as no change can concern it. What is left to do then, a renewal does.
    pub(in super::super) async fn restore(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        attempt: Attempt,
        deadline: Instant,
    ) -> StoreResult<()> {
        let Some(decided) = self.decided(attempt) else {
            return Ok(());
        };
        let options = RenewOptions::AS_BEFORE;
        let renewed = node.renew(&self.names, self.token, options, deadline);
        let renewed = renewed.await?;
        if let (Renewed::Extended(renewals), true) = (&renewed, self.is_agreed) {
            decided.bring_options(node, renewals, deadline).await?;
        }
        if !decided.is_as_deep(deadline).await {
            return Ok(());
        }
        match &renewed {
            Renewed::Extended(renewals) => {
                decided
                    .bring_tokens_and_terms(node, renewals, deadline)
                    .await
            }
            Renewed::NotHolder(_) | Renewed::Mismatched(_) => {
                let restored = decided.restore(node, token_lead, &renewed, deadline);
                restored.await.map(drop)
            }
        }
    }

    /// Whether a node with this grant has the leases as a majority has them, as far as it is known, apart from their tokens.
    pub(in super::super) fn is_had(&self, granted: &Granted) -> bool {
        let mut pairs = zip(with_options(granted), with_options(&self.granted));
        let is_alike = |((has, options), told): (AtNode<'_>, AtNode<'_>)| {
            let has = Lease {
                ttl: self.drift.ttl_of_holder(has.ttl),
                ..has.clone()
            };
            lease::are_alike((&has, options), told, lease::RIGHT_WITHIN)
        };
        is_from_before(granted) && (!self.is_agreed || pairs.all(is_alike))
    }

    fn decided(&self, attempt: Attempt) -> Option<Decided> {
        let held = zip(&self.granted.leases, &self.granted.options);
        let renewals = held.map(|(lease, options)| Renewal {
            lease: lease.clone(),
            remaining_before: lease.holder.expires_in,
            options: *options,
            withdrawable_by: Some(attempt),
        });
        let (renewals, claim) = (renewals.collect(), (&self.names, self.token));
        let (nodes, asked_at) = (&self.nodes, self.asked_at);
        Decided::new(nodes, self.drift, claim, renewals, self.is_agreed, asked_at)
    }
}
