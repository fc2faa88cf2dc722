//! Operations on granted claims: renew, release, evict and withdraw.

use super::acquire::mismatch;
use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use super::lock::Lock;
use super::table::Table;
use crate::domain::{
    Attempt, Claim, EventKind, HoldCount, Holder, LockName, LockNames, Mismatch, Mode, NotHeld,
    NotHolder, Released, RenewOptions, Renewal, Renewed, Rollback, Token,
};

impl Table {
    pub(super) fn renew(
        &mut self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        now: StoreTime,
    ) -> Renewed {
        for name in names.iter() {
            self.expire_due(name, now);
        }
        let not_held: Vec<NotHeld> = names
            .iter()
            .filter_map(|name| self.not_held(name, token, now))
            .collect();
        if !not_held.is_empty() {
            return Renewed::NotHolder(not_held);
        }
        let mismatch = names
            .iter()
            .find_map(|name| self.forbidden(name, token, change.mode?));
        if let Some(mismatch) = mismatch {
            return Renewed::Contradicts(mismatch);
        }
        Renewed::Extended(
            names
                .iter()
                .filter_map(|name| self.renew_one(name, token, change, now))
                .collect(),
        )
    }

    /// The mismatch if the claim's lease may not change to this mode.
    fn forbidden(&self, name: &LockName, token: Token, requested: Mode) -> Option<Mismatch> {
        let held = self.locks.get(name)?.leases.get(token)?.mode;
        let is_allowed = held == requested || held == Mode::Exclusive;
        (!is_allowed).then(|| mismatch(held, requested, name))
    }

    fn renew_one(
        &mut self,
        name: &LockName,
        token: Token,
        change: RenewOptions,
        now: StoreTime,
    ) -> Option<Renewal> {
        let lock = self.locks.get_mut(name)?;
        let remaining_before = lock.leases.get(token)?.until - now.instant;
        lock.change(token, |record| {
            record.mode = change.mode.unwrap_or(record.mode);
            record.renew(change, now);
        });
        let record = lock.leases.get(token)?;
        let lease = record.lease(now);
        self.notifications
            .event(EventKind::Renewed, name, record, now);
        self.touch(name);
        Some(Renewal {
            lease,
            remaining_before,
        })
    }

    pub(super) fn release(
        &mut self,
        names: &LockNames,
        token: Token,
        depth: Option<HoldCount>,
        now: StoreTime,
    ) -> Vec<Released> {
        names
            .iter()
            .map(|name| {
                self.expire_due(name, now);
                match depth {
                    None => self.free(name, token, now),
                    Some(depth) => self.step_back(name, token, depth, now),
                }
                .or_else(|| self.leave_queue(names, name, token, now))
                .unwrap_or_else(|| Released::by_other(self.why_not(name, token, now)))
            })
            .collect()
    }

    fn free(&mut self, name: &LockName, token: Token, now: StoreTime) -> Option<Released> {
        let lock = self.locks.get_mut(name)?;
        let kept = lock.leases.get(token)?.kept_after_release();
        let record = lock.end(token, kept, now)?;
        self.notifications
            .event(EventKind::Released, name, &record, now);
        if record.is_of_stream {
            self.notifications.released(name, token);
        }
        self.tombstones
            .remember(name, token, NotHolder::Released, now.instant);
        self.touch(name);
        Some(Released::Freed {
            held_for: now.instant - record.acquired,
        })
    }

    fn step_back(
        &mut self,
        name: &LockName,
        token: Token,
        depth: HoldCount,
        now: StoreTime,
    ) -> Option<Released> {
        let record = self.locks.get_mut(name)?.leases.get_mut(token)?;
        record.step_back(depth);
        Some(Released::SteppedBack(record.lease(now)))
    }

