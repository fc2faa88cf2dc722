//! Waiters who have something to look at, until they are woken.

use std::sync::Arc;

use crate::service::waiter::Waiter;

/// Waiters to be woken, which happens when this is dropped: no way out of a function leaves one asleep.
///
/// Waking one is a call of the kernel where its thread sleeps, and the woken thread wants the mutex of the queues at once.
/// So this is created before the mutex is locked, and dropped after it was let go of.
#[derive(Debug, Default)]
pub(in crate::service) struct Wakes(Vec<Arc<Waiter>>);

impl Wakes {
    pub(in crate::service) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn extend<'a>(&mut self, waiters: impl IntoIterator<Item = &'a Arc<Waiter>>) {
        self.0.extend(waiters.into_iter().cloned());
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        for waiter in &self.0 {
            waiter.wake();
        }
    }
}
