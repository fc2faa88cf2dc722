//! The count of the leases for which there is a quota: each node counts for itself, and a majority decides
//! whether there is room.
//!
//! Each lease takes a place at a majority of nodes, and no node has more places than the quota. So with three nodes a
//! principal has at most half as many leases more than its quota, and with many at most twice as many; only as long as
//! nodes are away or have forgotten what they counted.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::QuorumStore;
use super::answers::{ByNode, Effect};
use super::nodes::{NodeOperation, Tries};
use crate::domain::{CountOutcome, CountStep, LeaseQuota, LockName, Token};
use crate::store::{CountLeases, StoreResult};

#[async_trait]
impl CountLeases for QuorumStore {
    async fn count_leases(
        &self,
        quota: &LeaseQuota,
        step: CountStep,
        names: &[LockName],
        token: Token,
        deadline: Instant,
    ) -> StoreResult<CountOutcome> {
        let nodes = &self.0.nodes;
        let majority = nodes.majority();
        let ask = |step| {
            let (quota, names) = (quota.clone(), Arc::<[LockName]>::from(names));
            let operation: NodeOperation<CountOutcome> = Arc::new(move |node, deadline| {
                let (quota, names) = (quota.clone(), Arc::clone(&names));
                Box::pin(async move {
                    let counted = node.count_leases(&quota, step, &names, token, deadline);
                    counted.await
                })
            });
            // In turn, so that no node counts a lease after it was told that the lease has ended.
            nodes.ask_in_turn(token, Tries::Once, deadline, &operation)
        };
        let within = |answers: &ByNode<CountOutcome>| {
            let answered = answers.received();
            answered.filter(|it| **it == CountOutcome::Within).count()
        };
        let is_decided = |answers: &ByNode<CountOutcome>| {
            within(answers) >= majority || within(answers) + answers.missing() < majority
        };
        let answers = ask(step).until(deadline, is_decided).await;
        if within(&answers) >= majority {
            return Ok(CountOutcome::Within);
        }
        if let CountStep::Take { by, .. } = step {
            // They have until the same deadline, whoever waits for their answers. What is counted after that ends by itself.
            drop(ask(CountStep::Undo(by)));
        }
        let of_majority = answers.of_majority(Effect::MayBeDone)?;
        let retry_in = of_majority.into_iter().filter_map(|counted| match counted {
            CountOutcome::Within => None,
            CountOutcome::Full { retry_in } => Some(retry_in),
        });
        Ok(CountOutcome::Full {
            retry_in: retry_in.min().unwrap_or_default(),
        })
    }
}