    /// A claim that is released on one of its locks can never be granted, so it leaves all of its queues; the locks in
    /// `named` are released on their own.
    fn leave_queue(
        &mut self,
        named: &LockNames,
        name: &LockName,
        token: Token,
        now: StoreTime,
    ) -> Option<Released> {
        let ticket = self.queue_mut(name)?.remove(token)?;
        self.touch(name);
        for other in ticket.names.iter().filter(|other| !named.contains(other)) {
            if let Some(queue) = self.queue_mut(other) {
                queue.remove(token);
                self.touch(other);
            }
        }
        self.tombstones
            .remember(name, token, NotHolder::Released, now.instant);
        Some(Released::LeftQueue)
    }

    /// The holders of the lock, to be evicted in steps. Claims granted between two steps are not among them.
    pub(super) fn begin_eviction(&mut self, name: &LockName, now: StoreTime) -> Vec<Token> {
        self.expire_due(name, now);
        let lock = self.locks.get(name);
        lock.map_or_else(Vec::new, |lock| lock.leases.tokens())
    }

    /// One step of an eviction: evicts some of the holders.
    pub(super) fn evict_some(
        &mut self,
        name: &LockName,
        tokens: &[Token],
        reason: &str,
        now: StoreTime,
    ) -> Vec<Holder> {
        self.expire_due(name, now);
        let evict = |token: &Token| self.evict_one(name, *token, reason, now);
        let evicted: Vec<_> = tokens.iter().filter_map(evict).collect();
        if !evicted.is_empty() {
            self.notifications.evicted(name);
        }
        self.touch(name);
        evicted
    }

    fn evict_one(
        &mut self,
        name: &LockName,
        token: Token,
        reason: &str,
        now: StoreTime,
    ) -> Option<Holder> {
        let lock = self.locks.get_mut(name)?;
        let kept = lock.leases.get(token)?.kept_after_eviction(now);
        let record = lock.end(token, kept, now)?;
        let reason = reason.to_owned();
        self.tombstones
            .remember(name, token, NotHolder::Evicted { reason }, now.instant);
        self.notifications
            .event(EventKind::Evicted, name, &record, now);
        Some(record.holder(now))
    }

    /// A request cannot arrive after its withdrawal here: both are steps of one process, in sequence.
    pub(super) fn withdraw(
        &mut self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        now: StoreTime,
    ) {
        let token = claim.token;
        for name in claim.names.iter() {
            self.expire_due(name, now);
            let expired = match rollback {
                Rollback::Undo => self.tombstones.withdraw(name, token, attempt),
                Rollback::Close => None,
            };
            let Some(lock) = self.locks.get_mut(name) else {
                continue;
            };
            if let Some(fence) = expired {
                lock.end_cooldown(fence);
                lock.last_expired.take_if(|expired| expired.token == token);
            }
            if let Some(record) = roll_back(lock, token, attempt, rollback, now) {
                self.notifications
                    .event(EventKind::Released, name, &record, now);
            }
            self.touch(name);
        }
    }

    fn not_held(&self, name: &LockName, token: Token, now: StoreTime) -> Option<NotHeld> {
        let leases = self.locks.get(name).map(|lock| &lock.leases);
        let is_held = leases.is_some_and(|leases| leases.get(token).is_some());
        (!is_held).then(|| NotHeld {
            name: name.clone(),
            reason: self.why_not(name, token, now),
        })
    }

    /// Why a token does not hold the lock.
    fn why_not(&self, name: &LockName, token: Token, now: StoreTime) -> NotHolder {
        let ended = self.tombstones.get(name, token, now);
        ended.unwrap_or(NotHolder::Unknown)
    }
}

/// Ends a lease if this attempt may roll it back and no attempt before it holds.
fn roll_back(
    lock: &mut Lock,
    token: Token,
    attempt: Attempt,
    rollback: Rollback,
    now: StoreTime,
) -> Option<LeaseRecord> {
    let record = lock.leases.get_mut(token)?;
    let kept = record.kept_after_rollback(rollback, now);
    record
        .receivers
        .end_turn(attempt, rollback)
        .then(|| lock.end(token, kept, now))?
}
