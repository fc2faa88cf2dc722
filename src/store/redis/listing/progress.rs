//! Whether a scan can end in time. One that cannot would take its share of Redis for nothing, and again when the client
//! repeats its request.

use std::time::Duration;

use tokio::time::Instant;

use super::SCAN_STEP;
use crate::store::{Fault, StoreError};

/// How many steps show the pace of a scan; fewer may be slow by chance.
const STEPS_JUDGED: u32 = 50;

/// How far a scan has come.
pub(super) struct ScanProgress {
    began: Instant,
    steps: u32,
}

impl ScanProgress {
    pub(super) fn begin() -> Self {
        let began = Instant::now();
        Self { began, steps: 0 }
    }

    /// Notes a step that has found this many keys in the database.
    ///
    /// # Errors
    /// The keys are so many that the scan would not be over at `end`, not even half as fast again as until now.
    pub(super) fn step(&mut self, keys: u64, end: Instant) -> Result<(), StoreError> {
        self.steps += 1;
        let steps = keys / SCAN_STEP as u64;
        let took = self.began.elapsed();
        let all = took.as_secs_f64() / f64::from(self.steps) * steps as f64;
        let left = Duration::try_from_secs_f64(all / 1.5).unwrap_or(Duration::MAX);
        if self.steps < STEPS_JUDGED || self.began.checked_add(left).is_some_and(|at| at <= end) {
            return Ok(());
        }
        let detail = format!(
            "to list locks, {keys} keys would have to be visited in the share of the time of Redis that listings have; \
             give Leasehold a database of its own"
        );
        Err(StoreError::unavailable(Fault::Crowded, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of its steps a scan makes if each takes a millisecond.
    async fn steps_made(keys: u64, timeout: Duration) -> u64 {
        let (mut progress, end) = (ScanProgress::begin(), Instant::now() + timeout);
        let steps = keys / SCAN_STEP as u64;
        for step in 1..=steps {
            tokio::time::advance(Duration::from_millis(1)).await;
            if progress.step(keys, end).is_err() {
                return step;
            }
        }
        steps
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_scan_that_cannot_end_in_time_is_given_up_and_soon() {
        let keys = 10_000 * SCAN_STEP as u64;
        assert_eq!(steps_made(keys, Duration::from_secs(10)).await, 10_000);
        assert_eq!(steps_made(keys, Duration::from_secs(7)).await, 10_000);
        assert_eq!(steps_made(keys, Duration::from_secs(5)).await, 50);
    }
}
