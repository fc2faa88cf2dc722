//! Another program on the same Redis, whose scripts let everybody wait.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::domain::{Granted, LockName};
use leasehold::service::AcquireOutcome;
use leasehold::store::{Fault, StoreError};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Replica, forgetful_redis, lasting};
use crate::support::eventually;
use crate::support::fixture::{claim_on, fresh_name, only};
use crate::support::neighbour::{BUSY, PAUSE};

/// How many scripts the neighbour runs.
const SCRIPTS: usize = 4;

/// How long a claim waits.
const WAIT: Duration = Duration::from_secs(1);

/// What the holders of a lock see.
struct Seen {
    name: LockName,
    holders: AtomicUsize,
    last_fence: AtomicU64,
    grants: AtomicUsize,
}

impl Seen {
    fn new() -> Self {
        Self {
            name: fresh_name(),
            holders: AtomicUsize::new(0),
            last_fence: AtomicU64::new(0),
            grants: AtomicUsize::new(0),
        }
    }

    /// Holds the lock again and again, and waits for it.
    async fn contend(&self, replica: &Replica, over: &CancellationToken) {
        while !over.is_cancelled() {
            let claim = lasting(claim_on(&self.name));
            let fence = match replica.acquire_within(&claim, WAIT).await {
                Ok(AcquireOutcome::Granted(Granted { leases, .. })) => only(leases).holder.fence,
                Ok(AcquireOutcome::Refused(_)) => continue,
                answer => {
                    is_passing(&answer);
                    continue;
                }
            };
            assert_eq!(self.holders.fetch_add(1, Ordering::SeqCst), 0, "two hold");
            let last = self.last_fence.swap(fence.get(), Ordering::SeqCst);
            assert!(last < fence.get(), "{fence} after {last}");
            self.grants.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(2)).await;
            self.holders.fetch_sub(1, Ordering::SeqCst);
            eventually("it is released", async || {
                let answer = replica.release(&claim).await;
                is_passing(&answer);
                answer.ok()
            })
            .await;
        }
    }
}

/// Asserts that a failure, if it is one, is one that passes: it becomes a 503, never a 500.
#[track_caller]
fn is_passing<T: std::fmt::Debug>(answer: &Result<T, StoreError>) {
    if let Err(error) = answer {
        assert!(
            matches!(error.fault(), Fault::Busy | Fault::Timeout),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_neighbour_whose_scripts_keep_redis_busy_costs_only_time() {
    let server = forgetful_redis().await;
    let replicas = [
        Replica::open(&server.database(0)).await,
        Replica::open(&server.database(0)).await,
    ];
    let steps = server.steps_in(BUSY).await;
    server.answers_busy_after(20).await;
    let (over, locks) = (CancellationToken::new(), [Seen::new(), Seen::new()]);
    let contending = (0..8).map(|number| locks[number / 4].contend(&replicas[number % 2], &over));
    let neighbour = async {
        for _ in 0..SCRIPTS {
            server.spin(steps).await;
            sleep(PAUSE).await;
        }
        over.cancel();
    };
    tokio::join!(join_all(contending), neighbour);
    let busy = server.busy_answers().await;
    let grants = locks.map(|seen| seen.grants.load(Ordering::SeqCst));
    println!("{busy} answers were BUSY, and {grants:?} claims were granted");
    assert!(busy > 0, "no script was noticed");
    assert!(grants.iter().all(|grants| *grants > 0), "{grants:?}");
}
