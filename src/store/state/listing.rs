//! Listings: one page at a time, in steps that visit a bounded number of locks.

use super::StoreTime;
use super::table::Table;
use crate::domain::{Listing, LockName, PageRoom};
use crate::store::ListQuery;

/// How many locks one step of a listing visits.
const LISTED_PER_STEP: usize = 100;

/// A page of a listing in progress.
#[derive(Debug)]
pub struct ListingProgress {
    listing: Listing,
    is_over: bool,
    room: PageRoom,
    /// The last lock visited.
    after: Option<LockName>,
}

impl ListingProgress {
    /// An empty page.
    #[must_use]
    pub fn new(query: &ListQuery) -> Self {
        Self {
            listing: Listing {
                locks: Vec::new(),
                next_after: None,
                snapshot: None,
            },
            is_over: false,
            room: PageRoom::for_locks(query.page_size),
            after: None,
        }
    }

    /// Whether the page is complete.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The page.
    #[must_use]
    pub fn into_listing(self) -> Listing {
        self.listing
    }
}

impl Table {
    /// One step of a listing: visits some locks after those of the earlier steps.
    pub(super) fn list_some(
        &mut self,
        query: &ListQuery,
        page: &mut ListingProgress,
        now: StoreTime,
    ) {
        for _ in 0..LISTED_PER_STEP {
            let after = page.after.as_ref().or(query.after.as_ref());
            let Some(name) = self.next_name(&query.prefix, after) else {
                page.is_over = true;
                return;
            };
            if !query.has(&name) {
                page.after = Some(name);
                continue;
            }
            let Ok(slot) = self.find_in_bounds(&name, now) else {
                // The next step continues here.
                return;
            };
            let lock = slot.map(|slot| &self.locks[slot]);
            if let Some(lock) = lock.filter(|lock| lock.is_contended()) {
                let view = lock.view(now);
                if !page.room.take(&view) {
                    page.listing.next_after =
                        page.listing.locks.last().map(|last| last.name.clone());
                    page.is_over = true;
                    return;
                }
                page.listing.locks.push(view);
            }
            page.after = Some(name);
        }
    }

    /// The next lock with this prefix, held or not.
    fn next_name(&self, prefix: &str, after: Option<&LockName>) -> Option<LockName> {
        let next = &self.locks.next(prefix, after)?.name;
        next.as_str().starts_with(prefix).then(|| next.clone())
    }
}
