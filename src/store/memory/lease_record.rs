//! One claim's lease on one lock, with the options of its grant.

use std::time::Duration;

use tokio::time::Instant;

use super::clock::StoreTime;
use super::text::Text;
use crate::domain::{
    Attempt, Claim, Fence, HoldCount, Holder, Lease, Mode, Owner, RenewOptions, Rollback,
    RollbackRight, Token, Ttl,
};

/// A lease and the options of its grant.
pub(super) struct LeaseRecord {
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) fence: Fence,
    rollback_right: RollbackState,
    /// The earlier states that the lease goes back to, attempt by attempt, when an attempt that received it is undone.
    turns: Vec<RollbackState>,
    /// Whether a stream holds the lease, or has held it.
    pub(super) is_of_stream: bool,
    pub(super) acquired: Instant,
    pub(super) until: Instant,
    pub(super) hold_count: HoldCount,
    ttl: Ttl,
    ceiling: Option<Instant>,
    min_hold: Option<Duration>,
    lock_delay: Option<Duration>,
    text: Text,
}

/// Which attempt may roll a lease back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RollbackState {
    /// None: the lease was replayed to a request that does not roll it back.
    Nobody,
    /// The attempt that made the grant, because no other has received it.
    Grantee(Attempt),
    /// The last attempt that received the lease, of a claim that a stream holds or has held.
    Successor(Attempt),
    /// An attempt whose stream was closed before the one after it.
    Closed,
}

/// The most earlier attempts that are remembered of a lease.
const TURNS_MAX: usize = 32;

impl RollbackState {
    fn is_of(self, attempt: Attempt) -> bool {
        [Self::Grantee(attempt), Self::Successor(attempt)].contains(&self)
    }
}

impl LeaseRecord {
    pub(super) fn new(
        claim: &Claim,
        text: Text,
        attempt: Attempt,
        fence: Fence,
        now: StoreTime,
    ) -> Self {
        let mut record = Self {
            token: claim.token,
            mode: claim.mode,
            fence,
            rollback_right: RollbackState::Grantee(attempt),
            turns: Vec::new(),
            is_of_stream: claim.takes_over,
            acquired: now.instant,
            until: now.instant,
            hold_count: claim.hold_count,
            ttl: claim.ttl,
            ceiling: claim.max_hold.map(|max_hold| now.instant + max_hold),
            min_hold: claim.min_hold,
            lock_delay: claim.lock_delay,
            text,
        };
        record.extend(now);
        record
    }

    /// Replays the grant to an attempt of the same claim, and raises the hold count if requested. Returns whether it
    /// did.
    pub(super) fn replay(&mut self, claim: &Claim, attempt: Attempt) -> bool {
        self.is_of_stream |= claim.takes_over;
        if !self.is_received_by(attempt) {
            self.pass_rollback_right(attempt);
        }
        let is_deeper = claim.hold_count > self.hold_count;
        self.hold_count = self.hold_count.max(claim.hold_count);
        is_deeper
    }

    /// Whether the attempt has received the lease, unless it was undone since.
    fn is_received_by(&self, attempt: Attempt) -> bool {
        let mut turns = self.turns.iter().chain([&self.rollback_right]);
        turns.any(|turn| turn.is_of(attempt))
    }

    fn pass_rollback_right(&mut self, attempt: Attempt) {
        if !self.is_of_stream {
            self.rollback_right = RollbackState::Nobody;
            return;
        }
        let before = std::mem::replace(&mut self.rollback_right, RollbackState::Successor(attempt));
        if self.turns.len() == TURNS_MAX {
            self.turns.remove(1);
        }
        self.turns.push(before);
    }

    /// Takes the right to roll back from an attempt whose stream was closed, or that no client has received. The lease goes
    /// back to the attempt before if there is one whose stream may be open. Returns whether the lease is to end.
    pub(super) fn end_turn(&mut self, attempt: Attempt, rollback: Rollback) -> bool {
        if self.rollback_right.is_of(attempt) {
            let before = match rollback {
                Rollback::Close => None,
                Rollback::Undo => self.turns.pop(),
            };
            return match before {
                None | Some(RollbackState::Closed) => true,
                Some(before) => {
                    self.rollback_right = before;
                    false
                }
            };
        }
        if let Some(turn) = self.turns.iter().position(|turn| turn.is_of(attempt)) {
            match (rollback, self.turns[turn]) {
                (Rollback::Close, _) | (_, RollbackState::Grantee(_)) => {
                    self.turns[turn] = RollbackState::Closed;
                }
                (Rollback::Undo, _) => drop(self.turns.remove(turn)),
            }
        }
        false
    }

    /// Lowers the hold count. The request's answer carries the lease, so no attempt may roll it back any more.
    pub(super) fn step_back(&mut self, depth: HoldCount) {
        self.rollback_right = RollbackState::Nobody;
        self.hold_count = self.hold_count.min(depth);
    }

    /// Whether this attempt may roll the lease back.
    pub(super) fn may_be_withdrawn_by(&self, attempt: Attempt) -> bool {
        self.rollback_right.is_of(attempt)
    }

    /// The attempt that made the grant, if no other request has received the lease.
    pub(super) fn unacknowledged(&self) -> Option<Attempt> {
        match self.rollback_right {
            RollbackState::Grantee(attempt) => Some(attempt),
            RollbackState::Nobody | RollbackState::Successor(_) | RollbackState::Closed => None,
        }
    }

    /// How long the lock stays taken after a rollback.
    pub(super) fn kept_after_rollback(&self, rollback: Rollback, now: StoreTime) -> Instant {
        match (rollback, self.rollback_right) {
            (Rollback::Undo, RollbackState::Grantee(_)) => now.instant,
            (Rollback::Undo | Rollback::Close, _) => self.kept_after_release(),
        }
    }

    pub(super) fn renew(&mut self, change: RenewOptions, now: StoreTime) {
        match change.rollback_right {
            RollbackRight::Never => self.rollback_right = RollbackState::Nobody,
            RollbackRight::AsBefore => {}
        }
        self.ttl = change.ttl.unwrap_or(self.ttl);
        self.extend(now);
    }

    fn extend(&mut self, now: StoreTime) {
        let until = now.instant + self.ttl.get();
        self.until = self.ceiling.map_or(until, |ceiling| until.min(ceiling));
    }

    /// How long the lock stays taken after the expiry: `lock_delay` counts from the end of the lease, `min_hold` from
    /// the grant.
    pub(super) fn kept_after_expiry(&self) -> Instant {
        let delayed = self.until + self.lock_delay.unwrap_or_default();
        delayed.max(self.kept_after_release())
    }

    /// The same after a release.
    pub(super) fn kept_after_release(&self) -> Instant {
        self.acquired + self.min_hold.unwrap_or_default()
    }

    /// The same after an eviction.
    pub(super) fn kept_after_eviction(&self, now: StoreTime) -> Instant {
        now.instant + self.lock_delay.unwrap_or_default()
    }

    pub(super) fn lease(&self, now: StoreTime) -> Lease {
        Lease {
            holder: self.holder(now),
            ttl: self.ttl,
        }
    }

    pub(super) fn owner(&self) -> &Owner {
        self.text.owner()
    }

    pub(super) fn holder(&self, now: StoreTime) -> Holder {
        Holder {
            owner: self.owner().clone(),
            metadata: self.text.metadata().cloned(),
            mode: self.mode,
            fence: self.fence,
            hold_count: self.hold_count,
            acquired_at: now.timestamp_of(self.acquired),
            expires_at: now.timestamp_of(self.until),
            expires_in: self.until.saturating_duration_since(now.instant),
        }
    }
}
