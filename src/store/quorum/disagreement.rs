//! Which nodes show another state of a lock than the majority, for more than a moment. What a change that is under way
//! makes of their views is no disagreement: nodes learn of it within a few round trips, or when what was in the way there
//! has been rolled back. How often a lock is looked at is decided in `reading`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{ClaimDigest, Fence, HoldCount, LockState, LockView, Mode};

/// For how long a node shows the same other state before it disagrees.
const UNDER_WAY_MAX: Duration = Duration::from_millis(100);

/// How often each node has disagreed.
#[derive(Debug)]
pub(super) struct Disagreements(Vec<AtomicU64>);

impl Disagreements {
    pub(super) fn of_nodes(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn count(&self, node: usize) {
        self.0[node].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|count| count.load(Ordering::Relaxed))
    }
}

/// The nodes that have shown another state than the majority in every look at a lock, always the same one.
#[derive(Debug, Default)]
pub(super) struct Dissenters(Option<Vec<Dissenter>>);

#[derive(Debug, PartialEq)]
struct Dissenter {
    node: usize,
    shows: ShownState,
    /// What the majority shows.
    against: ShownState,
    since: Instant,
}

impl Dissenters {
    /// Compares what nodes show with what a majority does. Returns whether another look may tell more.
    pub(super) fn look<'a>(
        &mut self,
        merged: &LockView,
        views: impl Iterator<Item = (usize, &'a LockView)>,
    ) -> bool {
        let (since, against) = (Instant::now(), ShownState::by(merged));
        let views = views.map(|(node, view)| (node, ShownState::by(view)));
        let differing = views.filter(|(_, shows)| *shows != against);
        let mut differing: Vec<_> = differing
            .map(|(node, shows)| Dissenter {
                node,
                shows,
                against: against.clone(),
                since,
            })
            .collect();
        if let Some(before) = &self.0 {
            differing.retain_mut(|now| {
                let mut before = before.iter();
                let same = before.find(|it| {
                    (it.node, &it.shows, &it.against) == (now.node, &now.shows, &now.against)
                });
                now.since = same.map_or(now.since, |same| same.since);
                same.is_some()
            });
        }
        let is_open = differing.iter().any(|it| !it.is_certain());
        self.0 = Some(differing);
        is_open
    }

    /// The nodes that disagree.
    pub(super) fn certain(&self) -> impl Iterator<Item = usize> {
        let dissenters = self.0.iter().flatten();
        dissenters.filter(|it| it.is_certain()).map(|it| it.node)
    }
}

impl Dissenter {
    fn is_certain(&self) -> bool {
        self.since.elapsed() >= UNDER_WAY_MAX
    }
}

/// What a view shows that does not depend on the clock of a node.
#[derive(Clone, Debug, PartialEq)]
enum ShownState {
    Free { queue_length: u64 },
    Cooling { queue_length: u64 },
    Held { by: ShownLeases, queue_length: u64 },
}

/// The leases of a lock; only how many there are if a view has no room for all, because nodes choose which ones to list by
/// their clocks.
#[derive(Clone, Debug, PartialEq)]
enum ShownLeases {
    All(Vec<(ClaimDigest, Fence, HoldCount, bool)>),
    Many(u64),
}

impl ShownState {
    fn by(view: &LockView) -> Self {
        let queue_length = view.queue.length;
        match &view.state {
            LockState::Free => Self::Free { queue_length },
            LockState::Cooling { .. } => Self::Cooling { queue_length },
            LockState::Held(holders) => {
                let listed = holders.listed.iter();
                let mut leases: Vec<_> = listed
                    .map(|it| {
                        (
                            it.claim,
                            it.fence,
                            it.hold_count,
                            it.mode == Mode::Exclusive,
                        )
                    })
                    .collect();
                leases.sort_unstable();
                let by = match holders.total == leases.len() as u64 {
                    true => ShownLeases::All(leases),
                    false => ShownLeases::Many(holders.total),
                };
                Self::Held { by, queue_length }
            }
        }
    }
}
