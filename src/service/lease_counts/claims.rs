//! Claims for whose leases there is a quota: refused before they are granted locks that they would have to give back, and
//! counted when they are granted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{ClaimLeases, OPTIONAL_STEP_MAX, Room, is_young, longest};
use crate::domain::{
    Acquired, CountStep, GrantKind, Granted, Holders, LeasesOf, LockName, LockState, Mode, Refused,
    Rollback, Ticket, Token, UNCOUNTED_MAX, UndoneBy,
};
use crate::limits::LeaseBudget;
use crate::service::acquire::Request;
use crate::store::{StoreError, StoreResult};

/// Whether a claim waits if it cannot be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::service) enum WaitStage {
    /// It does not wait.
    None,
    /// It begins to wait.
    Begins,
    /// It waits already.
    Waits,
}

impl WaitStage {
    /// That of a request that waits, by its ticket.
    pub(in crate::service) fn of(ticket: Option<Ticket>) -> Self {
        ticket.map_or(Self::Begins, |_| Self::Waits)
    }
}

impl Request {
    /// Refuses a claim that would have to give back its locks. It must not be granted even for a moment: meanwhile
    /// others would be refused, and a claim that waits would pass the lock on to the next one like it.
    pub(in crate::service) async fn over_quota(
        &self,
        leases: &LeaseBudget,
        stage: WaitStage,
        deadline: Instant,
    ) -> Option<Acquired> {
        let (inner, names, token) = (&self.inner, &self.claim.names, self.claim.token);
        let check = inner.try_to_count(leases, CountStep::Check, (names, token), deadline);
        // Without an answer, the count after the grant decides.
        let checked = check.await?;
        let is_full = matches!(checked, Room::Lacking { .. });
        let may_be_known = !self.claim.has_new_token || stage == WaitStage::Waits;
        if is_full && may_be_known && self.may_take_nothing(stage, deadline).await {
            return None;
        }
        self.refusal(checked)
    }

    /// Whether the store may have nothing new to grant: the claim holds its locks, without being counted, or has to
    /// wait for one of them. If it is granted a lock nevertheless, that is counted then.
    async fn may_take_nothing(&self, stage: WaitStage, deadline: Instant) -> bool {
        let claim = &self.claim;
        let deadline = deadline.min(Instant::now() + OPTIONAL_STEP_MAX);
        for (number, name) in claim.names.iter().enumerate() {
            let sent = Instant::now();
            let inspected = self.inner.store.view(name, deadline).await;
            let metrics = &self.inner.metrics.store;
            metrics.operation("inspect", sent.elapsed(), &inspected);
            // A claim holds all of its locks or none.
            let is_first = number == 0;
            let Ok(view) = inspected else {
                return is_first;
            };
            let holds = |holders: &Holders| is_first && includes(holders, claim.token, name);
            match view.state {
                LockState::Held(holders) if holds(&holders) => return true,
                _ if stage == WaitStage::None => return false,
                LockState::Held(holders) if !may_share(claim.mode, &holders) => return true,
                LockState::Cooling { .. } if claim.mode == Mode::Exclusive => return true,
                LockState::Held(_) | LockState::Cooling { .. } | LockState::Free => {}
            }
        }
        false
    }

    /// Counts the leases that the store has granted. Those beyond the quota are rolled back.
    pub(in crate::service) async fn counted_in(
        &self,
        leases: &LeaseBudget,
        reply: StoreResult<Acquired>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let Ok(Acquired::Granted(granted)) = &reply else {
            return reply;
        };
        let is_new = granted.kind == GrantKind::New;
        // If it is young and replayed, the attempt that was granted it may be about to roll it back.
        let is_young = granted.leases.iter().any(is_young);
        if is_new || is_young {
            let step = CountStep::Take {
                by: self.attempt,
                lasts: longest(&times_of(granted)),
            };
            let claim = (&*self.claim.names, self.claim.token);
            let counted = self.inner.count(leases, step, claim, deadline).await;
            // Whoever gets this error rolls the grant back, or repeats the request.
            let counted = counted.map_err(|it| StoreError::unknown(it.fault(), it.detail()))?;
            if let Some(refusal) = self.refusal(counted) {
                let ttl = self.claim.ttl.get();
                self.clone()
                    .roll_back_in_background(Rollback::Refuse, ttl, None);
                return Ok(refusal);
            }
            if is_new {
                leases.counts().for_each(|count| count.note(false));
            }
        }
        if !is_new && (!is_young || self.claim.takes_over) {
            self.keep_counted(leases, granted).await;
        }
        reply
    }

