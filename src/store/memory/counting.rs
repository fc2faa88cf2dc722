//! The count of the leases of principals that have a quota of them. It is not part of the state, so no journal has it:
//! after a restart of a file store, a lease is counted again from its next renewal on.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::MemoryStore;
use crate::domain::{
    Attempt, ClaimDigest, CountOutcome, CountStep, LeaseQuota, LockName, Token, UndoneBy,
};
use crate::store::state::StoreTime;
use crate::store::{CountLeases, StoreResult};

/// The least time until a client may try again.
const RETRY_MIN: Duration = Duration::from_millis(1);

/// What is counted, by principal.
#[derive(Debug, Default)]
pub(super) struct LeaseCounts(HashMap<Arc<str>, PrincipalLeases>);

/// The leases of one principal.
#[derive(Debug, Default)]
struct PrincipalLeases {
    leases: HashMap<ClaimDigest, CountedLease>,
    by_end: BTreeSet<(StoreTime, ClaimDigest)>,
}

/// When a lease runs out, and which attempt may roll it back.
#[derive(Clone, Copy, Debug)]
struct CountedLease {
    until: StoreTime,
    undone_by: Option<Attempt>,
}

impl PrincipalLeases {
    fn step(
        &mut self,
        now: StoreTime,
        leases_max: usize,
        step: CountStep,
        claims: &[ClaimDigest],
    ) -> CountOutcome {
        self.expire(now);
        if let CountStep::Check | CountStep::Take { .. } = step
            && let Some(retry_in) = self.full_for(now, leases_max, claims)
        {
            return CountOutcome::Full { retry_in };
        }
        for claim in claims {
            let before = self.leases.get(claim).map(|lease| lease.undone_by);
            match step {
                CountStep::Check => {}
                CountStep::Take { by, lasts } => {
                    // A grant that was replayed or renewed before it was counted is final.
                    let undone_by = before.map_or(Some(by), |before| before.map(|_| by));
                    self.put(*claim, now + lasts, undone_by);
                }
                CountStep::Keep { undone_by, lasts } => {
                    let undone_by = match undone_by {
                        UndoneBy::Nobody => None,
                        UndoneBy::Attempt(attempt) => Some(attempt),
                        UndoneBy::AsBefore => before.flatten(),
                    };
                    self.put(*claim, now + lasts, undone_by);
                }
                CountStep::Undo(attempt) if before != Some(Some(attempt)) => {}
                CountStep::Undo(_) | CountStep::End => self.remove(claim),
            }
        }
        CountOutcome::Within
    }

    fn expire(&mut self, now: StoreTime) {
        while let Some(&(until, claim)) = self.by_end.first()
            && until <= now
        {
            self.remove(&claim);
        }
    }

    /// How long until there is room for these leases; none if there is.
    fn full_for(
        &self,
        now: StoreTime,
        leases_max: usize,
        claims: &[ClaimDigest],
    ) -> Option<Duration> {
        let wanted = claims
            .iter()
            .filter(|claim| !self.leases.contains_key(*claim));
        let wanted = wanted.count();
        let excess = (self.leases.len() + wanted).saturating_sub(leases_max);
        if wanted == 0 || excess == 0 {
            return None;
        }
        let last = self.by_end.iter().nth(excess - 1);
        let left_us = last.map_or(0, |(until, _)| until.unix_us() - now.unix_us());
        Some(Duration::from_micros(left_us).max(RETRY_MIN))
    }

    fn put(&mut self, claim: ClaimDigest, until: StoreTime, undone_by: Option<Attempt>) {
        self.remove(&claim);
        self.leases.insert(claim, CountedLease { until, undone_by });
        self.by_end.insert((until, claim));
    }

    fn remove(&mut self, claim: &ClaimDigest) {
        if let Some(lease) = self.leases.remove(claim) {
            self.by_end.remove(&(lease.until, *claim));
        }
    }
}

impl MemoryStore {
    /// Forgets the leases that have run out.
    pub(super) fn forget_counted(&self) {
        let now = self.now();
        self.counted().0.retain(|_, of_principal| {
            of_principal.expire(now);
            !of_principal.leases.is_empty()
        });
    }

    fn counted(&self) -> MutexGuard<'_, LeaseCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl CountLeases for MemoryStore {
    async fn count_leases(
        &self,
        quota: &LeaseQuota,
        step: CountStep,
        names: &[LockName],
        token: Token,
        _: Instant,
    ) -> StoreResult<CountOutcome> {
        let claims: Vec<_> = names.iter().map(|name| token.digest(name)).collect();
        let mut counts = self.counted();
        let of_principal = counts.0.entry(Arc::clone(&quota.principal)).or_default();
        Ok(of_principal.step(self.now(), quota.leases_max, step, &claims))
    }
}
