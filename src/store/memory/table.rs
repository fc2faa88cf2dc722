//! Everything that the embedded store knows, and the steps that change it. Each step is atomic and sees one moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;

use super::Moment;
use super::grant::{Grant, Lock, Phase};
use crate::domain::{
    Acquired, Attempt, Bucket, Claim, Fence, HoldCount, Holder, Listing, LockName, LockState,
    LockView, NotHolder, Released, Renewal, Renewed, Token, Ttl,
};
use crate::store::{Fault, ListQuery, REMEMBERED, StoreError};

/// How many due entries a grant clears away that finds no room otherwise.
const SWEPT_WHEN_FULL: usize = 256;

/// Locks, ended claims, and the timetable of what is due when.
pub(super) struct Table {
    locks: BTreeMap<LockName, Lock>,
    ended: HashMap<(LockName, Token), NotHolder>,
    /// Exactly one entry for each entry of `locks` and of `ended`.
    due: BTreeSet<(Instant, LockName, Due)>,
    fences: Box<[u64]>,
    held: u64,
    locks_max: usize,
}

/// What an entry of the timetable is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Lock,
    Ended(Token),
}

impl Table {
    pub(super) fn new(locks_max: usize) -> Self {
        Self {
            locks: BTreeMap::new(),
            ended: HashMap::new(),
            due: BTreeSet::new(),
            fences: vec![0; Bucket::COUNT].into_boxed_slice(),
            held: 0,
            locks_max,
        }
    }

