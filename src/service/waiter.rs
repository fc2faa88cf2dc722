//! One request that waits, as others see it: how it is woken, and what it is told then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::domain::Claim;
use crate::limits::Taken;

/// One request that waits or is about to.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) claim: Arc<Claim>,
    /// Tells it from every other waiter of the process, later ones having larger numbers.
    pub(super) number: u64,
    /// Keeps one wake-up for a waiter that is busy; what it is about is looked up, so one is enough.
    wake: Notify,
    is_gone: AtomicBool,
    /// An earlier request of this process for the same claim was granted, which this one takes over.
    is_heir: AtomicBool,
    /// When it is to ask whatever its place in the line.
    poll_at: Mutex<Option<Instant>>,
    #[expect(dead_code, reason = "it is held, not read")]
    places: Places,
}

/// The room that a waiter takes up among those of all and of its peer.
#[derive(Debug)]
#[expect(dead_code, reason = "it is held, not read")]
pub(super) struct Places {
    pub(super) of_all: Taken,
    pub(super) of_peer: Option<Taken>,
}

/// The caller of a waiting request. Dropped, it is gone, and the request finds out at once.
#[derive(Debug)]
pub(super) struct DisconnectGuard(pub(super) Arc<Waiter>);

impl Waiter {
    pub(super) fn new(claim: Arc<Claim>, number: u64, places: Places) -> Self {
        Self {
            claim,
            number,
            wake: Notify::new(),
            is_gone: AtomicBool::new(false),
            is_heir: AtomicBool::new(false),
            poll_at: Mutex::default(),
            places,
        }
    }

    /// Makes the waiter look again at what it waits for.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Completes when the waiter was woken since the last time.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Makes the waiter ask the store at `at`, or sooner if it was called before. It finds out when it is woken.
    pub(super) fn recheck(&self, at: Instant) {
        let mut called = self.poll_at();
        *called = Some(called.map_or(at, |before| before.min(at)));
    }

    /// When it was called to ask. A call that is due is taken: it is the waiter's to follow.
    pub(super) fn take_poll(&self, now: Instant) -> Option<Instant> {
        let mut called = self.poll_at();
        let at = *called;
        called.take_if(|at| *at <= now);
        at
    }

    /// An earlier request for the same claim was granted.
    pub(super) fn inherit(&self) {
        self.is_heir.store(true, Ordering::Release);
    }

    /// Whether it may take over what its claim holds though it has waited.
    pub(super) fn is_heir(&self) -> bool {
        self.is_heir.load(Ordering::Acquire)
    }

    /// Whether nobody waits for its answer any more.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    fn poll_at(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.poll_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        self.0.is_gone.store(true, Ordering::Release);
        self.0.wake();
    }
}
