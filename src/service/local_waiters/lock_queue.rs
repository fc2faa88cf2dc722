//! The waiters of one lock on this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{BETWEEN_ASKS, DeferredNotify};
use crate::service::waiter::Waiter;

/// The waiters of one lock.
#[derive(Debug)]
pub(super) struct LockQueue {
    /// By the sequence of their places and by their own numbers.
    pub(super) waiters: BTreeMap<(u64, u64), Arc<Waiter>>,
    /// Requests that have asked and do not stand yet. The line is there for them because an offer may be here sooner than
    /// the answer.
    pub(super) arriving: usize,
    /// The lock was offered and nobody has asked since.
    pub(super) is_reserved: bool,
    pub(super) reserved_at: Option<Instant>,
    /// When the first waiter asks if nothing else makes it ask.
    pub(super) due: Instant,
    /// When the last request was sent from which the store knows that this process is alive.
    heard: Option<Instant>,
    /// Since when the waiters ask one after the other because the store had lost their places.
    restoring: Option<Instant>,
}

/// What the answer to a waiter tells about its lines.
#[derive(Clone, Copy, Debug)]
pub(in crate::service) struct QueueAnswer {
    /// When the request was sent.
    pub(in crate::service) sent: Instant,
    /// When the waiter's request before that was sent.
    pub(in crate::service) before: Option<Instant>,
    /// When something runs out, counted from the request.
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

    /// Whether the store may have lost the places of this line: it says so of one, or it had heard so little of this process
    /// that it may have taken it for dead. Of those who are asking again for that reason, no more is concluded.
    pub(super) fn is_lost(
        &mut self,
        answered: &QueueAnswer,
        now: Instant,
        liveness_timeout: Duration,
    ) -> bool {
        let was_silent = self
            .heard
            .is_some_and(|heard| heard + liveness_timeout <= now);
        self.heard = self.heard.max(Some(answered.sent));
        let is_news = || match (self.restoring, answered.before) {
            (Some(since), Some(before)) => before >= since,
            (Some(_), None) | (None, _) => true,
        };
        was_silent || (answered.restored && is_news())
    }

    /// Every other waiter is to ask once, in the order of the line.
    pub(super) fn restore(
        &mut self,
        waiter: &Waiter,
        answered: &QueueAnswer,
        now: Instant,
        wakes: &mut DeferredNotify,
    ) {
        self.restoring = Some(answered.sent);
        let others = self.waiters.values();
        let others = others.filter(|other| other.number != waiter.number);
        for (number, other) in (0..).zip(others) {
            other.recheck(now + BETWEEN_ASKS * number);
            wakes.add(other);
        }
    }

    /// Takes a waiter out. Who is the first after that has the offer to follow and the time to watch.
    pub(super) fn step_out(&mut self, sequence: u64, waiter: &Waiter, wakes: &mut DeferredNotify) {
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
            is_reserved: false,
            reserved_at: None,
            due: Instant::now(),
            heard: None,
            restoring: None,
        }
    }
}
