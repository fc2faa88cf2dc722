//! How many operations may be in flight at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// A budget of concurrent operations. Callers queue until there is capacity. Clones share it.
#[derive(Clone, Debug)]
pub struct Gate {
    free: Arc<Semaphore>,
    max: u32,
}

/// Permits of a gate, held until dropped.
#[derive(Debug)]
pub struct Passed(#[expect(dead_code, reason = "it is held, not read")] OwnedSemaphorePermit);

impl Gate {
    /// A gate with `max` permits.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(max)),
            max: u32::try_from(max).unwrap_or(u32::MAX),
        }
    }

    /// Waits for `weight` permits, at most all of the gate's. Returns `None` at the deadline.
    ///
    /// # Cancel safety
    /// A dropped future holds no permits.
    pub async fn pass(&self, weight: usize, deadline: Instant) -> Option<Passed> {
        match self.try_pass(weight) {
            Some(passed) => Some(passed),
            None => timeout_at(deadline, self.pass_without_deadline(weight))
                .await
                .ok()?,
        }
    }

    fn try_pass(&self, weight: usize) -> Option<Passed> {
        let permits = Arc::clone(&self.free).try_acquire_many_owned(self.permits(weight));
        permits.ok().map(Passed)
    }

    /// Waits for `weight` permits without a deadline. Never returns `None`, because the semaphore is never closed.
    ///
    /// # Cancel safety
    /// A dropped future holds no permits.
    pub async fn pass_without_deadline(&self, weight: usize) -> Option<Passed> {
        let permits = Arc::clone(&self.free).acquire_many_owned(self.permits(weight));
        permits.await.ok().map(Passed)
    }

    fn permits(&self, weight: usize) -> u32 {
        u32::try_from(weight).map_or(self.max, |weight| weight.min(self.max))
    }
}
