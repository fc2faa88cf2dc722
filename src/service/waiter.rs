//! The shared handle of a waiting request: others wake it and add reasons to its schedule.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::schedule::PollSchedule;
use crate::domain::{Claim, ClaimDigest, LockName};
use crate::limits::Taken;

/// One request that waits or is arriving.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) claim: Arc<Claim>,
    /// What stores keep of the claim, for each of its locks.
    digests: Box<[ClaimDigest]>,
    /// Unique in the process; later waiters have larger numbers.
    pub(super) number: u64,
    /// Stores one wake-up for a busy waiter. One is enough, because the waiter then checks everything.
    wake: Notify,
    is_disconnected: AtomicBool,
    /// An earlier request of this process for the same claim was granted; this one may take the lease over.
    is_heir: AtomicBool,
    schedule: Mutex<PollSchedule>,
    #[expect(dead_code, reason = "it is held, not read")]
    places: Places,
}

/// The places that a waiter occupies, of the process's and of its peer's budget.
#[derive(Debug)]
#[expect(dead_code, reason = "it is held, not read")]
pub(super) struct Places {
    pub(super) of_all: Taken,
    pub(super) of_peer: Option<Taken>,
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
            is_heir: AtomicBool::new(false),
            schedule: Mutex::default(),
            places,
        }
    }

    /// What stores keep of the claim on this lock.
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

    /// An earlier request for the same claim was granted.
    pub(super) fn inherit(&self) {
        self.is_heir.store(true, Ordering::Release);
    }

    /// Whether it may take over its claim's lease although it has waited.
    pub(super) fn is_heir(&self) -> bool {
        self.is_heir.load(Ordering::Acquire)
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
pub(in crate::service) struct DeferredNotify(Vec<Arc<Waiter>>);

impl DeferredNotify {
    /// Wakes them once the current task yields, because woken waiters and the answered client compete for cores. By
    /// then, the task of an HTTP/1 connection has written its response. HTTP/2 streams and events are written by
    /// another task, so their order is undefined. Outside of a runtime, wakes them at once.
    pub(in crate::service) fn defer(self) {
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
