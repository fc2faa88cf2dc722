//! When leases run out, as far as that is known from events and listings. Nobody does anything when a lease runs out, so
//! those who watch are told only if somebody looks just then.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::jitter;
use crate::domain::{EventKind, Fence, LockEvent, LockName, LockState, LockView};

/// Of more leases than that it is told when somebody meets them.
const LEASES_MAX: usize = 10_000;
/// After the end of a lease, so that it is over by the store's clock.
const AFTER_END_MIN: Duration = Duration::from_millis(5);
const AFTER_END_SPREAD: Duration = Duration::from_millis(20);

/// The ends of leases in their order.
#[derive(Debug, Default)]
pub(super) struct ExpirySchedule {
    ends: HashMap<(LockName, Option<Fence>), Instant>,
    in_order: BTreeSet<(Instant, LockName, Option<Fence>)>,
}

impl ExpirySchedule {
    /// Takes in what an event tells. Says whether something has to be done earlier than before.
    pub(super) fn learn(&mut self, event: &LockEvent, now: Instant) -> bool {
        let lease = (event.name.clone(), event.fence);
        match event.kind {
            EventKind::Acquired | EventKind::Renewed => {
                let Some(expires_at) = event.expires_at else {
                    return false;
                };
                // Only the store's clock is in the event; how long it is from the one to the other is the same here.
                let lasts_ms = expires_at.unix_ms().saturating_sub(event.at.unix_ms());
                let before = self.next();
                self.set(lease, now + Duration::from_millis(lasts_ms));
                self.next() < before || before.is_none()
            }
            EventKind::Released | EventKind::Expired | EventKind::Evicted => {
                self.unset(&lease);
                false
            }
            EventKind::Queued => false,
        }
    }

    /// Takes in what a lock looked like. Says whether there is room for more.
    pub(super) fn learn_view(&mut self, view: &LockView, seen: Instant) -> bool {
        if let LockState::Held(holders) = &view.state {
            for holder in &holders.listed {
                self.set(
                    (view.name.clone(), Some(holder.fence)),
                    seen + holder.expires_in,
                );
            }
        }
        self.ends.len() < LEASES_MAX
    }

    /// The locks of which a lease should be over, each once.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<LockName> {
        let mut due = Vec::new();
        while self.in_order.first().is_some_and(|(end, ..)| *end <= now) {
            let Some((_, name, fence)) = self.in_order.pop_first() else {
                break;
            };
            self.ends.remove(&(name.clone(), fence));
            due.push(name);
        }
        due.sort_unstable();
        due.dedup();
        due
    }

    /// When the next lease should be over.
    pub(super) fn next(&self) -> Option<Instant> {
        self.in_order.first().map(|(end, ..)| *end)
    }

    /// Makes these locks due at `at`, whatever leases they have.
    pub(super) fn look_again(&mut self, names: Vec<LockName>, at: Instant) {
        for name in names {
            self.set((name, None), at);
        }
    }

    fn set(&mut self, lease: (LockName, Option<Fence>), end: Instant) {
        self.unset(&lease);
        if self.ends.len() < LEASES_MAX {
            let end = end + AFTER_END_MIN + jitter::up_to(AFTER_END_SPREAD);
            self.in_order.insert((end, lease.0.clone(), lease.1));
            self.ends.insert(lease, end);
        }
    }

    fn unset(&mut self, lease: &(LockName, Option<Fence>)) {
        if let Some(end) = self.ends.remove(lease) {
            let (name, fence) = lease.clone();
            self.in_order.remove(&(end, name, fence));
        }
    }
}
