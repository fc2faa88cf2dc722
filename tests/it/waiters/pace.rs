//! Measurements of hand-overs: their order, and how long each took.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// One client's time with the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The number of the client, in the order of arrival.
    pub(super) number: usize,
    /// Its fencing token.
    pub(super) fence: u64,
    /// When the grant arrived.
    pub(super) granted: Instant,
    /// When the release was sent for the first time.
    pub(super) ends: Instant,
    /// When the response to the release arrived.
    pub(super) released: Instant,
}

/// All turns with a lock, in the order in which they were granted.
#[derive(Debug)]
pub(super) struct Turns(Vec<Turn>);

impl Turns {
    pub(super) fn new(mut turns: Vec<Turn>) -> Self {
        turns.sort_by_key(|turn| turn.fence);
        Self(turns)
    }

    /// The number of grants before an earlier claim.
    pub(super) fn inversions(&self) -> usize {
        let pairs = self.0.windows(2);
        pairs.filter(|pair| pair[0].number > pair[1].number).count()
    }

    /// Fails if a grant was reported before the release of the grant before it was sent.
    pub(super) fn assert_apart(&self) {
        for pair in self.0.windows(2) {
            assert_ne!(pair[0].fence, pair[1].fence, "one fencing token twice");
            assert!(pair[0].ends <= pair[1].granted, "two at once: {pair:?}");
        }
    }

    /// How long each hand-over took, from the response to a release to the response with the next grant.
    pub(super) fn hand_overs(&self) -> Spread {
        let pairs = self.0.windows(2);
        pairs
            .map(|pair| pair[1].granted.saturating_duration_since(pair[0].released))
            .collect()
    }
}

/// Sorted durations.
#[derive(Debug)]
pub(super) struct Spread(Vec<Duration>);

impl Spread {
    /// The quantile for this share in thousandths.
    pub(super) fn at(&self, per_mille: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0
            .get(last * per_mille / 1000)
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn max(&self) -> Duration {
        self.at(1000)
    }

    /// The total excess over the usual duration. Less than twice as long counts as usual.
    pub(super) fn lost(&self) -> Duration {
        let usual = self.at(500);
        let slow = self.0.iter().filter(|duration| **duration > usual * 2);
        slow.map(|duration| *duration - usual).sum()
    }
}

impl FromIterator<Duration> for Spread {
    fn from_iter<I: IntoIterator<Item = Duration>>(durations: I) -> Self {
        let mut durations: Vec<_> = durations.into_iter().collect();
        durations.sort();
        Self(durations)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = [500, 990, 1000].map(|per_mille| self.at(per_mille));
        write!(f, "p50 {p50:.1?}, p99 {p99:.1?}, max {max:.1?}")
    }
}
