//! One claim's lease on one lock, with the options of its grant. `receivers` has the attempts that received it; other leases
//! on the lock are not known here.

use std::time::Duration;

use super::claim::Text;
use super::receivers::Receivers;
use super::{StoreTime, micros};
use crate::domain::{
    Attempt, Claim, ClaimDigest, Fence, HoldCount, HoldOptions, Holder, Lease, Mode, Owner,
    RenewOptions, Rollback, RollbackRight, StepBack, Ttl, UNCOUNTED_MAX,
};

/// A lease. There may be millions of them, most of them plain.
#[derive(Debug)]
pub(super) struct LeaseRecord {
    pub(super) claim: ClaimDigest,
    pub(super) fence: Fence,
    pub(super) acquired: StoreTime,
    pub(super) until: StoreTime,
    pub(super) ttl_us: u64,
    pub(super) receivers: Receivers,
    /// None for a plain lease: an exclusive one, held once, whose claim had no option but its TTL.
    pub(super) options: Option<Box<LeaseOptions>>,
}

/// What a plain lease does not have.
#[derive(Debug)]
pub(super) struct LeaseOptions {
    pub(super) mode: Mode,
    pub(super) hold_count: HoldCount,
    /// The attempt that has raised it last. Nobody repeats an attempt of a process that has ended, so no row has it.
    pub(super) reentered_by: Option<Attempt>,
    /// Whether a stream holds the lease, or has held it.
    pub(super) is_of_stream: bool,
    pub(super) ceiling: Option<StoreTime>,
    pub(super) min_hold: Duration,
    pub(super) lock_delay: Duration,
    pub(super) text: Text,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Exclusive,
            hold_count: HoldCount::ONE,
            reentered_by: None,
            is_of_stream: false,
            ceiling: None,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            text: Text::default(),
        }
    }
}

impl LeaseOptions {
    /// The options of a claim, unless it is plain.
    fn of(claim: &Claim, text: Text, now: StoreTime) -> Option<Box<Self>> {
        let is_plain = claim.mode == Mode::Exclusive
            && claim.hold_count == HoldCount::ONE
            && !claim.takes_over
            && claim.max_hold.is_none()
            && claim.min_hold.is_none()
            && claim.lock_delay.is_none()
            && text.is_empty();
        (!is_plain).then(|| {
            Box::new(Self {
                mode: claim.mode,
                hold_count: claim.hold_count,
                reentered_by: None,
                is_of_stream: claim.takes_over,
                ceiling: claim.max_hold.map(|max_hold| now + max_hold),
                min_hold: claim.min_hold.unwrap_or_default(),
                lock_delay: claim.lock_delay.unwrap_or_default(),
                text,
            })
        })
    }
}

impl LeaseRecord {
    pub(super) fn new(
        claim: &Claim,
        digest: ClaimDigest,
        text: Text,
        attempt: Attempt,
        fence: Fence,
        now: StoreTime,
    ) -> Self {
        let mut record = Self {
            claim: digest,
            fence,
            acquired: now,
            until: now,
            ttl_us: micros(claim.ttl.get()),
            receivers: Receivers::Grantee(attempt),
            options: LeaseOptions::of(claim, text, now),
        };
        record.extend(now);
        record
    }

    pub(super) fn mode(&self) -> Mode {
        let options = self.options.as_ref();
        options.map_or(Mode::Exclusive, |options| options.mode)
    }

    /// Whether a stream holds the lease, or has held it.
    pub(super) fn is_of_stream(&self) -> bool {
        let options = self.options.as_ref();
        options.is_some_and(|options| options.is_of_stream)
    }

    fn hold_count(&self) -> HoldCount {
        let options = self.options.as_ref();
        options.map_or(HoldCount::ONE, |options| options.hold_count)
    }

    pub(super) fn owner(&self) -> Owner {
        let options = self.options.as_ref();
        options.map_or_else(Owner::default, |options| options.text.owner().clone())
    }

    fn options_mut(&mut self) -> &mut LeaseOptions {
        self.options.get_or_insert_default()
    }

    /// Replays the grant to an attempt of the same claim, and raises the hold count if requested. Returns whether this
    /// attempt did, now or before: then the answer to that was lost.
    pub(super) fn replay(&mut self, claim: &Claim, attempt: Attempt) -> bool {
        self.receivers.pass_to(attempt);
        if claim.takes_over {
            self.options_mut().is_of_stream = true;
        }
        let options = self.options.as_ref();
        if options.is_some_and(|options| options.reentered_by == Some(attempt)) {
            return true;
        }
        let is_deeper = claim.hold_count > self.hold_count();
        if is_deeper {
            let options = self.options_mut();
            (options.hold_count, options.reentered_by) = (claim.hold_count, Some(attempt));
        }
        is_deeper
    }

    /// Lowers the hold count. The request's answer carries the lease, so as a rule no attempt may roll it back any more.
    pub(super) fn step_back(&mut self, change: StepBack, now: StoreTime) {
        self.keep_right(change.rollback_right, now);
        if let Some(options) = &mut self.options {
            options.hold_count = options.hold_count.min(change.hold_count);
        }
    }

