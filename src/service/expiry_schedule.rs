//! When leases expire, as known from events and listings. Stores emit nothing on expiry, so while events are watched
//! the service inspects each lock just after its known expiry.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::backoff;
use crate::domain::{EventKind, Fence, LockEvent, LockName, LockState, LockView};

/// The maximum of leases in the schedule. The expiry of others is reported when a request finds it.
const LEASES_MAX: usize = 10_000;
/// Added to the end of a lease, so that it has expired by the store's clock.
const AFTER_END_MIN: Duration = Duration::from_millis(5);
const AFTER_END_SPREAD: Duration = Duration::from_millis(20);

/// The ends of leases, in order.
#[derive(Debug, Default)]
pub(super) struct ExpirySchedule {
    ends: HashMap<(LockName, Option<Fence>), Instant>,
    in_order: BTreeSet<(Instant, LockName, Option<Fence>)>,
}

impl ExpirySchedule {
    /// Applies an event. Returns whether the next inspection is now earlier.
    pub(super) fn learn(&mut self, event: &LockEvent, now: Instant) -> bool {
        let lease = (event.name.clone(), event.fence);
        match event.kind {
            EventKind::Acquired | EventKind::Renewed => {
                let Some(expires_at) = event.expires_at else {
                    return false;
                };
                // Both times are of the store's clock, but their difference is valid on this machine.
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

    /// Adds the leases of a lock. Returns whether there is room for more.
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

    /// Takes the locks of which a lease should have expired, each once.
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

    /// When the next lease should have expired.
    pub(super) fn next(&self) -> Option<Instant> {
        self.in_order.first().map(|(end, ..)| *end)
    }

    /// Schedules an inspection of these locks at `at`, whatever leases they have.
    pub(super) fn inspect_again(&mut self, names: Vec<LockName>, at: Instant) {
        for name in names {
            self.set((name, None), at);
        }
    }

    fn set(&mut self, lease: (LockName, Option<Fence>), end: Instant) {
        self.unset(&lease);
        if self.ends.len() < LEASES_MAX {
            let end = end + AFTER_END_MIN + backoff::up_to(AFTER_END_SPREAD);
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
