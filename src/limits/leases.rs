//! The quotas of leases that apply to a request, with what this process knows of their counts in the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::domain::LeaseQuota;

/// How many leases a request may add: its principal may have so many, and all together. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct LeaseBudget {
    of_principal: Option<LeaseCount>,
    of_all: Option<LeaseCount>,
}

impl LeaseBudget {
    /// That of these quotas; `None` without any.
    #[must_use]
    pub fn of(of_principal: Option<&LeaseCount>, of_all: Option<&LeaseCount>) -> Option<Self> {
        (of_principal.is_some() || of_all.is_some()).then(|| Self {
            of_principal: of_principal.cloned(),
            of_all: of_all.cloned(),
        })
    }

    /// The counts: first that of the principal, so that one which has used up its quota takes nothing from the others.
    pub fn counts(&self) -> impl Iterator<Item = &LeaseCount> {
        self.of_principal.iter().chain(&self.of_all)
    }

    /// Whether one of them had no room when this process asked last. Then it asks before a claim, too, so that a client
    /// that keeps trying is granted no locks that it has to give back.
    #[must_use]
    pub fn was_full(&self) -> bool {
        self.counts().any(LeaseCount::was_full)
    }

    /// Whether a claim that the store has refused for a quota, without saying which one, was refused for that of all.
    #[must_use]
    pub fn is_full_of_all(&self) -> bool {
        match (&self.of_principal, &self.of_all) {
            (Some(of_principal), Some(of_all)) => of_all.was_full() && !of_principal.was_full(),
            (of_principal, _) => of_principal.is_none(),
        }
    }
}

/// A quota, and whether its count in the store had room when this process asked last. Clones share it.
#[derive(Clone, Debug)]
pub struct LeaseCount(Arc<LeaseCountShared>);

#[derive(Debug)]
struct LeaseCountShared {
    quota: LeaseQuota,
    was_full: AtomicBool,
}

impl LeaseCount {
    /// That of a quota, of whose count nothing is known yet.
    #[must_use]
    pub fn new(quota: LeaseQuota) -> Self {
        let was_full = AtomicBool::new(false);
        Self(Arc::new(LeaseCountShared { quota, was_full }))
    }

    /// The quota.
    #[must_use]
    pub fn quota(&self) -> &LeaseQuota {
        &self.0.quota
    }

    /// Notes whether there was room.
    pub fn note(&self, is_full: bool) {
        self.0.was_full.store(is_full, Ordering::Relaxed);
    }

    fn was_full(&self) -> bool {
        self.0.was_full.load(Ordering::Relaxed)
    }
}
