//! The sequential lock: which operation is possible in which state, and what it does.
//!
//! Nothing here searches. Where a step has several outcomes, all of them are returned.

use std::collections::BTreeSet;

use super::super::record::{Micros, Mode};
use super::operations::{Lease, LockHistory, Step};

/// How long after its latest end a lease may still be reported, because the clocks of a machine differ a little.
const OVER: Micros = 200_000;

/// What a lease becomes that steps down.
const READ: Mode = Mode::Shared {
    limit: None,
    permits: 1,
};

/// A configuration of the search: a state of the lock, and the operations that are in the order before their answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Configuration {
    /// Leases are granted in the order of their fences: this many so far.
    granted: usize,
    pub(super) held: Vec<Held>,
    done: BTreeSet<usize>,
}

/// A lease that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) lease: usize,
    /// It may expire from this time on.
    pub(super) until: Micros,
    /// It cannot be reported after this time; `None` while no report has bounded it.
    latest: Option<Micros>,
    has_stepped_down: bool,
}

impl Configuration {
    /// Whether the operation is in the order already.
    pub(super) fn has_done(&self, lock: &LockHistory, operation: usize) -> bool {
        match lock.operations[operation].step {
            Step::Grant { lease } => lease < self.granted,
            _ => self.done.contains(&operation),
        }
    }

    /// Forgets an operation that has its answer: it is in the order of every configuration.
    pub(super) fn forget(&mut self, operation: usize) {
        self.done.remove(&operation);
    }

    /// Puts every pending operation into the order that is possible now and takes nothing away. This loses no order: a
    /// read may as well happen now, and a report of a held lease only extends it.
    pub(super) fn take_reads(&mut self, lock: &LockHistory, pending: &BTreeSet<usize>) {
        for operation in pending {
            if self.done.contains(operation) {
                continue;
            }
            let is_done = match &lock.operations[*operation].step {
                Step::Report { .. } => self.report(lock, *operation),
                Step::NotHeld { claim } => !self.held.iter().any(is_of(lock, *claim)),
                Step::View { holders } => self.shows(lock, holders, lock.operations[*operation].at),
                Step::Grant { .. } | Step::End { .. } | Step::Evict { .. } => false,
            };
            if is_done {
                self.done.insert(*operation);
            }
        }
    }

    /// The configurations after the operation, which must take effect by `now`. Other operations that were sent may come
    /// before it.
    pub(super) fn after(
        self,
        lock: &LockHistory,
        operation: usize,
        pending: &BTreeSet<usize>,
        now: Micros,
    ) -> Vec<Self> {
        let context = Context { lock, pending, now };
        let before = self.after_pending(&context).into_iter();
        let after = before.flat_map(|one| match one.has_done(lock, operation) {
            true => vec![one],
            false => one.after_step(&context, operation),
        });
        after.collect()
    }

    /// This configuration, and those after pending views and evictions, for which other leases may have to end first. A later
    /// step may end a lease that they name, or grant one that they do not name.
    fn after_pending(self, context: &Context<'_>) -> Vec<Self> {
        let mut reached = vec![self];
        let mut next = 0;
        while let Some(one) = reached.get(next).cloned() {
            next += 1;
            // Leases are granted in their order: what needs a later one than this is not possible either.
            let mut not_granted = usize::MAX;
            for operation in context.pending {
                let step = &context.lock.operations[*operation].step;
                let (Step::View { holders } | Step::Evict { holders }) = step else {
                    continue;
                };
                let last = holders.last().copied().unwrap_or_default();
                if one.done.contains(operation) || last >= not_granted {
                    continue;
                }
                let taken = one.clone().after_step(context, *operation);
                let needs_grant = last >= one.granted && taken.is_empty();
                if needs_grant && one.clone().grant_through(context, last).is_empty() {
                    not_granted = last;
                }
                for mut after in taken {
                    after.done.insert(*operation);
                    after.take_reads(context.lock, context.pending);
                    if !reached.contains(&after) {
                        reached.push(after);
                    }
                }
            }
        }
        reached
    }

