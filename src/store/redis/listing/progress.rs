//! Whether a scan can end in time. One that cannot would take its share of Redis for nothing, and again when the client
//! repeats its request.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::{Fault, StoreError};

/// How many steps show the pace of a scan; fewer may be slow by chance.
const STEPS_JUDGED: u32 = 50;

/// How far a scan has come.
#[derive(Default)]
pub(super) struct ScanProgress {
    steps: u32,
    /// How many keys they have visited.
    keys: u64,
    /// How long its steps have taken at their pace. Neither what other scans have taken nor a pause of the network is in
    /// it: both may be over soon.
    took: Duration,
}

impl ScanProgress {
    /// Notes a step that visited so many keys, and took so long at its pace.
    pub(super) fn step(&mut self, keys: usize, took: Duration) {
        self.steps += 1;
        self.keys += keys as u64;
        self.took += took;
    }

    /// How many keys were visited.
    pub(super) fn keys(&self) -> u64 {
        self.keys
    }

    /// Checks a scan that visits this many keys in all.
    ///
    /// # Errors
    /// It would not be over at `end`, not even half as fast again as until now.
    pub(super) fn check(&self, keys_in_all: u64, end: Instant) -> Result<(), StoreError> {
        let keys_left = keys_in_all.saturating_sub(self.keys);
        let left = self.took.as_secs_f64() / self.keys as f64 * keys_left as f64 / 1.5;
        let has_time = end.saturating_duration_since(Instant::now()).as_secs_f64() >= left;
        if self.steps < STEPS_JUDGED || has_time {
            return Ok(());
        }
        let detail = format!(
            "to list locks, about {keys_in_all} keys would have to be visited in the share of the time of Redis that listings have; \
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
    const KEYS: usize = 40;
    const KEYS_IN_ALL: u64 = STEPS * KEYS as u64;

    /// How many of its steps a scan makes if each takes a millisecond.
    async fn steps_made(timeout: Duration) -> u64 {
        let (mut progress, end) = (ScanProgress::default(), Instant::now() + timeout);
        for step in 1..=STEPS {
            tokio::time::advance(MILLI).await;
            progress.step(KEYS, MILLI);
            if progress.check(KEYS_IN_ALL, end).is_err() {
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
            progress.step(KEYS, MILLI);
            progress.check(KEYS_IN_ALL, end).expect("there is time");
        }
    }
}
