//! What a node still has to do after a majority has answered without it: to confirm the end of a lease, or to get a lease
//! that it lacks. There are limits, because a node that is silent would collect such work as fast as requests arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
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
#[derive(Clone, Debug, Default)]
pub(super) struct FollowUps(Arc<FollowUpCounts>);

#[derive(Debug, Default)]
struct FollowUpCounts {
    running: AtomicUsize,
    late_leases: AtomicUsize,
    dropped: AtomicU64,
}

/// One operation that follows.
#[derive(Debug)]
pub(super) struct FollowUpPermit {
    counts: Arc<FollowUpCounts>,
    of: fn(&FollowUpCounts) -> &AtomicUsize,
}

impl FollowUps {
    /// Room for one more. If there is none, the node stays without that operation: what it keeps ends with its TTL, and
    /// what it lacks it gets by a renewal.
    pub(super) fn begin(&self) -> Option<FollowUpPermit> {
        self.permit(|counts| &counts.running, FOLLOW_UPS_MAX)
    }

    /// Room for one more lease that waits until the node is ready for it. If there is none, the node gets it by a renewal.
    pub(super) fn begin_late_lease(&self) -> Option<FollowUpPermit> {
        self.permit(|counts| &counts.late_leases, LATE_LEASES_MAX)
    }

    fn permit(
        &self,
        of: fn(&FollowUpCounts) -> &AtomicUsize,
        max: usize,
    ) -> Option<FollowUpPermit> {
        // Held from here on, so that it is counted down in either case.
        let counts = Arc::clone(&self.0);
        let permit = FollowUpPermit { counts, of };
        if of(&self.0).fetch_add(1, Ordering::Relaxed) < max {
            return Some(permit);
        }
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// How many are left, without leases that wait: the node has nothing to end for those.
    pub(super) fn left(&self) -> usize {
        self.0.running.load(Ordering::Relaxed)
    }

    /// How many had no room.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for FollowUpPermit {
    fn drop(&mut self) {
        (self.of)(&self.counts).fetch_sub(1, Ordering::Relaxed);
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
        let follow_ups = FollowUps::default();
        let running: Vec<_> = (0..FOLLOW_UPS_MAX).map(|_| follow_ups.begin()).collect();
        assert!(running.iter().all(Option::is_some));
        assert!(follow_ups.begin().is_none());
        assert_eq!(follow_ups.dropped(), 1);
        drop(running);
        assert!(follow_ups.begin().is_some());
    }

    #[test]
    fn leases_that_wait_take_the_room_of_nothing_else() {
        let follow_ups = FollowUps::default();
        let late: Vec<_> = (0..LATE_LEASES_MAX)
            .map(|_| follow_ups.begin_late_lease())
            .collect();
        assert!(late.iter().all(Option::is_some));
        assert!(follow_ups.begin_late_lease().is_none());
        assert_eq!((follow_ups.dropped(), follow_ups.left()), (1, 0));
        assert!(follow_ups.begin().is_some());
    }
}