    /// Counts leases that the claim had before.
    async fn keep_counted(&self, leases: &LeaseBudget, granted: &Granted) {
        let undone_by = match self.claim.takes_over {
            true => UndoneBy::Attempt(self.attempt),
            false => UndoneBy::Nobody,
        };
        if self.claim.takes_over {
            self.took_over.store(true, Ordering::Relaxed);
        }
        let held = ClaimLeases {
            names: self.claim.names.to_vec(),
            times: times_of(granted),
        };
        let lasts = longest(&held.times);
        let keep = CountStep::Keep { undone_by, lasts };
        self.inner
            .count_held(leases, keep, self.claim.token, held)
            .await;
    }

    /// Whether the leases that this attempt was granted may be so old that a repeated request counts them even without
    /// room.
    pub(in crate::service) fn may_be_kept_by_others(&self) -> bool {
        self.slot.leases().is_some() && self.began.elapsed() > UNCOUNTED_MAX / 2
    }

    /// Whether the claim may still hold its locks, all or none.
    pub(in crate::service) async fn is_held(&self, deadline: Instant) -> bool {
        let Some(name) = self.claim.names.iter().next() else {
            return false;
        };
        let sent = Instant::now();
        let inspected = self.inner.store.view(name, deadline).await;
        let metrics = &self.inner.metrics.store;
        metrics.operation("inspect", sent.elapsed(), &inspected);
        match inspected.map(|view| view.state) {
            Ok(LockState::Held(holders)) => {
                let is_whole = holders.listed.len() as u64 == holders.total;
                let digest = self.claim.token.digest(name);
                !is_whole || holders.listed.iter().any(|it| it.claim == digest)
            }
            Ok(LockState::Cooling { .. } | LockState::Free) => false,
            // It is counted for as long as it would have lasted.
            Err(_) => true,
        }
    }

    /// Stops counting the leases that this rollback ends.
    pub(in crate::service) async fn uncount(&self, rollback: Rollback, deadline: Instant) {
        let keeps_leases = rollback != Rollback::Close && self.took_over.load(Ordering::Relaxed);
        if let (Some(leases), false) = (self.slot.leases(), keeps_leases) {
            let (names, token) = (&self.claim.names, self.claim.token);
            let step = CountStep::Undo(self.attempt);
            let undo = self
                .inner
                .try_to_count(leases, step, (names, token), deadline);
            // Without an answer, it is counted for as long as it would have lasted.
            undo.await;
        }
    }

    fn refusal(&self, counted: Room<'_>) -> Option<Acquired> {
        let Room::Lacking { count, retry_in } = counted else {
            return None;
        };
        count.note(true);
        let of_all = count.quota().of == LeasesOf::All;
        self.inner.metrics.too_many_leases(of_all);
        Some(Acquired::Refused(Refused::TooManyLeases {
            of_all,
            retry_in,
        }))
    }

    /// Says which quota is meant where the store has refused a claim whose grant is being rolled back.
    pub(in crate::service) fn with_quota_named(&self, acquired: &mut Acquired) {
        if let Acquired::Refused(Refused::TooManyLeases { of_all, .. }) = acquired {
            *of_all = self.slot.leases().is_some_and(LeaseBudget::is_full_of_all);
            self.inner.metrics.too_many_leases(*of_all);
        }
    }
}

/// The remaining times of leases.
fn times_of(granted: &Granted) -> Vec<Duration> {
    let leases = granted.leases.iter();
    leases.map(|lease| lease.holder.expires_in).collect()
}

/// Whether a claim is one of the listed holders. An uncounted claim that is not among them is refused even if it holds,
/// and its lease goes on: otherwise a principal without room could take permits of a lock with many holders again and
/// again.
fn includes(holders: &Holders, token: Token, name: &LockName) -> bool {
    let digest = token.digest(name);
    holders.listed.iter().any(|holder| holder.claim == digest)
}

/// Whether a claim of this mode may be granted the lock together with the holders.
fn may_share(mode: Mode, holders: &Holders) -> bool {
    let Mode::Shared(share) = mode else {
        return false;
    };
    let taken = holders.listed.iter().map(|holder| match holder.mode {
        Mode::Exclusive => u64::MAX,
        Mode::Shared(share) => u64::from(share.permits()),
    });
    let taken = taken.fold(u64::from(share.permits()), u64::saturating_add);
    taken <= share.limit().map_or(u64::MAX - 1, u64::from)
}
