//! Whether a scan can end in time. One that cannot would take its share of Redis for nothing, and again when the client
//! repeats its request.

use std::time::Duration;

use tokio::time::Instant;

use super::SCAN_STEP;
use crate::store::{Fault, StoreError};

/// How many steps show the pace of a scan; fewer may be slow by chance.
const STEPS_JUDGED: u32 = 50;

/// How far a scan has come.
#[derive(Default)]
pub(super) struct ScanProgress {
    steps: u32,
    /// How long its steps have taken at their pace. Neither what other scans have taken nor a pause of the network is in
    /// it: both may be over soon.
    took: Duration,
}

impl ScanProgress {
    /// Notes a step that took so long at its pace.
    pub(super) fn step(&mut self, took: Duration) {
        self.steps += 1;
        self.took += took;
    }

    /// How many steps there were.
    pub(super) fn steps(&self) -> u64 {
        u64::from(self.steps)
    }

    /// Checks a scan that takes this many steps in all.
    ///
    /// # Errors
    /// It would not be over at `end`, not even half as fast again as until now.
    pub(super) fn check(&self, steps_in_all: u64, end: Instant) -> Result<(), StoreError> {
        let steps_left = steps_in_all.saturating_sub(self.steps());
        let left = self.took.as_secs_f64() / f64::from(self.steps) * steps_left as f64 / 1.5;
        let has_time = end.saturating_duration_since(Instant::now()).as_secs_f64() >= left;
        if self.steps < STEPS_JUDGED || has_time {
            return Ok(());
        }
        let keys = steps_in_all * SCAN_STEP as u64;
        let detail = format!(
            "to list locks, about {keys} keys would have to be visited in the share of the time of Redis that listings have; \
             if some are of other programs, give Leasehold a database of its own"
        );
        Err(StoreError::unavailable(Fault::Crowded, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const STEPS: u64 = 10_000;

    /// How many of its steps a scan makes if each takes a millisecond.
    async fn steps_made(timeout: Duration) -> u64 {
        let (mut progress, end) = (ScanProgress::default(), Instant::now() + timeout);
        for step in 1..=STEPS {
            tokio::time::advance(MILLI).await;
            progress.step(MILLI);
            if progress.check(STEPS, end).is_err() {
                return step;
            }
        }
        STEPS
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_scan_that_cannot_end_in_time_is_given_up_and_soon() {
        let seconds = Duration::from_secs;
        assert_eq!(steps_made(seconds(10)).await, 10_000);
        assert_eq!(steps_made(seconds(5)).await, 50);
        let late = steps_made(seconds(8)).await;
        assert!((1_000..9_000).contains(&late), "{late}");
    }

    /// Those that wait beside it, and a pause of Redis or of the network, say nothing about the rest of the scan.
    #[tokio::test(start_paused = true)]
    async fn a_scan_that_began_slowly_goes_on() {
        let (mut progress, end) = (ScanProgress::default(), Instant::now() + MILLI * 20_000);
        tokio::time::advance(MILLI * 5_000).await;
        for _ in 0..100 {
            progress.step(MILLI);
            progress.check(STEPS, end).expect("there is time");
        }
    }
}
