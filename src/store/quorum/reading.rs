//! Operations on locks rather than claims: inspect, list and evict.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::Core;
use super::drift::Drift;
use super::merge;
use super::nodes::{ByNode, Effect, NodeOperation};
use crate::domain::{Evicted, Listing, LockName, LockState, LockView, PageRoom, Queue};
use crate::store::{Deadlines, ListQuery, StoreResult};

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

    /// One page. Each node's page ends somewhere, so nothing is known of the names after the first of those ends.
    pub(super) async fn list(
        &self,
        query: &ListQuery,
        deadlines: Deadlines,
    ) -> StoreResult<Listing> {
        let of_node = ListQuery {
            // It belongs to one node.
            snapshot: None,
            ..query.clone()
        };
        let operation: NodeOperation<Listing> = Arc::new(move |node, _| {
            let query = of_node.clone();
            Box::pin(async move { node.list(&query, deadlines).await })
        });
        let answers = self.nodes.ask(deadlines.end, &operation);
        let pages = answers.until(deadlines.end, |_| false).await;
        let pages = pages.of_majority(Effect::None)?;
        let needed = merge::needed(self.nodes.all().len(), pages.len());
        Ok(page(self.drift, needed, query, &pages))
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

/// The page that these pages make together.
fn page(drift: Drift, needed: usize, query: &ListQuery, pages: &[Listing]) -> Listing {
    let mut by_name: BTreeMap<&LockName, Vec<&LockView>> = BTreeMap::new();
    for lock in pages.iter().flat_map(|page| &page.locks) {
        by_name.entry(&lock.name).or_default().push(lock);
    }
    let ends = pages.iter().filter_map(|page| page.next_after.as_ref());
    let end = ends.min();
    let known = by_name
        .into_iter()
        .filter(|(name, _)| end.is_none_or(|end| *name <= end));
    let listed = known.filter_map(|(name, views)| listed(drift, needed, pages.len(), name, views));
    let mut room = PageRoom::for_locks(query.page_size);
    let mut locks: Vec<LockView> = Vec::new();
    for lock in listed {
        if !room.take(&lock) {
            let next_after = locks.last().map(|lock| lock.name.clone());
            return Listing {
                locks,
                next_after,
                snapshot: None,
            };
        }
        locks.push(lock);
    }
    Listing {
        locks,
        next_after: end.cloned(),
        snapshot: None,
    }
}

/// A lock as it is listed; none if no majority has it.
fn listed(
    drift: Drift,
    needed: usize,
    pages: usize,
    name: &LockName,
    views: Vec<&LockView>,
) -> Option<LockView> {
    let absent = LockView {
        name: name.clone(),
        state: LockState::Free,
        queue: Queue::default(),
    };
    let absent_at = pages - views.len();
    let views = views
        .into_iter()
        .chain(std::iter::repeat_n(&absent, absent_at));
    let lock = merge::view(drift, needed, name, &views.collect::<Vec<_>>());
    let is_contended = matches!(lock.state, LockState::Held(_)) || lock.queue.length > 0;
    is_contended.then_some(lock)
}
