//! One claim's lease on one lock, with the options of its grant.

use std::time::Duration;

use tokio::time::Instant;

use super::clock::StoreTime;
use super::receivers::Receivers;
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
    pub(super) receivers: Receivers,
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
            receivers: Receivers::Grantee(attempt),
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
        self.receivers.pass_to(attempt);
        self.is_of_stream |= claim.takes_over;
        let is_deeper = claim.hold_count > self.hold_count;
        self.hold_count = self.hold_count.max(claim.hold_count);
        is_deeper
    }

    /// Lowers the hold count. The request's answer carries the lease, so no attempt may roll it back any more.
    pub(super) fn step_back(&mut self, depth: HoldCount) {
        self.receivers = Receivers::Independent;
        self.hold_count = self.hold_count.min(depth);
    }

    /// How long the lock stays taken after a rollback.
    pub(super) fn kept_after_rollback(&self, rollback: Rollback, now: StoreTime) -> Instant {
        match (rollback, self.receivers.unacknowledged()) {
            (Rollback::Undo, Some(_)) => now.instant,
            (Rollback::Undo | Rollback::Close, _) => self.kept_after_release(),
        }
    }

    pub(super) fn renew(&mut self, change: RenewOptions, now: StoreTime) {
        match change.rollback_right {
            RollbackRight::Never => self.receivers = Receivers::Independent,
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
