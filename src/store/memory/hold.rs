//! One claim's hold on one lock: its lease and what it was granted for.

use std::time::Duration;

use tokio::time::Instant;

use super::clock::Moment;
use crate::domain::{
    Attempt, Change, Claim, Fence, HoldCount, Holder, Lease, Metadata, Mode, Owner, Token, Ttl,
    Withdrawable,
};

/// A lease and what it was granted for.
pub(super) struct Hold {
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) fence: Fence,
    /// The attempt that made the grant, as long as nobody else was told of it.
    pub(super) untold: Option<Attempt>,
    pub(super) acquired: Instant,
    pub(super) until: Instant,
    pub(super) hold_count: HoldCount,
    pub(super) owner: Owner,
    ttl: Ttl,
    ceiling: Option<Instant>,
    min_hold: Option<Duration>,
    lock_delay: Option<Duration>,
    metadata: Option<Metadata>,
}

impl Hold {
    pub(super) fn new(claim: &Claim, attempt: Attempt, fence: Fence, now: Moment) -> Self {
        let mut hold = Self {
            token: claim.token,
            mode: claim.mode,
            fence,
            untold: Some(attempt),
            acquired: now.instant,
            until: now.instant,
            hold_count: claim.hold_count,
            owner: claim.owner.clone(),
            ttl: claim.ttl,
            ceiling: claim.max_hold.map(|max_hold| now.instant + max_hold),
            min_hold: claim.min_hold,
            lock_delay: claim.lock_delay,
            metadata: claim.metadata.clone(),
        };
        hold.extend(now);
        hold
    }

    /// An attempt of the same claim is told of the grant, and may make it deeper. Says whether it did.
    pub(super) fn again(&mut self, attempt: Attempt, hold_count: HoldCount) -> bool {
        if self.untold != Some(attempt) {
            self.untold = None;
        }
        let is_deeper = hold_count > self.hold_count;
        self.hold_count = self.hold_count.max(hold_count);
        is_deeper
    }

    pub(super) fn renew(&mut self, change: Change, now: Moment) {
        match change.withdrawable {
            Withdrawable::Never => self.untold = None,
            Withdrawable::AsBefore => {}
            Withdrawable::By(attempt) => self.untold = Some(attempt),
        }
        self.ttl = change.ttl.unwrap_or(self.ttl);
        self.extend(now);
    }

    fn extend(&mut self, now: Moment) {
        let until = now.instant + self.ttl.get();
        self.until = self.ceiling.map_or(until, |ceiling| until.min(ceiling));
    }

    /// Until when what it takes stays taken after it ran out: `lock_delay` counts from its end, `min_hold` from the
    /// grant.
    pub(super) fn kept_after_expiry(&self) -> Instant {
        let delayed = self.until + self.lock_delay.unwrap_or_default();
        delayed.max(self.kept_after_release())
    }

    /// The same after a release.
    pub(super) fn kept_after_release(&self) -> Instant {
        self.acquired + self.min_hold.unwrap_or_default()
    }

    /// The same after an eviction.
    pub(super) fn kept_after_eviction(&self, now: Moment) -> Instant {
        now.instant + self.lock_delay.unwrap_or_default()
    }

    pub(super) fn lease(&self, now: Moment) -> Lease {
        Lease {
            holder: self.holder(now),
            ttl: self.ttl,
        }
    }

    pub(super) fn holder(&self, now: Moment) -> Holder {
        Holder {
            owner: self.owner.clone(),
            metadata: self.metadata.clone(),
            mode: self.mode,
            fence: self.fence,
            hold_count: self.hold_count,
            acquired_at: now.timestamp_of(self.acquired),
            expires_at: now.timestamp_of(self.until),
            expires_in: self.until.saturating_duration_since(now.instant),
        }
    }
}
