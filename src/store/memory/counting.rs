//! The count of the leases for which there is a quota. It is not part of the state, so no journal has it:
//! after a restart of a file store, a lease is counted again from its next renewal on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::MemoryStore;
use crate::domain::{
    Attempt, ClaimDigest, CountOutcome, CountStep, LeaseQuota, LeasesOf, LockName, Token, UndoneBy,
};
use crate::store::state::StoreTime;
use crate::store::{CountLeases, StoreResult};

/// The least time until a client may try again.
const RETRY_MIN: Duration = Duration::from_millis(1);

/// How many leases and quotas a step looks at, beside its own: all of them share one mutex.
const REAPED_MAX: usize = 500;

/// What is counted, by whose it is.
#[derive(Debug, Default)]
pub(super) struct LeaseCounts(BTreeMap<LeasesOf, CountedLeases>);

/// The leases of one quota.
#[derive(Debug, Default)]
struct CountedLeases {
    leases: HashMap<ClaimDigest, CountedLease>,
    by_end: BTreeSet<(StoreTime, ClaimDigest)>,
}

/// When a lease runs out, and which attempt may roll it back.
#[derive(Clone, Copy, Debug)]
struct CountedLease {
    until: StoreTime,
    undone_by: Option<Attempt>,
}

impl CountedLease {
    fn is_over(&self, now: StoreTime) -> bool {
        self.until <= now
    }
}

impl CountedLeases {
    fn step(
        &mut self,
        now: StoreTime,
        leases_max: usize,
        step: CountStep,
        claims: &[ClaimDigest],
    ) -> CountOutcome {
        self.expire(now, REAPED_MAX);
        if let CountStep::Check | CountStep::Take { .. } = step
            && let Some(retry_in) = self.full_for(now, leases_max, claims)
        {
            return CountOutcome::Full { retry_in };
        }
        for claim in claims {
            let before = self.alive(now, claim).copied();
            // None gets shorter: of two renewals in flight, the longer one may come here first.
            let at_least = |lasts| {
                let until = now + lasts;
                before.map_or(until, |before| before.until.max(until))
            };
            let undone_by_before = before.map(|lease| lease.undone_by);
            match step {
                CountStep::Check => {}
                CountStep::Take { by, lasts } => {
                    // What two requests have counted none of them undoes.
                    let undone_by = match undone_by_before {
                        None => Some(by),
                        Some(before) => before.filter(|before| *before == by),
                    };
                    self.put(*claim, at_least(lasts), undone_by);
                }
                CountStep::Keep { undone_by, lasts } => {
                    let undone_by = match undone_by {
                        UndoneBy::Nobody => None,
                        UndoneBy::Attempt(attempt) => Some(attempt),
                        UndoneBy::AsBefore => undone_by_before.flatten(),
                    };
                    self.put(*claim, at_least(lasts), undone_by);
                }
                CountStep::Extend { lasts } => {
                    if let Some(undone_by) = undone_by_before {
                        self.put(*claim, at_least(lasts), undone_by);
                    }
                }
                CountStep::Undo(attempt) if undone_by_before != Some(Some(attempt)) => {}
                CountStep::Undo(_) | CountStep::End => self.remove(claim),
            }
        }
        CountOutcome::Within
    }

    /// Removes at most `max` of the leases that have run out, and returns how many.
    fn expire(&mut self, now: StoreTime, max: usize) -> usize {
        for removed in 0..max {
            match self.by_end.first() {
                Some(&(until, claim)) if until <= now => self.remove(&claim),
                Some(_) | None => return removed,
            }
        }
        max
    }

    fn alive(&self, now: StoreTime, claim: &ClaimDigest) -> Option<&CountedLease> {
        self.leases.get(claim).filter(|lease| !lease.is_over(now))
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
            .filter(|claim| self.alive(now, claim).is_none());
        let wanted = wanted.count();
        let excess = (self.leases.len() + wanted).saturating_sub(leases_max);
        if wanted == 0 || excess == 0 {
            return None;
        }
        // After a quota became smaller, the excess may be large: then the answer is the time of an earlier lease.
        let last = self.by_end.iter().nth(excess.min(REAPED_MAX) - 1);
        let until = last.map_or(now, |(until, _)| *until);
        // Of those that have run out, not all may have been removed.
        let has_room = excess <= REAPED_MAX && last.is_some() && until <= now;
        let left_us = until.unix_us().saturating_sub(now.unix_us());
        (!has_room).then(|| Duration::from_micros(left_us).max(RETRY_MIN))
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

impl LeaseCounts {
    /// One step of a sweep, which removes leases that have run out, and counts without leases. Returns the count from
    /// which the next step continues; none if this was the last.
    fn sweep(&mut self, now: StoreTime, from: &LeasesOf) -> Option<LeasesOf> {
        let (mut left, mut next, mut without_leases) = (REAPED_MAX, None, Vec::new());
        for (of, counted) in self.0.range_mut(from..) {
            left -= 1;
            left -= counted.expire(now, left);
            if counted.leases.is_empty() {
                without_leases.push(of.clone());
            }
            if left == 0 {
                next = Some(of.clone());
                break;
            }
        }
        for of in without_leases {
            self.0.remove(&of);
        }
        next
    }
}

impl MemoryStore {
    /// Forgets the leases that have run out, in steps, so that no operation waits for all of them.
    pub(super) async fn sweep_counted(&self) {
        let mut next = Some(LeasesOf::All);
        while let Some(from) = next {
            let step = || self.counted().sweep(self.now(), &from);
            next = self.in_turn(step).await;
        }
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
        let of_quota = counts.0.entry(quota.of.clone()).or_default();
        Ok(of_quota.step(self.now(), quota.leases_max, step, &claims))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(count: usize) -> impl Iterator<Item = ClaimDigest> {
        let name = LockName::parse(b"a").expect("a name");
        std::iter::repeat_with(move || Token::random().digest(&name)).take(count)
    }

    #[test]
    fn no_step_of_a_sweep_looks_at_many_leases_or_quotas() {
        let [now, later] = [1_000_000, 2_000_000].map(StoreTime::from_unix_us);
        let mut counts = LeaseCounts::default();
        let mut add = |principal: String, leases, until| {
            let of = LeasesOf::Principal(principal.into());
            let counted = counts.0.entry(of).or_default();
            for claim in claims(leases) {
                counted.put(claim, until, None);
            }
        };
        add("many".to_owned(), 3 * REAPED_MAX, now);
        add("none".to_owned(), 0, now);
        for number in 0..3 * REAPED_MAX {
            add(format!("with one {number}"), 1, now);
            add(format!("lasting {number}"), 1, later);
        }
        let weight = |counts: &LeaseCounts| -> usize {
            counts.0.values().map(|it| 1 + it.leases.len()).sum()
        };
        let (mut next, mut before, mut steps) = (Some(LeasesOf::All), weight(&counts), 0);
        while let Some(from) = next {
            next = counts.sweep(now, &from);
            let after = weight(&counts);
            assert!(before - after <= REAPED_MAX);
            (before, steps) = (after, steps + 1);
        }
        // Each lease that has run out and each quota are looked at once, or once more where a step ends.
        assert!((12..=14).contains(&steps), "{steps} steps");
        assert!(counts.0.keys().all(|it| it.name().starts_with("lasting")));
        assert_eq!(counts.0.len(), 3 * REAPED_MAX);
    }
}
