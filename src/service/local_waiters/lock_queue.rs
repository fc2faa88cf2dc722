//! The waiters of one lock on this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::DeferredNotify;
use crate::service::schedule::{HeadSchedule, POLL_SPACING};
use crate::service::waiter::Waiter;

/// The waiters of one lock.
#[derive(Debug)]
pub(super) struct LockQueue {
    /// By the sequence of their places, then by their own numbers.
    pub(super) waiters: BTreeMap<(u64, u64), Arc<Waiter>>,
    /// Requests without an answer yet. They keep the queue alive, because a reservation may arrive before the answer.
    pub(super) arriving: usize,
    /// When its head waiter polls.
    pub(super) head: HeadSchedule,
    /// When the last answered request was sent, which is the process's last heartbeat to the store.
    last_contact: Option<Instant>,
    /// When the request was sent that found places lost; since then all waiters poll once, one after the other.
    restoring: Option<Instant>,
}

/// What the answer to a waiter says about its queues.
#[derive(Clone, Copy, Debug)]
pub(in crate::service) struct QueueAnswer {
    /// When the request was sent.
    pub(in crate::service) sent: Instant,
    /// When the waiter's previous request was sent.
    pub(in crate::service) before: Option<Instant>,
    /// When something expires, counted from the request.
    pub(in crate::service) recheck_in: Option<Duration>,
    /// Whether the store had lost the waiter's place.
    pub(in crate::service) restored: bool,
}

impl LockQueue {
    pub(super) fn first(&self) -> Option<&Arc<Waiter>> {
        self.waiters.first_key_value().map(|(_, first)| first)
    }

    pub(super) fn is_first(&self, waiter: &Waiter) -> bool {
        self.first()
            .is_some_and(|first| first.number == waiter.number)
    }

    /// Whether the store may have lost the places of this queue: it reports one as lost, or it may have considered this
    /// process dead. A loss that the current restoration already covers does not count again.
    pub(super) fn may_have_lost_places(
        &mut self,
        answer: &QueueAnswer,
        now: Instant,
        liveness_timeout: Duration,
    ) -> bool {
        let was_silent = self
            .last_contact
            .is_some_and(|last_contact| last_contact + liveness_timeout <= now);
        self.last_contact = self.last_contact.max(Some(answer.sent));
        let is_new = || match (self.restoring, answer.before) {
            (Some(since), Some(before)) => before >= since,
            (Some(_), None) | (None, _) => true,
        };
        was_silent || (answer.restored && is_new())
    }

    /// Makes every other waiter poll once, in the order of the queue.
    pub(super) fn restore(
        &mut self,
        waiter: &Waiter,
        answer: &QueueAnswer,
        now: Instant,
        wakes: &mut DeferredNotify,
    ) {
        self.restoring = Some(answer.sent);
        let others = self.waiters.values();
        let others = others.filter(|other| other.number != waiter.number);
        for (number, other) in (0..).zip(others) {
            other.schedule().recheck(now + POLL_SPACING * number);
            wakes.add(other);
        }
    }

    /// Removes a waiter. A new head waiter is woken, to follow the reservation and the poll interval.
    pub(super) fn dequeue(&mut self, sequence: u64, waiter: &Waiter, wakes: &mut DeferredNotify) {
        let was_first = self.is_first(waiter);
        self.waiters.remove(&(sequence, waiter.number));
        if let (true, Some(next)) = (was_first, self.first()) {
            wakes.add(next);
        }
    }
}

impl Default for LockQueue {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            arriving: 0,
            head: HeadSchedule::new(Instant::now()),
            last_contact: None,
            restoring: None,
        }
    }
}
