//! Operations on one lock rather than a claim: inspect and evict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Core;
use super::disagreement::Dissenters;
use super::late_changes::CHANGE_WITHIN;
use super::merge;
use super::nodes::{ByNode, Effect, NodeOperation};
use crate::backoff::{Backoff, jittered};
use crate::domain::{Evicted, Holder, LockName, LockView};
use crate::store::assignment::MissedEviction;
use crate::store::{Deadlines, Fault, StoreError, StoreResult, TOMBSTONE_TTL};

/// For how long a view is taken again that leaves open who holds the lock, or with which token. It stays so if the process
/// that made a grant has ended, or if a node is silent; then the view shows what is likeliest.
const RECHECKED_FOR: Duration = Duration::from_millis(250);

/// The pauses before that.
const RECHECK_MIN: Duration = Duration::from_millis(5);
const RECHECK_MAX: Duration = Duration::from_millis(80);

/// How long a view waits for nodes without which it is decided, to tell whether they agree. One that is slower is not
/// compared: nobody waits for a slow node.
const COMPARED_MAX: Duration = Duration::from_millis(10);

impl Core {
    /// The lock, and which nodes disagree.
    pub(super) async fn inspect(
        &self,
        name: &LockName,
        deadline: Instant,
    ) -> StoreResult<LockView> {
        let mut dissenters = Dissenters::default();
        let looked = self.looked(name, COMPARED_MAX, deadline, |views| {
            dissenters.look(&self.of_majority(name, views), views.by_index())
        });
        let views = looked.await?;
        let mut view = self.of_majority(name, &views);
        for node in dissenters.certain() {
            self.disagreements.count(node);
            view.disagreeing_nodes.push(self.addresses[node].clone());
        }
        Ok(view)
    }

    /// The lock alone.
    pub(super) async fn view(&self, name: &LockName, deadline: Instant) -> StoreResult<LockView> {
        let looked = self.looked(name, Duration::ZERO, deadline, |_| false);
        Ok(self.of_majority(name, &looked.await?))
    }

    fn of_majority(&self, name: &LockName, views: &ByNode<LockView>) -> LockView {
        let answered: Vec<_> = views.received().collect();
        let needed = merge::needed(views.0.len(), answered.len());
        merge::view(self.drift, needed, name, &answered)
    }

    fn is_unclear(&self, views: &ByNode<LockView>) -> bool {
        let answered: Vec<_> = views.received().collect();
        merge::is_unclear(self.nodes.majority(), &answered)
    }

