//! Waiters who have something to look at, until they are woken.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::service::waiter::Waiter;

/// Waiters to be woken, which happens when this is dropped: no way out of a function leaves one asleep.
///
/// Waking one is a call of the kernel where its thread sleeps, and the woken thread wants the mutex of the queues at once.
/// So this is created before the mutex is locked, and dropped after it was let go of.
#[derive(Debug, Default)]
#[must_use = "they are woken when this is dropped"]
pub(in crate::service) struct DeferredNotify(Vec<Arc<Waiter>>);

impl DeferredNotify {
    /// Wakes them when the task that runs now pauses: who is woken wants a core, and so does the client that is answered.
    /// The task of an HTTP/1 connection has written its answer by then. An HTTP/2 stream or an event is written by another
    /// task, so there the order is left to chance. Outside of a runtime they are woken at once.
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
