//! One lock's entry in memory: who has it, or until when it is closed.

use std::time::Duration;

use tokio::time::Instant;

use super::Moment;
use crate::domain::{
    Acquired, Attempt, Claim, Fence, HoldCount, Holder, Lease, LockState, Metadata, Owner, Token,
    Ttl,
};
use crate::store::REMEMBERED;

/// What the table knows of a lock that is not simply free.
pub(super) enum Lock {
    /// A claim has it, or had it until a moment ago and nobody has looked since.
    Granted(Grant),
    /// The last lease ran out; its claim is remembered, and `lock_delay` may still close the lock.
    Expired(Grant),
    /// Nobody has it, and nobody gets it before `until`.
    Closed { until: Instant },
}

/// What a lock is doing at a certain moment.
pub(super) enum Phase<'a> {
    Held(&'a mut Grant),
    Expired(&'a mut Grant),
    Closed(Instant),
}

impl Lock {
    pub(super) fn phase(&mut self, now: Moment) -> Phase<'_> {
        match self {
            Self::Granted(grant) | Self::Expired(grant) => match grant.until > now.instant {
                true => Phase::Held(grant),
                false => Phase::Expired(grant),
            },
            Self::Closed { until } => Phase::Closed(*until),
        }
    }

    pub(super) fn state(&self, now: Moment) -> LockState {
        let closed_until = match self {
            Self::Granted(grant) if grant.until > now.instant => {
                return LockState::Held(vec![grant.holder(now)]);
            }
            Self::Granted(grant) | Self::Expired(grant) => grant.closed_until(),
            Self::Closed { until } => *until,
        };
        match closed_until.checked_duration_since(now.instant) {
            Some(free_in) if !free_in.is_zero() => LockState::Cooling { free_in },
            _ => LockState::Free,
        }
    }

    /// When the entry must be looked at.
    pub(super) fn due(&self) -> Instant {
        match self {
            Self::Granted(grant) => grant.until,
            Self::Expired(grant) => (grant.until + REMEMBERED).max(grant.closed_until()),
            Self::Closed { until } => *until,
        }
    }
}

/// A lease and what it was granted for.
pub(super) struct Grant {
    pub(super) token: Token,
    /// The attempt that made the grant, as long as nobody else was told of it.
    pub(super) untold: Option<Attempt>,
    pub(super) acquired: Instant,
    pub(super) until: Instant,
    pub(super) hold_count: HoldCount,
    pub(super) min_hold: Option<Duration>,
    pub(super) lock_delay: Option<Duration>,
    fence: Fence,
    ttl: Ttl,
    ceiling: Option<Instant>,
    owner: Owner,
    metadata: Option<Metadata>,
}

impl Grant {
    pub(super) fn new(claim: &Claim, attempt: Attempt, fence: Fence, now: Moment) -> Self {
        let mut grant = Self {
            token: claim.token,
            untold: Some(attempt),
            acquired: now.instant,
            until: now.instant,
            hold_count: claim.hold_count,
            min_hold: claim.min_hold,
            lock_delay: claim.lock_delay,
            fence,
            ttl: claim.ttl,
            ceiling: claim.max_hold.map(|max_hold| now.instant + max_hold),
            owner: claim.owner.clone(),
            metadata: claim.metadata.clone(),
        };
        grant.extend(now);
        grant
    }

    /// The same claim asks again: it may hold deeper, and from now on somebody has been told of the grant.
    pub(super) fn again(&mut self, claim: &Claim, attempt: Attempt, now: Moment) -> Acquired {
        if self.untold != Some(attempt) {
            self.untold = None;
        }
        if claim.hold_count > self.hold_count {
            self.hold_count = claim.hold_count;
            return Acquired::Reentered(self.lease(now));
        }
        Acquired::Replayed(self.lease(now))
    }

    pub(super) fn renew(&mut self, ttl: Option<Ttl>, now: Moment) {
        self.untold = None;
        self.ttl = ttl.unwrap_or(self.ttl);
        self.extend(now);
    }

    fn extend(&mut self, now: Moment) {
        let until = now.instant + self.ttl.get();
        self.until = self.ceiling.map_or(until, |ceiling| until.min(ceiling));
    }

    /// From when on the lock may be granted after this lease ran out: `lock_delay` counts from its end, `min_hold`
    /// from the grant.
    pub(super) fn closed_until(&self) -> Instant {
        let delayed = self.until + self.lock_delay.unwrap_or_default();
        delayed.max(self.acquired + self.min_hold.unwrap_or_default())
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
            fence: self.fence,
            hold_count: self.hold_count,
            acquired_at: now.timestamp_of(self.acquired),
            expires_at: now.timestamp_of(self.until),
            expires_in: self.until.saturating_duration_since(now.instant),
        }
    }
}
