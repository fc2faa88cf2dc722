//! The barriers of one Redis: one at a time, over one connection. `replication` says what a barrier is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, MutexGuard};

use super::failure::{Failure, Fate};
use super::pool::Connection;
use crate::store::Fault;

/// Identifies the process of a Redis.
pub(super) type RunId = Arc<str>;

/// The barriers of one Redis, whichever of its partitions they are for.
pub(super) struct Barriers {
    /// The number of the last barrier that began. Changed by the owner of `last` alone.
    begun: AtomicU64,
    /// Held during a barrier. The requests that wait for it share the next one.
    last: Mutex<LastBarrier>,
}

/// The last barrier that has ended.
pub(super) struct LastBarrier {
    number: u64,
    /// At which Redis it was, or why too few replicas have confirmed it.
    pub(super) outcome: Result<RunId, Failure>,
    /// Its connection, for the next one.
    kept: Option<Kept>,
}

/// A connection for barriers, and the Redis that it leads to.
pub(super) struct Kept {
    pub(super) connection: Connection,
    pub(super) run_id: RunId,
}

impl Default for Barriers {
    fn default() -> Self {
        let none_yet = Failure::new(Fault::Unreplicated, Fate::NotDone, "not asked yet");
        Self {
            begun: AtomicU64::new(0),
            last: Mutex::new(LastBarrier {
                number: 0,
                outcome: Err(none_yet),
                kept: None,
            }),
        }
    }
}

impl Barriers {
    /// The first barrier that begins from now on, once it has ended. `run` is given the connection of the last one, and
    /// returns the outcome, and the connection if it can be used again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the barrier is abandoned, and the next request begins another one.
    pub(super) async fn next<R>(
        &self,
        run: impl FnOnce(Option<Kept>) -> R,
    ) -> MutexGuard<'_, LastBarrier>
    where
        R: Future<Output = (Result<RunId, Failure>, Option<Kept>)>,
    {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if last.number <= begun_before {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            // Taken, so that a connection with a barrier that was abandoned is not used again.
            let (outcome, kept) = run(last.kept.take()).await;
            *last = LastBarrier {
                number,
                outcome,
                kept,
            };
        }
        last
    }
}
