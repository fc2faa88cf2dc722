//! What becomes of a granted claim: it is renewed, released, evicted or withdrawn.

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
        let lost: Vec<NotHeld> = names
            .iter()
            .filter_map(|name| self.lost(name, token, now))
            .collect();
        if !lost.is_empty() {
            return Renewed::NotHolder(lost);
        }
        let contradiction = names
            .iter()
            .find_map(|name| self.forbidden(name, token, change.mode?));
        if let Some(contradiction) = contradiction {
            return Renewed::Contradicts(contradiction);
        }
        Renewed::Extended(
            names
                .iter()
                .filter_map(|name| self.renew_one(name, token, change, now))
                .collect(),
        )
    }

    /// How the claim would contradict itself if its lease were changed so.
    fn forbidden(&self, name: &LockName, token: Token, asked: Mode) -> Option<Mismatch> {
        let held = self.locks.get(name)?.holds.get(token)?.mode;
        let is_allowed = held == asked || held == Mode::Exclusive;
        (!is_allowed).then(|| mismatch(held, asked, name))
    }

    fn renew_one(
        &mut self,
        name: &LockName,
        token: Token,
        change: RenewOptions,
        now: StoreTime,
    ) -> Option<Renewal> {
        let lock = self.locks.get_mut(name)?;
        let slack = lock.holds.get(token)?.until - now.instant;
        lock.change(token, |hold| {
            hold.mode = change.mode.unwrap_or(hold.mode);
            hold.renew(change, now);
        });
        let hold = lock.holds.get(token)?;
        let lease = hold.lease(now);
        self.signals.event(EventKind::Renewed, name, hold, now);
        self.touch(name);
        Some(Renewal {
            lease,
            remaining_before: slack,
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
        let kept = lock.holds.get(token)?.kept_after_release();
        let hold = lock.end(token, kept, now)?;
        self.signals.event(EventKind::Released, name, &hold, now);
        if hold.is_of_stream {
            self.signals.released(name, token);
        }
        self.endings
            .remember(name, token, NotHolder::Released, now.instant);
        self.touch(name);
        Some(Released::Freed {
            held_for: now.instant - hold.acquired,
        })
    }

    fn step_back(
        &mut self,
        name: &LockName,
        token: Token,
        depth: HoldCount,
        now: StoreTime,
    ) -> Option<Released> {
        let hold = self.locks.get_mut(name)?.holds.get_mut(token)?;
        hold.step_back(depth);
        Some(Released::SteppedBack(hold.lease(now)))
    }

    /// A claim that is released on one of its locks can never be granted, so it leaves all of its queues; those that are
    /// `named` have their own turn.
    fn leave_queue(
        &mut self,
        named: &LockNames,
        name: &LockName,
        token: Token,
        now: StoreTime,
    ) -> Option<Released> {
        let ticket = self.line_mut(name)?.remove(token)?;
        self.touch(name);
        for other in ticket.names.iter().filter(|other| !named.contains(other)) {
            if let Some(line) = self.line_mut(other) {
                line.remove(token);
                self.touch(other);
            }
        }
        self.endings
            .remember(name, token, NotHolder::Released, now.instant);
        Some(Released::LeftQueue)
    }

    /// Those who hold the lock, to be evicted in steps: whoever comes to hold it between two steps is not one of them.
    pub(super) fn begin_eviction(&mut self, name: &LockName, now: StoreTime) -> Vec<Token> {
        self.expire_due(name, now);
        let lock = self.locks.get(name);
        lock.map_or_else(Vec::new, |lock| lock.holds.tokens())
    }

    /// One step of an eviction: takes the lock away from some of its holders.
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
            self.signals.evicted(name);
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
        let kept = lock.holds.get(token)?.kept_after_eviction(now);
        let hold = lock.end(token, kept, now)?;
        let reason = reason.to_owned();
        self.endings
            .remember(name, token, NotHolder::Evicted { reason }, now.instant);
        self.signals.event(EventKind::Evicted, name, &hold, now);
        Some(hold.holder(now))
    }

    /// A request cannot arrive after its withdrawal here: both are steps of one process, taken one after the other.
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
                Rollback::Undo => self.endings.withdraw(name, token, attempt),
                Rollback::Close => None,
            };
            let Some(lock) = self.locks.get_mut(name) else {
                continue;
            };
            if let Some(fence) = expired {
                lock.give_back_kept(fence);
                lock.last_expired.take_if(|ran_out| ran_out.token == token);
            }
            if let Some(hold) = roll_back(lock, token, attempt, rollback, now) {
                self.signals.event(EventKind::Released, name, &hold, now);
            }
            self.touch(name);
        }
    }

    fn lost(&self, name: &LockName, token: Token, now: StoreTime) -> Option<NotHeld> {
        let holds = self.locks.get(name).map(|lock| &lock.holds);
        let is_held = holds.is_some_and(|holds| holds.get(token).is_some());
        (!is_held).then(|| NotHeld {
            name: name.clone(),
            reason: self.why_not(name, token, now),
        })
    }

    /// Why a token that does not hold the lock does not.
    fn why_not(&self, name: &LockName, token: Token, now: StoreTime) -> NotHolder {
        let ended = self.endings.get(name, token, now);
        ended.unwrap_or(NotHolder::Unknown)
    }
}

/// Ends a lease if this attempt may roll it back.
fn roll_back(
    lock: &mut Lock,
    token: Token,
    attempt: Attempt,
    rollback: Rollback,
    now: StoreTime,
) -> Option<LeaseRecord> {
    let hold = lock.holds.get(token)?;
    let is_allowed = hold.may_be_withdrawn_by(attempt);
    let kept = hold.kept_after_rollback(rollback, now);
    is_allowed.then(|| lock.end(token, kept, now))?
}
