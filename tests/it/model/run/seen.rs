//! Translates the store's answers into the model's types, and checks every fencing token.

use std::time::Duration;

use leasehold::domain::{
    self, Acquired, Claim, ConflictKind, GrantKind, Granted, Holder, Lease, LockName, LockState,
    LockView, Mismatch, NotHolder, Position, Refused, Released, Renewed, Share, Suspended,
};

use super::super::reference::{Mode, Part, Seen, What, Why};
use super::{Place, Run};

impl<P: Place> Run<P> {
    pub(super) fn seen_acquired(&mut self, claim: &Claim, answer: Acquired) -> Seen {
        match answer {
            Acquired::Granted(Granted {
                kind: GrantKind::New,
                leases,
                expired,
                ..
            }) => {
                let leases = claim.names.iter().zip(&leases);
                let grants = leases.map(|(name, lease)| {
                    let lock = self.lock(name);
                    self.keep_fence(lock, claim, lease);
                    let expired = expired.iter().filter(|previous| previous.name == *name);
                    let also: Vec<_> = expired.map(|previous| previous.held_for).collect();
                    Self::seen_holder(What::Granted, lock, &lease.holder, &also)
                });
                grants.collect()
            }
            Acquired::Granted(Granted {
                kind: GrantKind::Reentered,
                leases,
                ..
            }) => self.seen_leases(What::Reentered, claim, &leases),
            Acquired::Granted(Granted {
                kind: GrantKind::Replayed,
                leases,
                ..
            }) => self.seen_leases(What::Replayed, claim, &leases),
            Acquired::Waiting(waiting) => {
                vec![self.seen_position(What::Waiting, claim, waiting.position)]
            }
            Acquired::Refused(Refused::Blocked(conflicts)) => {
                let parts = conflicts.into_iter().map(|conflict| {
                    let (lock, length) = (self.lock(&conflict.name), conflict.queue_length);
                    match conflict.by {
                        ConflictKind::Holders(holders) => {
                            What::Held.of(lock, &[holders.total, length], &[])
                        }
                        ConflictKind::Cooling { free_in } => {
                            What::Cooling.of(lock, &[length], &[Self::ticks(free_in)])
                        }
                        ConflictKind::Waiters => What::Behind.of(lock, &[length], &[]),
                    }
                });
                parts.collect()
            }
            Acquired::Refused(Refused::Mismatched(mismatch)) => vec![self.seen_mismatch(mismatch)],
            Acquired::Refused(Refused::TooManyWaiters { name, queue_length }) => {
                vec![What::TooManyWaiters.of(self.lock(&name), &[queue_length], &[])]
            }
            Acquired::Refused(Refused::Ended(lost)) => {
                vec![What::Ended(why(&lost.reason)).bare(self.lock(&lost.name))]
            }
            Acquired::WaitExpired => panic!("nobody waits so long here"),
            Acquired::Superseded => panic!("there is one process here"),
            Acquired::Refused(Refused::Recovering { .. }) => panic!("nothing was lost here"),
            Acquired::Refused(Refused::TooManyLeases { .. }) => panic!("there are no quotas here"),
        }
    }

    pub(super) fn seen_suspended(&self, claim: &Claim, suspended: &Suspended) -> Seen {
        vec![self.seen_position(What::Suspended, claim, suspended.position)]
    }

    pub(super) fn seen_renewed(&self, claim: &Claim, answer: Renewed) -> Seen {
        match answer {
            Renewed::Extended(renewals) => {
                let renewals = claim.names.iter().zip(&renewals);
                let parts = renewals.map(|(name, renewal)| {
                    self.seen_own(
                        What::Extended,
                        name,
                        claim,
                        &renewal.lease,
                        &[renewal.remaining_before],
                    )
                });
                parts.collect()
            }
            Renewed::NotHolder(lost) => {
                let parts = lost
                    .iter()
                    .map(|lost| What::NotHolder(why(&lost.reason)).bare(self.lock(&lost.name)));
                parts.collect()
            }
            Renewed::Mismatched(mismatch) => vec![self.seen_mismatch(mismatch)],
        }
    }

    pub(super) fn seen_released(&self, claim: &Claim, answers: Vec<Released>) -> Seen {
        let answers = claim.names.iter().zip(answers);
        let parts = answers.map(|(name, answer)| {
            let lock = self.lock(name);
            match answer {
                Released::Freed { held_for, .. } => {
                    What::Freed.of(lock, &[], &[Self::ticks(held_for)])
                }
                Released::SteppedBack(lease) => {
                    self.seen_own(What::SteppedBack, name, claim, &lease, &[])
                }
                Released::LeftQueue => What::LeftQueue.bare(lock),
                Released::Repeated => What::Repeated.bare(lock),
                Released::NotHolder(how) => What::NotHolder(why(&how)).bare(lock),
            }
        });
        parts.collect()
    }

