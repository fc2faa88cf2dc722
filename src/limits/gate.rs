//! How many operations may be in flight at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Operations that take more than this part of a gate are heavy.
const HEAVY: u32 = 8;

/// A budget of concurrent operations. Callers queue until there is capacity. Clones share it.
///
/// Heavy operations queue among themselves, and only the first of them queues with the others. So however many there
/// are, another operation waits for two of them at most.
#[derive(Clone, Debug)]
pub struct Gate {
    free: Arc<Semaphore>,
    /// The turn of the heavy operation that queues with the others.
    heavy: Arc<Semaphore>,
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
            heavy: Arc::new(Semaphore::new(1)),
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
        let weight = self.permits(weight);
        let _turn = match weight > self.max / HEAVY {
            true => Some(self.heavy.acquire().await.ok()?),
            false => None,
        };
        let permits = Arc::clone(&self.free).acquire_many_owned(weight);
        permits.await.ok().map(Passed)
    }

    fn permits(&self, weight: usize) -> u32 {
        u32::try_from(weight).map_or(self.max, |weight| weight.min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::task::yield_now;

    use super::*;

    /// A claim on 64 locks takes the store 3 ms. Two hundred of them once kept everybody else waiting for all of them.
    #[tokio::test]
    async fn an_operation_does_not_wait_for_all_heavy_ones_that_came_before() {
        let gate = Gate::new(128);
        let (passed, mut order) = mpsc::unbounded_channel();
        let pass = |weight, name| {
            let (gate, passed) = (gate.clone(), passed.clone());
            tokio::spawn(async move {
                let permits = gate.pass_without_deadline(weight).await;
                let _ = passed.send((name, permits));
            })
        };
        for _ in 0..5 {
            pass(256, "heavy");
            yield_now().await;
        }
        pass(1, "light");
        yield_now().await;
        let mut names = Vec::new();
        for _ in 0..6 {
            let next = tokio::time::timeout(Duration::from_secs(10), order.recv()).await;
            let (name, permits) = next.expect("the gate opens").expect("they are not dropped");
            names.push(name);
            drop(permits);
        }
        let light = names.iter().position(|name| *name == "light");
        assert_eq!(light, Some(2), "{names:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_heavy_operation_that_gives_up_lets_the_next_one_have_its_turn() {
        let gate = Gate::new(128);
        let all = gate.pass_without_deadline(128).await;
        let soon = Instant::now() + Duration::from_secs(1);
        assert!(gate.pass(64, soon).await.is_none());
        drop(all);
        assert!(gate.pass(64, soon).await.is_some());
    }
}
