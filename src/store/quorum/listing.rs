//! A page of locks, made of the pages of the nodes. Each node continues from its own snapshot of names; which of them belong
//! to one listing is kept here.
//!
//! A lock that a majority holds all the time may change its nodes meanwhile: one node loses it, and a renewal puts it back
//! at another, whose snapshot does not have it. So a lock that too few of the pages have is inspected, and so is one
//! of which the pages leave open who holds it. Of a page that has many of them, only the first are inspected: the rest is
//! listed as the pages show it, so that a page takes no longer than an inspection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use futures_util::future::join_all;

use super::Core;
use super::answers::Effect;
use super::merge;
use crate::domain::{Listing, LockName, LockState, LockView, PageRoom, Queue};
use crate::store::{Deadlines, ListQuery, StoreResult};

/// How many listings a process can continue: as many as it keeps names of at each node.
const LISTINGS_MAX: usize = 16;

/// How many locks of a page are inspected, all at once.
const INSPECTIONS_MAX: usize = 32;

/// The listings that may go on.
#[derive(Debug, Default)]
pub(super) struct Listings(Mutex<VecDeque<(u64, NodeSnapshots)>>);

/// The snapshot at each node.
type NodeSnapshots = Vec<Option<u64>>;

impl Listings {
    /// The snapshots that a listing continues from.
    fn continued(&self, id: Option<u64>) -> Option<NodeSnapshots> {
        let listings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut listings = listings.iter();
        let (_, snapshots) = listings.find(|(known, _)| Some(*known) == id)?;
        Some(snapshots.clone())
    }

    /// Keeps them for the next page, in place of those that were used least recently. Returns by what they are found.
    fn keep(&self, id: Option<u64>, snapshots: NodeSnapshots) -> u64 {
        let mut listings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listings.retain(|(known, _)| Some(*known) != id);
        listings.truncate(LISTINGS_MAX - 1);
        let id = id.unwrap_or_else(|| fastrand::u64(..));
        listings.push_front((id, snapshots));
        id
    }
}

impl Core {
    pub(super) async fn list(
        &self,
        query: &ListQuery,
        deadlines: Deadlines,
    ) -> StoreResult<Listing> {
        let known = self.listings.continued(query.snapshot);
        let mut snapshots = known.unwrap_or_else(|| vec![None; self.nodes.all().len()]);
        let answers = self
            .nodes
            .ask_each::<Listing>(deadlines.end, |index, node| {
                let query = ListQuery {
                    snapshot: snapshots[index],
                    ..query.clone()
                };
                Box::pin(async move { node.list(&query, deadlines).await })
            });
        let pages = answers.until(deadlines.end, |_| false).await;
        for (snapshot, page) in snapshots.iter_mut().zip(&pages.0) {
            if let Some(Ok(page)) = page {
                // A node whose names are all listed may still have to confirm that there are no more.
                *snapshot = page.snapshot.or(*snapshot);
            }
        }
        let pages = pages.of_majority(Effect::None)?;
        let mut listing = self.merged(query, &pages, deadlines).await;
        if listing.next_after.is_some() && snapshots.iter().any(Option::is_some) {
            listing.snapshot = Some(self.listings.keep(query.snapshot, snapshots));
        }
        Ok(listing)
    }

    /// The page that these pages make together. Each of them ends somewhere, so nothing is known of the names after the
    /// first of those ends.
    async fn merged(&self, query: &ListQuery, pages: &[Listing], deadlines: Deadlines) -> Listing {
        let end = pages.iter().filter_map(|page| page.next_after.as_ref());
        let end = end.min();
        let mut by_name: BTreeMap<&LockName, Vec<&LockView>> = BTreeMap::new();
        for lock in pages.iter().flat_map(|page| &page.locks) {
            if end.is_none_or(|end| lock.name <= *end) {
                by_name.entry(&lock.name).or_default().push(lock);
            }
        }
        let needed = merge::needed(self.nodes.all().len(), pages.len());
        let majority = self.nodes.majority();
        let is_missing = |views: &[&LockView]| views.len() < needed;
        let unclear = by_name
            .iter()
            .filter(|(_, views)| is_missing(views) || merge::is_unclear(majority, views));
        let mut unclear: Vec<_> = unclear.collect();
        // First those that would not be listed at all.
        unclear.sort_by_key(|(_, views)| !is_missing(views));
        let unclear = unclear.into_iter().map(|(name, _)| *name);
        let mut inspected = self.inspected(unclear, deadlines).await;
        let mut room = PageRoom::for_locks(query.page_size);
        let mut locks: Vec<LockView> = Vec::new();
        let mut next_after = end.cloned();
        for (name, views) in by_name {
            let lock = match inspected.remove(name) {
                Some(lock) => lock,
                None => self.merged_view(needed, pages.len(), name, views),
            };
            let is_listed = matches!(lock.state, LockState::Held(_)) || lock.queue.length > 0;
            if !is_listed {
                continue;
            }
            if !room.take(&lock) {
                next_after = locks.last().map(|lock| lock.name.clone());
                break;
            }
            locks.push(lock);
        }
        Listing {
            locks,
            next_after,
            snapshot: None,
        }
    }

    /// The first of these locks, as a majority shows them now, if it answers.
    async fn inspected(
        &self,
        names: impl Iterator<Item = &LockName>,
        deadlines: Deadlines,
    ) -> BTreeMap<LockName, LockView> {
        let names = names.take(INSPECTIONS_MAX);
        let views = join_all(names.map(|name| self.view(name, deadlines.of_step()))).await;
        let views = views.into_iter().filter_map(Result::ok);
        views.map(|view| (view.name.clone(), view)).collect()
    }

    /// A lock as these pages show it, of which some do not have it.
    fn merged_view(
        &self,
        needed: usize,
        pages: usize,
        name: &LockName,
        views: Vec<&LockView>,
    ) -> LockView {
        let absent = LockView::new(name.clone(), LockState::Free, Queue::default());
        let absent_at = pages - views.len();
        let absences = std::iter::repeat_n(&absent, absent_at);
        let views: Vec<_> = views.into_iter().chain(absences).collect();
        merge::view(self.drift, needed, name, &views)
    }
}
