//! The names that a listing has found, for its further pages: without them, each page would visit every key again.
//!
//! A lock that stays held from the first page of a listing to the last one was held when its snapshot was taken. So a
//! page never misses it, however old the snapshot is. Whether a lock is still held is not known here.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{LockName, NamePrefixes};
use crate::store::ListQuery;
use crate::store::redis::UNPOISONED;

/// How many listings a process keeps names for.
const SNAPSHOTS_MAX: usize = 16;
/// How many bytes of names each keeps. A listing with more takes another snapshot when it gets there.
const NAMES_BYTES_MAX: usize = 1024 * 1024;
/// How long names are kept for the next page.
const KEPT: Duration = Duration::from_secs(60);

/// Names in their order, those after `after`.
#[derive(Debug)]
pub(in crate::store::redis) struct Snapshot {
    id: u64,
    prefix: String,
    within: Option<NamePrefixes>,
    after: Option<LockName>,
    names: Vec<LockName>,
    /// Whether there were no further names.
    is_complete: bool,
    taken_at: Instant,
}

impl Snapshot {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(super) fn names_after(&self, after: Option<&LockName>) -> &[LockName] {
        let first = after.map_or(0, |after| self.names.partition_point(|name| name <= after));
        &self.names[first..]
    }

    /// Whether it has the page of this query.
    fn continues(&self, query: &ListQuery) -> bool {
        query.snapshot == Some(self.id)
            && query.prefix == self.prefix
            && query.within == self.within
            && query.after >= self.after
            && (self.is_complete || !self.names_after(query.after.as_ref()).is_empty())
    }
}

/// Collects the names of a snapshot while a scan finds them, in any order and some of them twice.
pub(super) struct SnapshotNames {
    snapshot: Snapshot,
    names: BTreeSet<LockName>,
    bytes: usize,
    least: usize,
}

impl SnapshotNames {
    pub(super) fn new(query: &ListQuery) -> Self {
        let snapshot = Snapshot {
            id: fastrand::u64(..),
            prefix: query.prefix.clone(),
            within: query.within.clone(),
            after: query.after.clone(),
            names: Vec::new(),
            is_complete: true,
            taken_at: Instant::now(),
        };
        Self {
            snapshot,
            names: BTreeSet::new(),
            bytes: 0,
            least: query.page_size,
        }
    }

    /// Adds a name, if it is among the first ones that there is room for. A page always fits.
    pub(super) fn add(&mut self, name: LockName) {
        let is_before = self
            .snapshot
            .after
            .as_ref()
            .is_some_and(|after| name <= *after);
        let bytes = size_of(&name);
        if is_before || !self.names.insert(name) {
            return;
        }
        self.bytes += bytes;
        while self.bytes > NAMES_BYTES_MAX && self.names.len() > self.least {
            self.bytes -= self.names.pop_last().as_ref().map_or(0, size_of);
            self.snapshot.is_complete = false;
        }
    }

    pub(super) fn snapshot(self) -> Snapshot {
        Snapshot {
            names: self.names.into_iter().collect(),
            ..self.snapshot
        }
    }
}

fn size_of(name: &LockName) -> usize {
    size_of_val(name) + name.as_str().len()
}

/// The snapshots of listings that may go on.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Snapshots(Mutex<VecDeque<Arc<Snapshot>>>);

impl Snapshots {
    /// The snapshot that has the page of this query.
    pub(super) fn continued(&self, query: &ListQuery) -> Option<Arc<Snapshot>> {
        let snapshots = self.0.lock().expect(UNPOISONED);
        let mut snapshots = snapshots.iter();
        snapshots.find(|it| it.continues(query)).map(Arc::clone)
    }

    /// Keeps a snapshot for the next page, in place of the one that was used least recently.
    pub(super) fn keep(&self, snapshot: Arc<Snapshot>) {
        let mut snapshots = self.0.lock().expect(UNPOISONED);
        snapshots.retain(|it| it.id != snapshot.id && it.taken_at.elapsed() < KEPT);
        snapshots.truncate(SNAPSHOTS_MAX - 1);
        snapshots.push_front(snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::NamePrefix;

    fn name(number: usize) -> LockName {
        // As long as a name may be.
        LockName::parse(format!("{number:0255}").as_bytes()).expect("a name")
    }

    fn query(after: Option<LockName>, snapshot: Option<u64>) -> ListQuery {
        ListQuery {
            prefix: "0".to_owned(),
            within: None,
            after,
            snapshot,
            page_size: 10,
        }
    }

    fn taken(after: Option<LockName>, numbers: impl Iterator<Item = usize>) -> Arc<Snapshot> {
        let mut found = SnapshotNames::new(&query(after, None));
        numbers.for_each(|number| found.add(name(number)));
        Arc::new(found.snapshot())
    }

    #[test]
    fn names_are_in_order_and_none_is_there_twice() {
        let snapshot = taken(Some(name(1)), [5, 3, 1, 5, 0, 9].into_iter());
        assert_eq!(snapshot.names, [3, 5, 9].map(name));
        assert!(snapshot.is_complete);
        assert_eq!(snapshot.names_after(Some(&name(4))), [5, 9].map(name));
    }

    #[test]
    fn too_many_names_are_the_first_of_them() {
        let numbers = 0..5_000;
        let snapshot = taken(None, numbers.rev());
        let kept = snapshot.names.len();
        assert!((3_000..5_000).contains(&kept), "{kept}");
        assert!(!snapshot.is_complete);
        assert_eq!(snapshot.names, (0..kept).map(name).collect::<Vec<_>>());
        let snapshots = Snapshots::default();
        let id = Some(snapshot.id);
        snapshots.keep(snapshot);
        let next = |after| snapshots.continued(&query(Some(name(after)), id));
        assert!(next(kept - 2).is_some());
        // What follows has not been kept.
        assert!(next(kept - 1).is_none());
    }

    #[test]
    fn a_snapshot_continues_only_its_own_listing() {
        let snapshots = Snapshots::default();
        let snapshot = taken(Some(name(3)), 0..20);
        let id = Some(snapshot.id);
        snapshots.keep(snapshot);
        let continued = |query: &ListQuery| snapshots.continued(query).is_some();
        assert!(continued(&query(Some(name(7)), id)));
        assert!(!continued(&query(Some(name(7)), None)));
        assert!(!continued(&query(Some(name(7)), id.map(|id| id ^ 1))));
        assert!(!continued(&query(Some(name(2)), id)));
        assert!(!continued(&query(None, id)));
        let prefix = String::new();
        assert!(!continued(&ListQuery {
            prefix,
            ..query(Some(name(7)), id)
        }));
        // Who may list other locks must not be shown the names of this listing.
        assert!(!continued(&ListQuery {
            within: Some([NamePrefix::EVERY].into_iter().collect()),
            ..query(Some(name(7)), id)
        }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bounded_number_is_kept_and_not_for_long() {
        let snapshots = Snapshots::default();
        let kept = || snapshots.0.lock().expect("whole").len();
        for number in 0..SNAPSHOTS_MAX + 5 {
            snapshots.keep(taken(None, 0..number));
        }
        assert_eq!(kept(), SNAPSHOTS_MAX);
        tokio::time::advance(KEPT).await;
        snapshots.keep(taken(None, 0..1));
        assert_eq!(kept(), 1);
    }
}
