//! The quota of leases of one principal, with what this process knows of the count in the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::domain::LeaseQuota;

/// The leases that a principal may have at a time. The store counts them. Clones share what is known.
#[derive(Clone, Debug)]
pub struct LeaseBudget(Arc<LeaseBudgetShared>);

#[derive(Debug)]
struct LeaseBudgetShared {
    quota: LeaseQuota,
    was_full: AtomicBool,
}

impl LeaseBudget {
    /// The budget of a quota, of which nothing is known yet.
    #[must_use]
    pub fn new(quota: LeaseQuota) -> Self {
        let was_full = AtomicBool::new(false);
        Self(Arc::new(LeaseBudgetShared { quota, was_full }))
    }

    /// The quota.
    #[must_use]
    pub fn quota(&self) -> &LeaseQuota {
        &self.0.quota
    }

    /// Whether there was no room when this process asked last. Then it asks before a claim, too, so that a principal that
    /// keeps trying is granted no locks that it has to give back.
    #[must_use]
    pub fn was_full(&self) -> bool {
        self.0.was_full.load(Ordering::Relaxed)
    }

    /// Notes whether there was room.
    pub fn note(&self, is_full: bool) {
        self.0.was_full.store(is_full, Ordering::Relaxed);
    }
}
