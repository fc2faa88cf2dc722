//! What a node still has to do after a majority has answered without it: to confirm the end of a lease, or to get a lease
//! that it lacks. There are limits, because a node that is silent would collect such work as fast as requests arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use super::nodes::answered_by;
use crate::backoff::{Backoff, jittered};
use crate::store::StoreResult;

/// The most operations that one node may have left to follow.
const FOLLOW_UPS_MAX: usize = 4_096;

/// The most leases that wait until one node is ready for them. They wait for seconds, and must not take the room of ends.
const LATE_LEASES_MAX: usize = 1_024;

/// The pauses between the tries of a clean-up that a node has not confirmed.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How long one try of a clean-up may take.
const TRY_MAX: Duration = Duration::from_secs(2);

/// The follow-ups at one node.
#[derive(Clone, Debug)]
pub(super) struct FollowUps {
    room: Arc<Semaphore>,
    late_leases: Arc<Semaphore>,
    dropped: Arc<AtomicU64>,
}

impl FollowUps {
    pub(super) fn new() -> Self {
        Self {
            room: Arc::new(Semaphore::new(FOLLOW_UPS_MAX)),
            late_leases: Arc::new(Semaphore::new(LATE_LEASES_MAX)),
            dropped: Arc::default(),
        }
    }

    /// Room for one more. If there is none, the node stays without that operation: what it keeps ends with its TTL, and
    /// what it lacks it gets by a renewal.
    pub(super) fn begin(&self) -> Option<OwnedSemaphorePermit> {
        self.begin_in(&self.room)
    }

    /// Room for one more lease that waits until the node is ready for it. If there is none, the node gets it by a renewal.
    pub(super) fn begin_late_lease(&self) -> Option<OwnedSemaphorePermit> {
        self.begin_in(&self.late_leases)
    }

    fn begin_in(&self, room: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(room).try_acquire_owned().ok();
        if permit.is_none() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        permit
    }

    /// How many are left, without leases that wait: the node has nothing to end for those.
    pub(super) fn left(&self) -> usize {
        FOLLOW_UPS_MAX - self.room.available_permits()
    }

    /// How many had no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Repeats a clean-up until the node has confirmed it, or there is nothing left to clean up.
pub(super) async fn confirm<T>(
    until: Instant,
    mut clean_up: impl FnMut(Instant) -> BoxFuture<'static, StoreResult<T>>,
) {
    let mut pauses = Backoff::default();
    while Instant::now() < until {
        let try_until = until.min(Instant::now() + TRY_MAX);
        if answered_by(try_until, clean_up(try_until)).await.is_ok() {
            return;
        }
        sleep(jittered(pauses.next(RETRY_MIN, RETRY_MAX))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted_and_room_comes_back() {
        let follow_ups = FollowUps::new();
        let running: Vec<_> = (0..FOLLOW_UPS_MAX).map(|_| follow_ups.begin()).collect();
        assert!(running.iter().all(Option::is_some));
        assert!(follow_ups.begin().is_none());
        assert_eq!(
            (follow_ups.dropped(), follow_ups.left()),
            (1, FOLLOW_UPS_MAX)
        );
        drop(running);
        assert!(follow_ups.begin().is_some());
    }

    #[test]
    fn leases_that_wait_take_the_room_of_nothing_else() {
        let follow_ups = FollowUps::new();
        let late: Vec<_> = (0..LATE_LEASES_MAX)
            .map(|_| follow_ups.begin_late_lease())
            .collect();
        assert!(late.iter().all(Option::is_some));
        assert!(follow_ups.begin_late_lease().is_none());
        assert_eq!((follow_ups.dropped(), follow_ups.left()), (1, 0));
        assert!(follow_ups.begin().is_some());
    }
}