    /// How many locks are held; one that ran out counts until it is swept.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn acquire(
        &mut self,
        claim: &Claim,
        attempt: Attempt,
        now: Moment,
    ) -> Result<Acquired, StoreError> {
        let mut after_expiry = None;
        let mut closed_until = now.instant;
        match self.locks.get_mut(&claim.name).map(|lock| lock.phase(now)) {
            None => {}
            Some(Phase::Held(grant)) if grant.token == claim.token => {
                return Ok(grant.again(claim, attempt, now));
            }
            Some(Phase::Held(grant)) => {
                let holder = grant.holder(now);
                return Ok(self
                    .ended(&claim.name, claim.token)
                    .unwrap_or(Acquired::Held(vec![holder])));
            }
            Some(Phase::Expired(grant)) if grant.token == claim.token => {
                return Ok(Acquired::Ended(NotHolder::Expired));
            }
            Some(Phase::Expired(grant)) => {
                after_expiry = Some(grant.until - grant.acquired);
                closed_until = grant.closed_until();
            }
            Some(Phase::Closed(until)) => closed_until = until,
        }
        if let Some(ended) = self.ended(&claim.name, claim.token) {
            return Ok(ended);
        }
        if closed_until > now.instant {
            return Ok(Acquired::Cooling {
                free_in: closed_until - now.instant,
            });
        }
        self.grant(claim, attempt, after_expiry, now)
    }

    fn grant(
        &mut self,
        claim: &Claim,
        attempt: Attempt,
        after_expiry: Option<Duration>,
        now: Moment,
    ) -> Result<Acquired, StoreError> {
        if self.has_no_room_for(&claim.name) {
            // Entries of the past may still take room when many became due at once.
            self.sweep(now, SWEPT_WHEN_FULL);
        }
        if self.has_no_room_for(&claim.name) {
            let detail = format!("memory.locks_max = {} is reached", self.locks_max);
            return Err(StoreError::unavailable(Fault::Full, detail));
        }
        let counter = &mut self.fences[claim.name.bucket().index()];
        let fence = Fence::after(*counter, now.unix_us).ok_or_else(|| {
            StoreError::unavailable(Fault::Corrupt, "the fencing counter is used up")
        })?;
        *counter = fence.get();
        if let Some(Lock::Granted(before) | Lock::Expired(before)) = self.remove_lock(&claim.name) {
            self.remember(&claim.name, before.token, NotHolder::Lost, before.until);
        }
        let grant = Grant::new(claim, attempt, fence, now);
        let lease = grant.lease(now);
        self.insert_lock(&claim.name, Lock::Granted(grant));
        Ok(Acquired::Granted {
            lease,
            after_expiry,
        })
    }

    fn has_no_room_for(&self, name: &LockName) -> bool {
        self.locks.len() >= self.locks_max && !self.locks.contains_key(name)
    }

    /// A request cannot arrive after its withdrawal here: both are steps of one process, taken one after the other.
    pub(super) fn withdraw(&mut self, claim: &Claim, attempt: Attempt) {
        if let Some(Lock::Granted(grant) | Lock::Expired(grant)) = self.locks.get(&claim.name)
            && grant.token == claim.token
            && grant.untold == Some(attempt)
        {
            self.remove_lock(&claim.name);
        }
    }

    pub(super) fn renew(
        &mut self,
        name: &LockName,
        token: Token,
        ttl: Option<Ttl>,
        now: Moment,
    ) -> Renewed {
        let Some(Phase::Held(grant)) = self.phase_for(name, token, now) else {
            return Renewed::NotHolder(self.why_not(name, token));
        };
        let due_before = grant.until;
        grant.renew(ttl, now);
        let (due_after, lease) = (grant.until, grant.lease(now));
        self.due.remove(&(due_before, name.clone(), Due::Lock));
        self.due.insert((due_after, name.clone(), Due::Lock));
        Renewed::Extended(Renewal {
            lease,
            slack: due_before - now.instant,
        })
    }

    pub(super) fn release(
        &mut self,
        name: &LockName,
        token: Token,
        depth: Option<HoldCount>,
        now: Moment,
    ) -> Released {
        let Some(Phase::Held(grant)) = self.phase_for(name, token, now) else {
            return Released::by_other(self.why_not(name, token));
        };
        if let Some(depth) = depth {
            grant.untold = None;
            grant.hold_count = grant.hold_count.min(depth);
            return Released::SteppedBack(grant.lease(now));
        }
        let held_for = now.instant - grant.acquired;
        let closed_until = grant.acquired + grant.min_hold.unwrap_or_default();
        self.end(name, token, NotHolder::Released, closed_until, now);
        Released::Freed { held_for }
    }

    pub(super) fn evict(&mut self, name: &LockName, reason: &str, now: Moment) -> Vec<Holder> {
        let Some(Phase::Held(grant)) = self.locks.get_mut(name).map(|lock| lock.phase(now)) else {
            return Vec::new();
        };
        let (token, holder) = (grant.token, grant.holder(now));
        let closed_until = now.instant + grant.lock_delay.unwrap_or_default();
        self.end(
            name,
            token,
            NotHolder::Evicted {
                reason: reason.to_owned(),
            },
            closed_until,
            now,
        );
        vec![holder]
    }

    pub(super) fn inspect(&self, name: &LockName, now: Moment) -> LockView {
        let state = self
            .locks
            .get(name)
            .map_or(LockState::Free, |lock| lock.state(now));
        LockView {
            name: name.clone(),
            state,
        }
    }

    pub(super) fn list(&self, query: &ListQuery, now: Moment) -> Listing {
        let after = query.after.as_ref().map(LockName::as_str);
        let start = match after.filter(|after| *after >= query.prefix.as_str()) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(query.prefix.as_str()),
        };
        let mut held = self
            .locks
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(name, _)| name.as_str().starts_with(&query.prefix))
            .filter_map(|(name, lock)| match lock.state(now) {
                state @ LockState::Held(_) => Some(LockView {
                    name: name.clone(),
                    state,
                }),
                LockState::Free | LockState::Cooling { .. } => None,
            });
        let locks: Vec<_> = held.by_ref().take(query.page_size).collect();
        let next_after = held
            .next()
            .and_then(|_| locks.last().map(|lock| lock.name.clone()));
        Listing { locks, next_after }
    }

    /// Clears away at most `most` entries that are due. Says whether there may be more.
    pub(super) fn sweep(&mut self, now: Moment, most: usize) -> bool {
        for _ in 0..most {
            let Some(entry) = self
                .due
                .first()
                .filter(|(at, ..)| *at <= now.instant)
                .cloned()
            else {
                return false;
            };
            let (_, name, due) = entry;
            match due {
                Due::Lock => {
                    if let Some(Lock::Granted(grant)) = self.remove_lock(&name) {
                        self.insert_lock(&name, Lock::Expired(grant));
                    }
                }
                Due::Ended(token) => {
                    self.due.pop_first();
                    self.ended.remove(&(name, token));
                }
            }
        }
        true
    }

    /// What the lock is doing, if it is this token's.
    fn phase_for(&mut self, name: &LockName, token: Token, now: Moment) -> Option<Phase<'_>> {
        match self.locks.get_mut(name)?.phase(now) {
            Phase::Held(grant) if grant.token == token => Some(Phase::Held(grant)),
            Phase::Held(_) | Phase::Expired(_) | Phase::Closed(_) => None,
        }
    }

    fn ended(&self, name: &LockName, token: Token) -> Option<Acquired> {
        self.ended
            .get(&(name.clone(), token))
            .cloned()
            .map(Acquired::Ended)
    }

    /// Why a token that does not hold the lock does not.
    fn why_not(&self, name: &LockName, token: Token) -> NotHolder {
        match self.locks.get(name) {
            Some(Lock::Granted(grant) | Lock::Expired(grant)) if grant.token == token => {
                NotHolder::Expired
            }
            _ => self
                .ended
                .get(&(name.clone(), token))
                .cloned()
                .unwrap_or(NotHolder::Unknown),
        }
    }

    fn end(
        &mut self,
        name: &LockName,
        token: Token,
        ending: NotHolder,
        closed_until: Instant,
        now: Moment,
    ) {
        self.remove_lock(name);
        self.remember(name, token, ending, now.instant);
        if closed_until > now.instant {
            self.insert_lock(
                name,
                Lock::Closed {
                    until: closed_until,
                },
            );
        }
    }

    fn remember(&mut self, name: &LockName, token: Token, ending: NotHolder, since: Instant) {
        self.due
            .insert((since + REMEMBERED, name.clone(), Due::Ended(token)));
        self.ended.insert((name.clone(), token), ending);
    }

    fn insert_lock(&mut self, name: &LockName, lock: Lock) {
        self.held += u64::from(matches!(lock, Lock::Granted(_)));
        self.due.insert((lock.due(), name.clone(), Due::Lock));
        self.locks.insert(name.clone(), lock);
    }

    fn remove_lock(&mut self, name: &LockName) -> Option<Lock> {
        let lock = self.locks.remove(name)?;
        self.held -= u64::from(matches!(lock, Lock::Granted(_)));
        self.due.remove(&(lock.due(), name.clone(), Due::Lock));
        Some(lock)
    }
}