    /// The configurations after the operation.
    fn after_step(self, context: &Context<'_>, operation: usize) -> Vec<Self> {
        let lock = context.lock;
        let at = lock.operations[operation].at;
        match &lock.operations[operation].step {
            Step::Grant { lease } => self.grant_through(context, *lease),
            Step::Report { lease, .. } => {
                let held = self.hold_again(context, *lease, at);
                let reported = held
                    .into_iter()
                    .filter_map(|mut held| held.report(lock, operation).then_some(held));
                reported.collect()
            }
            Step::End { claim } => {
                let mut after = self;
                after
                    .held
                    .retain(|held| lock.leases[held.lease].claim != *claim);
                vec![after]
            }
            Step::NotHeld { claim } => {
                let own = self
                    .held
                    .iter()
                    .copied()
                    .filter(|held| is_of(lock, *claim)(held));
                let own = own.map(|held| held.lease).collect();
                self.without(context, own)
            }
            Step::View { holders } => self.shown_as(context, holders, at),
            Step::Evict { holders } => {
                let shown = self.shown_as(context, holders, at);
                let evicted = shown.into_iter().map(|mut shown| {
                    shown.held.retain(|held| !holders.contains(&held.lease));
                    shown
                });
                evicted.collect()
            }
        }
    }

    /// Grants all leases up to this one.
    fn grant_through(self, context: &Context<'_>, lease: usize) -> Vec<Self> {
        let mut reached = vec![self];
        loop {
            let Some(next) = reached.first().map(|first| first.granted) else {
                return reached;
            };
            if next > lease {
                return reached;
            }
            // All of them have granted the same number, because each step grants one.
            let granted = reached.into_iter().flat_map(|one| one.grant(context, next));
            reached = granted.collect();
        }
    }

    fn grant(self, context: &Context<'_>, lease: usize) -> Vec<Self> {
        let leases = &context.lock.leases;
        let new = &leases[lease];
        let repeats = |earlier: &Lease| {
            let is_second = earlier.claim == new.claim && earlier.is_reported;
            earlier.fence == new.fence || (is_second && !new.may_repeat)
        };
        if new.asked > context.now || leases[..lease].iter().any(repeats) {
            return Vec::new();
        }
        let cleared = self.make_room(context, lease);
        let granted = cleared.into_iter().map(|mut granted| {
            granted.granted = lease + 1;
            granted.hold(lease);
            granted.take_reads(context.lock, context.pending);
            granted
        });
        granted.collect()
    }

    fn hold(&mut self, lease: usize) {
        self.held.push(Held {
            lease,
            until: 0,
            latest: None,
            has_stepped_down: false,
        });
        self.held.sort_unstable_by_key(|held| held.lease);
    }

    /// The configurations in which the lease is held: this one, or if the store may remember a lease that has ended, one
    /// in which it is held again.
    fn hold_again(self, context: &Context<'_>, lease: usize, at: Micros) -> Vec<Self> {
        if self.held.iter().any(|held| held.lease == lease) {
            return vec![self];
        }
        if lease >= self.granted || !context.lock.leases[lease].is_unsure(at) {
            return Vec::new();
        }
        let cleared = self.make_room(context, lease);
        let held = cleared.into_iter().map(|mut held| {
            held.hold(lease);
            held
        });
        held.collect()
    }

    /// The configurations without anything that excludes the lease.
    fn make_room(self, context: &Context<'_>, lease: usize) -> Vec<Self> {
        let leases = &context.lock.leases;
        let new = &leases[lease];
        let mut cleared = self;
        // A claim whose lease was lost with the data has another one.
        cleared
            .held
            .retain(|held| leases[held.lease].claim != new.claim);
        let excluding = cleared.held.iter();
        let excluding = excluding.filter(|held| conflict(held.mode(context), new.mode));
        let excluding = excluding.map(|held| held.lease).collect();
        let cleared = cleared.without(context, excluding);
        let with_permits = cleared
            .into_iter()
            .flat_map(|one| one.free_permits(context, new.mode));
        with_permits.collect()
    }

    /// The configurations with as many free permits as the mode takes. Which of the others have ended is not known.
    fn free_permits(self, context: &Context<'_>, new: Mode) -> Vec<Self> {
        let (limit, wanted) = permits(new);
        let taken = self.held.iter().map(|held| permits(held.mode(context)).1);
        if taken.sum::<u64>() + wanted <= limit {
            return vec![self];
        }
        let ended = self
            .held
            .iter()
            .flat_map(|held| self.clone().end(context, held.lease));
        let freed = ended.flat_map(|one| one.free_permits(context, new));
        freed.collect()
    }

