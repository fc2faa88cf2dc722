//! Collects waiters to wake, and wakes them later.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::service::waiter::Waiter;

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
