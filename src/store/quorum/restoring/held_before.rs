//! What a majority has of the leases of a claim that held them before it was asked for again, for nodes that lack them.

use std::iter::zip;
use std::sync::Arc;

use tokio::time::Instant;

use super::super::drift::{Drift, TokenLead};
use super::super::nodes::{NodeStore, Nodes};
use super::Decided;
use crate::domain::{Attempt, Granted, LockNames, Renewal, Token};
use crate::store::StoreResult;

/// What a majority has.
#[derive(Debug)]
pub(in super::super) struct HeldBefore {
    pub(in super::super) nodes: Arc<Nodes>,
    pub(in super::super) drift: Drift,
    pub(in super::super) names: LockNames,
    pub(in super::super) token: Token,
    /// As its holder is told of it.
    pub(in super::super) granted: Granted,
    /// When the nodes were asked, and when a majority had answered.
    pub(in super::super) asked_at: Instant,
    pub(in super::super) since: Instant,
}

impl HeldBefore {
    /// Has a node that lacks the leases get them as a majority has them, by an attempt that the node does not refuse; unless they
    /// have changed since. What is left to do then, a renewal does.
    pub(in super::super) async fn put_back(
        &self,
        node: &NodeStore,
        token_lead: &TokenLead,
        attempt: Attempt,
        deadline: Instant,
    ) -> StoreResult<()> {
        let Some(decided) = self.decided(attempt) else {
            return Ok(());
        };
        match decided.is_unchanged(deadline).await {
            true => decided.put_back(node, token_lead, deadline).await.map(drop),
            false => Ok(()),
        }
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
        Some(Decided {
            since: self.since,
            ..Decided::new(nodes, self.drift, claim, renewals, false, asked_at)?
        })
    }
}
