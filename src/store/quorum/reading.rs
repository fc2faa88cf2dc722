//! Operations on one lock rather than a claim: inspect and evict.

use std::sync::Arc;

use tokio::time::Instant;

use super::Core;
use super::merge;
use super::nodes::{ByNode, Effect, NodeOperation};
use crate::domain::{Evicted, LockName, LockView};
use crate::store::{Deadlines, StoreResult};

impl Core {
    pub(super) async fn inspect(
        &self,
        name: &LockName,
        deadline: Instant,
    ) -> StoreResult<LockView> {
        let lock = name.clone();
        let operation: NodeOperation<LockView> = Arc::new(move |node, deadline| {
            let lock = lock.clone();
            Box::pin(async move { node.inspect(&lock, deadline).await })
        });
        let answers = self.nodes.ask(deadline, &operation);
        let is_decided = |views: &ByNode<LockView>| {
            let answered: Vec<_> = views.answered().collect();
            answered.len() >= views.majority() && merge::are_alike(&answered)
        };
        let views = answers.until(deadline, is_decided).await;
        let views = views.of_majority(Effect::None)?;
        let needed = merge::needed(self.nodes.all().len(), views.len());
        Ok(merge::view(
            self.drift,
            needed,
            name,
            &views.iter().collect::<Vec<_>>(),
        ))
    }

    pub(super) async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let (lock, reason) = (name.clone(), reason.to_owned());
        let operation: NodeOperation<Evicted> = Arc::new(move |node, _| {
            let (lock, reason) = (lock.clone(), reason.clone());
            Box::pin(async move { node.evict(&lock, &reason, deadlines).await })
        });
        let answers = self.nodes.ask(deadlines.end, &operation);
        let evicted = answers.until(deadlines.end, |_| false).await;
        let majority = self.nodes.majority();
        let nodes = self.nodes.all().len();
        let evicted = evicted.of_majority(Effect::MayBeDone)?;
        let needed = merge::needed(nodes, evicted.len());
        let holders: Vec<_> = evicted.iter().map(|evicted| &evicted.holders).collect();
        let complete = evicted.iter().filter(|evicted| evicted.is_complete);
        Ok(Evicted {
            holders: merge::holders(self.drift, needed, &holders),
            is_complete: complete.count() >= majority,
        })
    }
}