    /// The configurations in which these leases have ended.
    fn without(self, context: &Context<'_>, leases: Vec<usize>) -> Vec<Self> {
        let mut reached = vec![self];
        for lease in leases {
            let ended = reached.into_iter().flat_map(|one| one.end(context, lease));
            reached = ended.collect();
        }
        reached
    }

    /// The configuration in which the lease has ended: by itself, or by a request without a definite answer. None if it
    /// cannot have ended.
    fn end(mut self, context: &Context<'_>, lease: usize) -> Option<Self> {
        let Some(held) = self.held.iter().find(|held| held.lease == lease) else {
            return Some(self);
        };
        if !held.may_end(context) {
            return None;
        }
        self.held.retain(|held| held.lease != lease);
        self.take_reads(context.lock, context.pending);
        Some(self)
    }

    /// The configurations in which exactly these leases are held, as far as a view from this time says.
    fn shown_as(self, context: &Context<'_>, holders: &[usize], at: Micros) -> Vec<Self> {
        let granted = match holders.last() {
            Some(last) if *last >= self.granted => self.grant_through(context, *last),
            Some(_) | None => vec![self],
        };
        let shown = granted.into_iter().flat_map(|one| {
            let others = one.held.iter().map(|held| held.lease);
            let others = others.filter(|lease| {
                !holders.contains(lease) && !context.lock.leases[*lease].is_unsure(at)
            });
            let others = others.collect();
            one.without(context, others)
        });
        shown
            .filter(|one| one.shows(context.lock, holders, at))
            .collect()
    }

    /// Whether exactly these leases are held, except for those that the store may have forgotten or remembered.
    fn shows(&self, lock: &LockHistory, holders: &[usize], at: Micros) -> bool {
        let is_unsure = |lease: usize| lock.leases[lease].is_unsure(at);
        let is_held = |lease: usize| self.held.iter().any(|held| held.lease == lease);
        let shown = holders
            .iter()
            .all(|lease| is_held(*lease) || is_unsure(*lease));
        shown
            && self
                .held
                .iter()
                .all(|held| holders.contains(&held.lease) || is_unsure(held.lease))
    }

    /// Extends the reported lease. Returns whether it is held, and can have been at this time.
    fn report(&mut self, lock: &LockHistory, operation: usize) -> bool {
        let Step::Report {
            lease,
            until,
            latest,
            is_bounded,
            steps_down,
        } = &lock.operations[operation].step
        else {
            return false;
        };
        let Some(held) = self.held.iter_mut().find(|held| held.lease == *lease) else {
            return false;
        };
        let sent = lock.operations[operation].sent;
        let is_over = held.latest.is_some_and(|latest| sent > latest + OVER);
        if is_over && *is_bounded {
            return false;
        }
        held.until = held.until.max(*until);
        held.latest = held.latest.max(Some(*latest));
        held.has_stepped_down |= steps_down;
        true
    }
}

/// What the steps of one search have in common.
struct Context<'a> {
    lock: &'a LockHistory,
    /// The operations that were sent and have no answer yet.
    pending: &'a BTreeSet<usize>,
    now: Micros,
}

impl Held {
    /// Whether it may have ended by now.
    fn may_end(&self, context: &Context<'_>) -> bool {
        self.until <= context.now || context.lock.leases[self.lease].may_end_from <= context.now
    }

    /// Its mode, or the one that excludes less if it may have stepped down.
    fn mode(&self, context: &Context<'_>) -> Mode {
        let lease = &context.lock.leases[self.lease];
        match self.has_stepped_down || lease.may_share_from <= context.now {
            true => READ,
            false => lease.mode,
        }
    }
}

fn is_of(lock: &LockHistory, claim: usize) -> impl Fn(&Held) -> bool {
    move |held| lock.leases[held.lease].claim == claim
}

/// The limit of a mode, and how much of it one lease takes.
fn permits(mode: Mode) -> (u64, u64) {
    match mode {
        Mode::Shared {
            limit: Some(limit),
            permits,
        } => (limit.into(), permits.into()),
        Mode::Shared { limit: None, .. } | Mode::Exclusive => (u64::MAX, 0),
    }
}

/// Whether two claims may never hold the lock at once, whatever the permits.
fn conflict(one: Mode, other: Mode) -> bool {
    match (one, other) {
        (Mode::Shared { limit: one, .. }, Mode::Shared { limit: other, .. }) => one != other,
        (Mode::Exclusive, _) | (_, Mode::Exclusive) => true,
    }
}