    /// Leaves the right to roll the lease back to the attempt that has it, or makes the lease final.
    fn keep_right(&mut self, right: RollbackRight, now: StoreTime) {
        let is_kept = match right {
            RollbackRight::Never => false,
            RollbackRight::AsBefore => true,
            RollbackRight::UnlessYoung => self.is_undecided(now),
        };
        if !is_kept {
            self.receivers = Receivers::Independent;
        }
    }

    /// How long the lease still passes to no attempt but those that have received it; zero if it does.
    pub(super) fn closed_to(&self, attempt: Attempt, now: StoreTime) -> Duration {
        match self.receivers.are_closed_to(attempt) && self.is_undecided(now) {
            true => UNCOUNTED_MAX.saturating_sub(now.since(self.acquired)),
            false => Duration::ZERO,
        }
    }

    /// Whether its grant may be about to roll it back, because it is not counted.
    fn is_undecided(&self, now: StoreTime) -> bool {
        self.receivers.may_be_withdrawn() && now.since(self.acquired) < UNCOUNTED_MAX
    }

    pub(super) fn renew(&mut self, change: RenewOptions, now: StoreTime) {
        let is_left = change.rollback_right == RollbackRight::UnlessYoung && self.is_undecided(now);
        self.keep_right(change.rollback_right, now);
        if let Some(mode) = change.mode.filter(|mode| *mode != self.mode()) {
            self.options_mut().mode = mode;
        }
        if is_left {
            return;
        }
        if let Some(ttl) = change.ttl {
            self.ttl_us = micros(ttl.get());
        }
        self.extend(now);
    }

    /// Gives the lease what the claim asks for besides its TTL, its mode and its hold count, counted from now.
    pub(super) fn give_options(&mut self, claim: &Claim, text: Text, now: StoreTime) {
        let held_for = now.since(self.acquired);
        let options = self.options_mut();
        options.text = text;
        options.ceiling = claim.max_hold.map(|max_hold| now + max_hold);
        options.min_hold = claim
            .min_hold
            .map_or(Duration::ZERO, |left| held_for + left);
        options.lock_delay = claim.lock_delay.unwrap_or_default();
        options.is_of_stream |= claim.takes_over;
        if let Some(ceiling) = options.ceiling {
            self.until = self.until.min(ceiling);
        }
    }

    fn extend(&mut self, now: StoreTime) {
        let until = now.plus_us(self.ttl_us);
        let ceiling = self.options.as_ref().and_then(|options| options.ceiling);
        self.until = ceiling.map_or(until, |ceiling| until.min(ceiling));
    }

    /// How long the lock stays taken after the expiry: `lock_delay` counts from the end of the lease, `min_hold` from
    /// the grant.
    pub(super) fn kept_after_expiry(&self) -> StoreTime {
        let delayed = self.until + self.lock_delay();
        delayed.max(self.kept_after_release())
    }

    /// The same after a release.
    pub(super) fn kept_after_release(&self) -> StoreTime {
        let options = self.options.as_ref();
        self.acquired + options.map_or(Duration::ZERO, |options| options.min_hold)
    }

    /// The same after an eviction.
    pub(super) fn kept_after_eviction(&self, now: StoreTime) -> StoreTime {
        now + self.lock_delay()
    }

    /// The same after a rollback.
    pub(super) fn kept_after_rollback(&self, rollback: Rollback, now: StoreTime) -> StoreTime {
        match rollback {
            Rollback::Undo | Rollback::Refuse if !self.receivers.have_used_it() => now,
            Rollback::Undo | Rollback::Refuse | Rollback::Close => self.kept_after_release(),
        }
    }

    pub(super) fn lock_delay(&self) -> Duration {
        let options = self.options.as_ref();
        options.map_or(Duration::ZERO, |options| options.lock_delay)
    }

    pub(super) fn options(&self, now: StoreTime) -> HoldOptions {
        let Some(options) = &self.options else {
            return HoldOptions::default();
        };
        let asked_for = |duration: Duration| (!duration.is_zero()).then_some(duration);
        HoldOptions {
            min_hold_left: asked_for(options.min_hold)
                .map(|min_hold| (self.acquired + min_hold).since(now)),
            max_hold_left: options.ceiling.map(|ceiling| ceiling.since(now)),
            lock_delay: asked_for(options.lock_delay),
            is_of_stream: options.is_of_stream,
        }
    }

    pub(super) fn lease(&self, now: StoreTime) -> Lease {
        Lease {
            holder: self.holder(now),
            ttl: Ttl::from_store(Duration::from_micros(self.ttl_us)),
        }
    }

    pub(super) fn holder(&self, now: StoreTime) -> Holder {
        let text = self.options.as_ref().map(|options| &options.text);
        Holder {
            claim: self.claim,
            owner: self.owner(),
            metadata: text.and_then(Text::metadata).cloned(),
            mode: self.mode(),
            fence: self.fence,
            hold_count: self.hold_count(),
            acquired_at: self.acquired.timestamp(),
            expires_at: self.until.timestamp(),
            expires_in: self.until.since(now),
        }
    }
}

/// How many permits a lease takes; an exclusive one needs no counting.
pub(super) fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared(share) => u64::from(share.permits()),
    }
}
