//! Operations on one lock rather than a claim: inspect and evict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Core;
use super::answers::{ByNode, Effect};
use super::disagreement::Dissenters;
use super::late_changes::CHANGE_WITHIN;
use super::merge;
use super::nodes::NodeOperation;
use crate::backoff::{Backoff, jittered};
use crate::domain::{ClaimDigest, Evicted, LockName, LockView};
use crate::store::assignment::MissedEviction;
use crate::store::{Deadlines, StoreResult, TOMBSTONE_TTL};

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
        let claims = may_have_held(&evicted);
        let missed = MissedEviction {
            claims: claims.keys().copied().collect(),
            at: Instant::now(),
            closed_for: closed_for(&evicted, &claims),
            reason: reason.to_owned(),
        };
        if evicted.has_majority() {
            self.follow_eviction(name, &evicted, &missed);
        }
        let majority = self.nodes.majority();
        let is_complete = is_decided(&evicted) && claims.values().all(|count| *count >= majority);
        let evicted = evicted.of_majority(Effect::MayBeDone)?;
        let needed = merge::needed(self.nodes.all().len(), evicted.len());
        let holders: Vec<_> = evicted.iter().map(|evicted| &evicted.holders).collect();
        Ok(Evicted {
            holders: merge::evicted(self.drift, needed, &holders),
            claims: missed.claims,
            closed_for: missed.closed_for,
            is_complete,
        })
    }

    /// Has the nodes that have not evicted all of these claims do so, for as long as the others refuse those. Else the next
    /// holder would have to do without such a node, for as long as that lease would have lasted.
    fn follow_eviction(&self, name: &LockName, evicted: &ByNode<Evicted>, missed: &MissedEviction) {
        if missed.claims.is_empty() {
            return;
        }
        let missed = Arc::new(missed.clone());
        let until = missed.at + TOMBSTONE_TTL;
        for (index, answer) in evicted.0.iter().enumerate() {
            let has_all = |evicted: &Evicted| {
                let of_node: BTreeSet<_> = evicted.claims.iter().collect();
                (missed.claims.iter()).all(|claim| of_node.contains(claim))
            };
            if matches!(answer, Some(Ok(evicted)) if has_all(evicted)) {
                continue;
            }
            let (lock, missed) = (name.clone(), Arc::clone(&missed));
            let operation: NodeOperation<()> = Arc::new(move |node, end| {
                let (lock, missed) = (lock.clone(), Arc::clone(&missed));
                let step = CHANGE_WITHIN;
                let deadlines = Deadlines { step, end };
                Box::pin(async move { node.evict_missed(&lock, &missed, deadlines).await })
            });
            self.nodes.follow(index, until, operation);
        }
    }
}

/// The claims that a majority may have held of those that nodes have evicted, each with how many nodes that were: as many as a
/// majority needs beside those that have not evicted all. A node that has may get such a claim by a renewal that is under
/// way, if fewer than a majority remember its end.
fn may_have_held(evicted: &ByNode<Evicted>) -> BTreeMap<ClaimDigest, usize> {
    let mut counts = BTreeMap::new();
    for claim in evicted.received().flat_map(|it| &it.claims) {
        *counts.entry(*claim).or_default() += 1;
    }
    let complete = evicted.received().filter(|it| it.is_complete).count();
    let others = evicted.0.len() - complete;
    counts.retain(|_, count| *count + others >= evicted.majority());
    counts
}

/// For how long the nodes keep the lock closed that have evicted one of these claims.
fn closed_for(evicted: &ByNode<Evicted>, claims: &BTreeMap<ClaimDigest, usize>) -> Duration {
    let had_one = |it: &&Evicted| it.claims.iter().any(|claim| claims.contains_key(claim));
    let of_nodes = evicted.received().filter(had_one);
    of_nodes.map(|it| it.closed_for).max().unwrap_or_default()
}
