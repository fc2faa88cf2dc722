//! Limits the pace of operations that visit all locks: one step at a time, and together a small share of the store's
//! time, so that they do not delay other operations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Fault, StoreError};

/// How much of the share may be used at once after a rest.
const SAVED_MAX: Duration = Duration::from_millis(5);
/// A step is small. Time beyond this is not the store's work on it, but network delay or other work.
const STEP_MAX: Duration = Duration::from_millis(2);

/// When the next step may begin; the lock queues the callers.
#[derive(Debug)]
pub(super) struct Pace {
    /// The steps get the store's time divided by this.
    share: u32,
    turn: Mutex<Option<Instant>>,
    /// How many steps there were.
    steps: AtomicU64,
}

impl Pace {
    /// The pace of listings, for which clients wait: a tenth of the store's time.
    pub(super) fn of_listings() -> Self {
        Self::with(10)
    }

    /// The pace of background work: a hundredth of the store's time.
    pub(super) fn of_counts() -> Self {
        Self::with(100)
    }

    fn with(share: u32) -> Self {
        Self {
            share,
            turn: Mutex::default(),
            steps: AtomicU64::new(0),
        }
    }

    /// How many steps have begun until now.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Runs one step when its turn comes. The step returns how long the store worked for it, if known.
    ///
    /// # Errors
    /// The error of the step, or its turn did not come before `deadline`.
    ///
    /// # Cancel safety
    /// If dropped before its turn, the step has not begun.
    pub(super) async fn step<T>(
        &self,
        deadline: Instant,
        step: impl Future<Output = Result<(T, Option<Duration>), StoreError>>,
    ) -> Result<T, StoreError> {
        let its_turn = async {
            let turn = self.turn.lock().await;
            if let Some(at) = *turn {
                sleep_until(at).await;
            }
            turn
        };
        let Ok(mut turn) = timeout_at(deadline, its_turn).await else {
            let detail = "listings have a share of the store's time, and that was used up";
            return Err(StoreError::unavailable(Fault::Timeout, detail));
        };
        self.steps.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let saved = began.checked_sub(SAVED_MAX).unwrap_or(began);
        let rested = turn.map_or(saved, |turn| turn.max(saved));
        // Cancellation safety: a step whose caller is gone has used its full time.
        *turn = Some(rested + STEP_MAX * self.share);
        let (answer, worked) = step.await?;
        let worked = worked.unwrap_or_else(|| began.elapsed());
        *turn = Some(rested + self.time_for(worked));
        Ok(answer)
    }

    /// How long the steps of all callers have to take together, for one of which the store worked so long.
    pub(super) fn time_for(&self, worked: Duration) -> Duration {
        worked.min(STEP_MAX) * self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Duration = Duration::from_millis(1);
    const SHARE: u32 = 10;

    async fn step(pace: &Pace) -> Result<(), StoreError> {
        let deadline = Instant::now() + Duration::from_secs(60);
        pace.step(deadline, async { Ok(((), Some(WORK))) }).await
    }

    #[tokio::test(start_paused = true)]
    async fn all_steps_together_take_their_share_and_no_more() {
        let (pace, began) = (Pace::with(SHARE), Instant::now());
        for _ in 0..50 {
            let (one, other) = tokio::join!(step(&pace), step(&pace));
            one.and(other).expect("there is time");
        }
        // No step waits after the last one.
        let work = WORK * 99 * SHARE - SAVED_MAX;
        assert!(began.elapsed() >= work, "{:?}", began.elapsed());
        assert!(began.elapsed() < work * 2, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_whose_caller_is_gone_has_had_its_time() {
        let (pace, began) = (Pace::with(SHARE), Instant::now());
        let never = std::future::pending::<Result<((), _), _>>();
        let gone = timeout_at(began + WORK, pace.step(began + WORK * 2, never)).await;
        assert!(gone.is_err());
        step(&pace).await.expect("there is time");
        assert!(began.elapsed() >= STEP_MAX * SHARE - SAVED_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_whose_turn_does_not_come_in_time_is_not_taken() {
        let pace = Pace::with(SHARE);
        let deadline = Instant::now() + WORK;
        let slow = async {
            tokio::time::sleep(WORK * 2).await;
            Ok(((), None))
        };
        let late = pace.step(deadline, async { Ok(((), None)) });
        let (slow, late) = tokio::join!(pace.step(deadline, slow), late);
        slow.expect("it was the first");
        assert!(matches!(late, Err(StoreError::Unavailable { .. })));
    }
}
