//! The barriers of one Redis: one at a time, over one connection. `replication` says what a barrier is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, MutexGuard};

use super::failure::{Execution, Failure};
use super::pool::Connection;
use crate::store::Fault;

/// Identifies the process of a Redis.
pub(super) type RunId = Arc<str>;

/// The barriers of one Redis, whichever of its partitions they are for.
pub(super) struct Barriers {
    /// The number of the last barrier that began. Changed by the owner of `shared` alone.
    begun: AtomicU64,
    /// Held during a barrier. The requests that wait for it share the next one.
    shared: Mutex<SharedBarrier>,
}

/// The last barrier whose outcome is that of all its partitions.
pub(super) struct SharedBarrier {
    number: u64,
    /// At which Redis it was, if that is known.
    at: Option<RunId>,
    /// The same, or why too few replicas have confirmed it.
    outcome: Result<RunId, Failure>,
    /// The connection of the last barrier, for the next one.
    kept: Option<BarrierConnection>,
}

/// A connection for barriers, and the Redis that it leads to.
pub(super) struct BarrierConnection {
    pub(super) connection: Connection,
    pub(super) run_id: RunId,
}

impl Default for Barriers {
    fn default() -> Self {
        let none_yet = Failure::new(Fault::Unreplicated, Execution::NotDone, "not asked yet");
        Self {
            begun: AtomicU64::new(0),
            shared: Mutex::new(SharedBarrier {
                number: 0,
                at: None,
                outcome: Err(none_yet),
                kept: None,
            }),
        }
    }
}

impl Barriers {
    /// The outcome of the first barrier at a Redis that counts which begins from now on, and a guard without which no other
    /// one begins. `run` is given the connection of the last one, and returns the outcome, and the connection if it can be
    /// used again. One that fails may do so because of the partition that it was for, whose slot may be on its way, and one
    /// may be at the Redis to which that slot has moved, so the next request runs its own.
    ///
    /// # Cancel safety
    /// If the future is dropped, the barrier is abandoned, and the next request begins another one.
    pub(super) async fn next<R>(
        &self,
        counts: impl Fn(&str) -> bool,
        run: impl FnOnce(Option<BarrierConnection>) -> R,
    ) -> (Result<RunId, Failure>, MutexGuard<'_, SharedBarrier>)
    where
        R: Future<Output = (Result<RunId, Failure>, Option<BarrierConnection>)>,
    {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut shared = self.shared.lock().await;
        if shared.number > begun_before && shared.at.as_deref().is_none_or(counts) {
            return (shared.outcome.clone(), shared);
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        // Taken, so that a connection with a barrier that was abandoned is not used again.
        let (outcome, kept) = run(shared.kept.take()).await;
        if outcome.as_ref().map_or_else(is_of_all, |_| true) {
            let confirmed_at = outcome.as_ref().ok().cloned();
            let kept_at = kept.as_ref().map(|kept| Arc::clone(&kept.run_id));
            // All three together: the next ones in line may still share an earlier outcome, at the Redis where it was.
            shared.number = number;
            shared.at = confirmed_at.or(kept_at);
            shared.outcome = outcome.clone();
        }
        shared.kept = kept;
        (outcome, shared)
    }
}

/// Whether a barrier of another partition would have failed, too.
fn is_of_all(failure: &Failure) -> bool {
    matches!(failure.fault, Fault::Unreplicated | Fault::Permission)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures_util::future::join_all;
    use tokio::sync::oneshot;

    use super::*;

    const HERE: &str = "here";

    /// Which of several requests have run a barrier of their own, if all were in line when another one's ended, and theirs
    /// end so.
    async fn barriers_run<const COUNT: usize>(
        outcomes: [Result<RunId, Failure>; COUNT],
    ) -> [bool; COUNT] {
        let barriers = Barriers::default();
        let is_here = |run_id: &str| run_id == HERE;
        let (end, ended) = oneshot::channel();
        let before = async {
            let run = async |_| {
                ended.await.expect("it ends");
                (Ok(RunId::from(HERE)), None)
            };
            drop(barriers.next(is_here, run).await);
        };
        let in_line = async {
            let mut has_run = [false; COUNT];
            let requests = has_run.iter_mut().zip(outcomes);
            let requests = requests.map(async |(has_run, outcome)| {
                let run = |_| {
                    *has_run = true;
                    ready((outcome, None))
                };
                drop(barriers.next(is_here, run).await);
            });
            let end = async { end.send(()).expect("it is waited for") };
            tokio::join!(join_all(requests), end);
            has_run
        };
        tokio::join!(before, in_line).1
    }

    fn failed(fault: Fault) -> Result<RunId, Failure> {
        Err(Failure::new(fault, Execution::MayBeDone, "it failed"))
    }

    #[tokio::test]
    async fn a_barrier_that_fails_for_one_partition_fails_for_no_other() {
        for fault in [Fault::ClusterDown, Fault::Io] {
            let outcomes = [failed(fault), failed(fault)];
            assert_eq!(barriers_run(outcomes).await, [true, true], "{fault:?}");
        }
    }

    #[tokio::test]
    async fn a_barrier_that_too_few_replicas_confirm_is_that_of_all_in_line() {
        let outcomes = [failed(Fault::Unreplicated), failed(Fault::Unreplicated)];
        assert_eq!(barriers_run(outcomes).await, [true, false]);
    }

    /// The slot of the partition that it was for has moved there, and those of the others have not.
    #[tokio::test]
    async fn a_barrier_at_another_redis_is_that_of_no_other_partition() {
        let [here, there] = [HERE, "there"].map(|run_id| Ok(RunId::from(run_id)));
        assert_eq!(
            barriers_run([here.clone(), here.clone()]).await,
            [true, false]
        );
        assert_eq!(barriers_run([there.clone(), here]).await, [true, true]);
        assert_eq!(
            barriers_run([there.clone(), failed(Fault::Io), there]).await,
            [true, true, true],
            "the second one says nothing about where the first one was"
        );
    }
}
