//! The shared handle of a waiting request, by which others wake it and add reasons to its schedule; and the queue of one
//! lock on this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::local_waiters::SentRelease;
use super::schedule::{HeadSchedule, POLL_SPACING, PollSchedule};
use crate::domain::{Claim, ClaimDigest, LockName};
use crate::limits::BudgetPermit;
use crate::sync::{Mutex, MutexGuard, Notify};

/// One request that waits or is arriving.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) claim: Arc<Claim>,
    /// The digests by which stores know the claim, one for each of its locks.
    digests: Box<[ClaimDigest]>,
    /// Unique in the process; later waiters have larger numbers.
    pub(super) number: u64,
    /// Stores one wake-up for a busy waiter. One is enough, because the waiter then checks everything.
    wake: Notify,
    is_disconnected: AtomicBool,
    /// An earlier request of this process for the same claim was granted; this one may take the lease over.
    may_take_over: AtomicBool,
    schedule: Mutex<PollSchedule>,
    pub(super) places: Places,
}

/// The places that a waiter occupies, of the budgets of the process, of its peer and of its principal.
#[derive(Debug)]
pub(super) struct Places {
    #[expect(dead_code, reason = "it is held, not read")]
    pub(super) of_all: BudgetPermit,
    #[expect(dead_code, reason = "it is held, not read")]
    pub(super) of_peer: Option<BudgetPermit>,
    /// Shared by all requests for the claim, and given back when the last of them ends.
    pub(super) of_principal: Option<Arc<BudgetPermit>>,
}

/// Held by the caller of a waiting request. Dropping it marks the waiter as disconnected and wakes it.
#[derive(Debug)]
pub(super) struct DisconnectGuard(pub(super) Arc<Waiter>);

impl Waiter {
    pub(super) fn new(claim: Arc<Claim>, number: u64, places: Places) -> Self {
        let digest = |name| claim.token.digest(name);
        Self {
            digests: claim.names.iter().map(digest).collect(),
            claim,
            number,
            wake: Notify::new(),
            is_disconnected: AtomicBool::new(false),
            may_take_over: AtomicBool::new(false),
            schedule: Mutex::default(),
            places,
        }
    }

    /// The digest by which stores know the claim on this lock.
    pub(super) fn digest_on(&self, name: &LockName) -> Option<ClaimDigest> {
        let index = self.claim.names.iter().position(|own| own == name)?;
        Some(self.digests[index])
    }

    /// Wakes the waiter to check its state.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Completes when the waiter was woken since the last completion.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// When it polls. Do not call [`LocalWaiters`](super::local_waiters::LocalWaiters) while holding it, and do not
    /// await. A change does not wake the waiter.
    pub(super) fn schedule(&self) -> MutexGuard<'_, PollSchedule> {
        // Poisoning is harmless: no step panics halfway through a change.
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets it take over the lease, because an earlier request for the same claim was granted.
    pub(super) fn allow_take_over(&self) {
        self.may_take_over.store(true, Ordering::Release);
    }

    /// Whether it may take over its claim's lease although it has waited.
    pub(super) fn may_take_over(&self) -> bool {
        self.may_take_over.load(Ordering::Acquire)
    }

    /// Whether its caller has disconnected.
    pub(super) fn is_disconnected(&self) -> bool {
        self.is_disconnected.load(Ordering::Acquire)
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        self.0.is_disconnected.store(true, Ordering::Release);
        self.0.wake();
    }
}

/// Waiters to wake. Dropping this wakes them, so that no return path leaves one asleep.
///
/// Waking a waiter is a system call if its thread sleeps, and the woken thread locks the mutex of the queues at once.
/// So create this before locking the mutex: then it is dropped after the mutex is released.
#[derive(Debug, Default)]
#[must_use = "they are woken when this is dropped"]
pub(super) struct DeferredNotify(Vec<Arc<Waiter>>);

impl DeferredNotify {
    /// Wakes them once the current task yields, because woken waiters and the answered client compete for cores. By
    /// then, the task of an HTTP/1 connection has written its response. HTTP/2 streams and events are written by
    /// another task, so their order is undefined. Outside of a runtime, wakes them at once.
    pub(super) fn defer(self) {
        if let (false, Ok(runtime)) = (self.0.is_empty(), Handle::try_current()) {
            runtime.spawn(async { drop(self) });
        }
    }

    pub(super) fn add(&mut self, waiter: &Arc<Waiter>) {
        self.0.push(Arc::clone(waiter));
    }
}

impl Drop for DeferredNotify {
    fn drop(&mut self) {
        for waiter in &self.0 {
            waiter.wake();
        }
    }
}

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
    /// When the request that found places lost was sent; since then all waiters poll once, one after the other.
    restoring: Option<Instant>,
    /// The last releases of the lock that this process has sent, until a waiter is granted the lock.
    pub(super) releases: Vec<SentRelease>,
}

/// What the answer to a waiter says about its queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueAnswer {
    /// When the request was sent.
    pub(super) sent: Instant,
    /// When the waiter's previous request was sent.
    pub(super) before: Option<Instant>,
    /// When something expires, counted from the request.
    pub(super) recheck_in: Option<Duration>,
    /// Whether the store had lost the waiter's place.
    pub(super) restored: bool,
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
            releases: Vec::new(),
        }
    }
}