    /// The last of several looks at a lock: as many as it takes until it is clear, and `is_open` does not ask for more.
    async fn looked(
        &self,
        name: &LockName,
        rest_max: Duration,
        deadline: Instant,
        mut is_open: impl FnMut(&ByNode<LockView>) -> bool,
    ) -> StoreResult<ByNode<LockView>> {
        let first = self.viewed(name, rest_max, deadline, deadline);
        let mut views = first.await?;
        let until = deadline.min(Instant::now() + RECHECKED_FOR);
        let mut pauses = Backoff::default();
        let mut was_open = is_open(&views);
        while was_open || self.is_unclear(&views) {
            // Nodes get the token of a new lease within a round trip of its grant, and contenders roll back as fast.
            let pause = jittered(pauses.next(RECHECK_MIN, RECHECK_MAX));
            if Instant::now() + pause >= until {
                break;
            }
            sleep(pause).await;
            // What was seen before is an answer, also if fewer nodes answer now.
            let (again, had) = (self.viewed(name, rest_max, deadline, until), &views);
            match again.await {
                Ok(again)
                    if again.received().count() >= had.received().count()
                        || !self.is_unclear(&again) =>
                {
                    was_open = is_open(&again);
                    views = again;
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Ok(views)
    }

    /// The lock as the nodes show it that have answered by `until`.
    async fn viewed(
        &self,
        name: &LockName,
        rest_max: Duration,
        deadline: Instant,
        until: Instant,
    ) -> StoreResult<ByNode<LockView>> {
        let lock = name.clone();
        let operation: NodeOperation<LockView> = Arc::new(move |node, deadline| {
            let lock = lock.clone();
            Box::pin(async move { node.inspect(&lock, deadline).await })
        });
        let is_decided = |views: &ByNode<LockView>| {
            let answered: Vec<_> = views.received().collect();
            answered.len() >= views.majority() && merge::are_alike(&answered)
        };
        let answers = self.nodes.ask(deadline, &operation);
        let views = answers.until_also(rest_max, until, is_decided).await;
        match views.has_majority() {
            true => Ok(views),
            false => Err(views.no_majority(Effect::None)),
        }
    }

    pub(super) async fn evict(
        &self,
        name: &LockName,
        reason: &str,
        deadlines: Deadlines,
    ) -> StoreResult<Evicted> {
        let (lock, reason_at_nodes) = (name.clone(), reason.to_owned());
        // A step that is late would end claims that were granted after the answer.
        let deadlines = Deadlines {
            step: deadlines.step.min(CHANGE_WITHIN),
            ..deadlines
        };
        let operation: NodeOperation<Evicted> = Arc::new(move |node, _| {
            let (lock, reason) = (lock.clone(), reason_at_nodes.clone());
            Box::pin(async move { node.evict(&lock, &reason, deadlines).await })
        });
        let answers = self.nodes.ask(deadlines.end, &operation);
        let is_decided = |evicted: &ByNode<Evicted>| {
            let complete = evicted.received().filter(|evicted| evicted.is_complete);
            complete.count() >= evicted.majority()
        };
        let rest_max = deadlines.step;
        let evicted = answers
            .until_also(rest_max, deadlines.end, is_decided)
            .await;
        let majority = self.nodes.majority();
        let nodes = self.nodes.all().len();
        if evicted.has_majority() {
            self.follow_eviction(name, reason, &evicted);
        }
        let evicted = evicted.of_majority(Effect::MayBeDone)?;
        let needed = merge::needed(nodes, evicted.len());
        let holders: Vec<_> = evicted.iter().map(|evicted| &evicted.holders).collect();
        let complete = evicted.iter().filter(|evicted| evicted.is_complete);
        let may_go_on = merge::may_go_on(nodes, &holders);
        Ok(Evicted {
            holders: merge::evicted(self.drift, needed, &holders),
            is_complete: complete.count() >= majority && !may_go_on,
        })
    }

    /// Has the nodes that have not evicted all claims that a majority has evicted do so, for as long as the others refuse
    /// those. Else the next holder would have to do without such a node, for as long as that lease would have lasted.
    fn follow_eviction(&self, name: &LockName, reason: &str, evicted: &ByNode<Evicted>) {
        let claims = of_majority(evicted, |holder| holder.claim);
        if claims.is_empty() {
            return;
        }
        let fences = of_majority(evicted, |holder| holder.fence);
        let missed = Arc::new(MissedEviction {
            claims: claims.iter().copied().collect(),
            last: fences.last().copied(),
            reason: reason.to_owned(),
        });
        let until = Instant::now() + TOMBSTONE_TTL;
        for (index, answer) in evicted.0.iter().enumerate() {
            let has_evicted = |evicted: &Evicted| {
                let listed = listed(evicted, |holder| holder.claim);
                evicted.is_complete && claims.is_subset(&listed)
            };
            if matches!(answer, Some(Ok(evicted)) if has_evicted(evicted)) {
                continue;
            }
            let (lock, missed) = (name.clone(), Arc::clone(&missed));
            let operation: NodeOperation<()> = Arc::new(move |node, end| {
                let (lock, missed) = (lock.clone(), Arc::clone(&missed));
                let step = CHANGE_WITHIN;
                let deadlines = Deadlines { step, end };
                Box::pin(async move {
                    let evicting = node.evict_missed(&lock, &missed, deadlines);
                    match evicting.await?.is_complete {
                        true => Ok(()),
                        false => Err(StoreError::unavailable(
                            Fault::Busy,
                            "it has too many holders",
                        )),
                    }
                })
            });
            self.nodes.follow(index, until, operation);
        }
    }
}

/// Something of each holder that a node lists as evicted.
fn listed<T: Ord>(evicted: &Evicted, part: impl Fn(&Holder) -> T) -> BTreeSet<T> {
    evicted.holders.listed.iter().map(part).collect()
}

/// The same of the holders that a majority lists.
fn of_majority<T: Ord>(
    evicted: &ByNode<Evicted>,
    part: impl Fn(&Holder) -> T + Copy,
) -> BTreeSet<T> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    for one in evicted.received().flat_map(|it| listed(it, part)) {
        *counts.entry(one).or_default() += 1;
    }
    counts.retain(|_, count| *count >= evicted.majority());
    counts.into_keys().collect()
}