    pub(super) fn seen_evicted(&self, lock: usize, holders: &[Holder]) -> Seen {
        let evicted = holders.iter();
        let evicted = evicted.map(|holder| Self::seen_holder(What::Evicted, lock, holder, &[]));
        let mut evicted: Vec<_> = evicted.collect();
        evicted.sort();
        evicted
    }

    pub(super) fn seen_view(&self, lock: usize, view: LockView) -> Seen {
        let mut seen = match view.state {
            LockState::Free => vec![What::Free.bare(lock)],
            LockState::Cooling { free_in } => {
                vec![What::Cooling.of(lock, &[], &[Self::ticks(free_in)])]
            }
            LockState::Held(holders) => {
                let seen = holders.listed.iter();
                let seen = seen.map(|holder| Self::seen_holder(What::Holder, lock, holder, &[]));
                let mut seen: Vec<_> = seen.collect();
                seen.sort();
                seen.insert(0, What::Held.of(lock, &[holders.total], &[]));
                seen
            }
        };
        let head = view.queue.head.iter().flat_map(|head| {
            let token = head.owner.as_str().parse().expect("the owner is the token");
            [token, number(head.mode)]
        });
        let counts: Vec<_> = std::iter::once(view.queue.length).chain(head).collect();
        seen.push(What::Queue.of(lock, &counts, &[]));
        seen
    }

    fn seen_mismatch(&self, contradiction: Mismatch) -> Part {
        match contradiction {
            Mismatch::Limit { name, .. } => What::ContradictsLimit.bare(self.lock(&name)),
            Mismatch::Upgrade { name } => What::ContradictsUpgrade.bare(self.lock(&name)),
            Mismatch::Claim { name } => What::ContradictsClaim.bare(self.lock(&name)),
        }
    }

    fn seen_position(&self, what: What, claim: &Claim, position: Option<Position>) -> Part {
        let position = position.expect("it stands there");
        let counts = [position.position, position.queue_length];
        let first = self.lock(&claim.names[0]);
        match claim.names.len() {
            1 => what.of(first, &counts, &[]),
            // For several queues, the choice of the longest one is not specified.
            _ => what.bare(first),
        }
    }

    fn seen_leases(&self, what: What, claim: &Claim, leases: &[Lease]) -> Seen {
        let leases = claim.names.iter().zip(leases);
        let parts = leases.map(|(name, lease)| self.seen_own(what, name, claim, lease, &[]));
        parts.collect()
    }

    /// A lease keeps the fencing token of its grant.
    fn seen_own(
        &self,
        what: What,
        name: &LockName,
        claim: &Claim,
        lease: &Lease,
        also: &[Duration],
    ) -> Part {
        let lock = self.lock(name);
        let granted = self.fences[lock].of.get(&self.token(claim));
        assert_eq!(Some(&lease.holder.fence), granted, "{what:?}");
        Self::seen_holder(what, lock, &lease.holder, also)
    }

    fn seen_holder(what: What, lock: usize, holder: &Holder, also: &[Duration]) -> Part {
        let durations = std::iter::once(&holder.expires_in).chain(also);
        let ticks: Vec<_> = durations.map(|duration| Self::ticks(*duration)).collect();
        let counts = [holder.hold_count.get().into(), number(holder.mode)];
        what.of(lock, &counts, &ticks)
    }

    fn keep_fence(&mut self, lock: usize, claim: &Claim, lease: &Lease) {
        let (token, fence) = (self.token(claim), lease.holder.fence);
        let fences = &mut self.fences[lock];
        let last = fences.last.replace(fence);
        assert!(last < Some(fence), "{fence} after {last:?} on lock {lock}");
        fences.of.insert(token, fence);
    }

    fn lock(&self, name: &LockName) -> usize {
        let mut locks = self.locks.iter();
        locks
            .position(|lock| lock == name)
            .expect("it was asked for")
    }

    fn token(&self, claim: &Claim) -> usize {
        let mut tokens = self.tokens.iter();
        tokens
            .position(|token| *token == claim.token)
            .expect("one of them")
    }
}

/// The store's type for a mode.
pub(super) fn mode(mode: Mode) -> domain::Mode {
    match mode {
        Mode::Alone => domain::Mode::Exclusive,
        Mode::Shared { limit, permits } => {
            domain::Mode::Shared(Share::new(limit, permits).expect("so many may be held"))
        }
    }
}

/// The model's number for a mode of the store.
fn number(mode: domain::Mode) -> u64 {
    let mode = match mode {
        domain::Mode::Exclusive => Mode::Alone,
        domain::Mode::Shared(share) => Mode::Shared {
            limit: share.limit().map(u64::from),
            permits: share.permits().into(),
        },
    };
    mode.number()
}

fn why(reason: &NotHolder) -> Why {
    match reason {
        NotHolder::Expired => Why::Expired,
        NotHolder::Lost => Why::Lost,
        NotHolder::Evicted { .. } => Why::Evicted,
        NotHolder::Released => Why::Released,
        NotHolder::Unknown => Why::Unknown,
    }
}
