//! Another try of an operation that met another request of its claim: nodes have the leases with different tokens until that
//! one has decided on some.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::backoff::{Backoff, jittered};
use crate::store::{Fault, StoreResult};

const TRIES_MAX: u8 = 5;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(80);

/// The tries of one operation.
#[derive(Debug, Default)]
pub(super) struct BusyTries {
    made: u8,
    pauses: Backoff,
}

impl BusyTries {
    /// Whether to try again after this answer, and if so, after a pause.
    pub(super) async fn again<T>(&mut self, answer: &StoreResult<T>, deadline: Instant) -> bool {
        self.made += 1;
        let is_busy = matches!(answer, Err(error) if error.fault() == Fault::Busy);
        let pause = jittered(self.pauses.next(PAUSE_MIN, PAUSE_MAX));
        if !is_busy || self.made == TRIES_MAX || Instant::now() + pause >= deadline {
            return false;
        }
        sleep(pause).await;
        true
    }
}
