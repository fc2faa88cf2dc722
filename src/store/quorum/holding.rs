//! Operations that end or suspend a claim: release, withdraw and suspend.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Core;
use super::answers::{ByNode, Effect};
use super::busy::BusyTries;
use super::late_changes::of_change;
use super::nodes::{NodeOperation, Tries};
use super::{lease, merge};
use crate::domain::{
    Attempt, Claim, Fence, HoldOptions, Lease, LockNames, Released, RenewOptions, Rollback,
    StepBack, SuspendOptions, Suspended, Token,
};
use crate::store::{Fault, StoreError, StoreResult, TOMBSTONE_TTL};

impl Core {
    pub(super) async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let at_nodes = Arc::new(self.drift.claim_at_nodes(claim));
        let operation: NodeOperation<Suspended> = Arc::new(move |node, deadline| {
            let claim = Arc::clone(&at_nodes);
            Box::pin(async move { node.suspend(&claim, options, deadline).await })
        });
        let answers = self
            .nodes
            .ask_in_turn(claim.token, Tries::Once, deadline, &operation);
        let suspended = answers.until(deadline, ByNode::has_majority).await;
        let suspended = suspended.of_majority(Effect::MayBeDone)?;
        let needed = merge::needed(self.nodes.all().len(), suspended.len());
        let positions = suspended.iter().filter_map(|suspended| suspended.position);
        let blocked: Vec<_> = suspended.iter().map(|it| &it.blocked_by[..]).collect();
        Ok(Suspended {
            position: merge::position(needed, positions),
            blocked_by: merge::conflicts(self.drift, needed, &blocked),
        })
    }

    pub(super) async fn withdraw(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<usize> {
        // The service may have to repeat it.
        self.attempts.keep(claim.token, Duration::ZERO);
        let attempts = self.attempts.all_at_nodes(claim.token, attempt);
        let tries = Tries::UntilConfirmed(claim.ttl.get());
        let at_nodes = Arc::new(self.drift.claim_at_nodes(claim));
        let operation: NodeOperation<usize> = Arc::new(move |node, deadline| {
            let (claim, attempts) = (Arc::clone(&at_nodes), attempts.clone());
            Box::pin(async move {
                let mut ended = 0;
                for attempt in attempts {
                    ended += node.withdraw(&claim, attempt, rollback, deadline).await?;
                }
                Ok(ended)
            })
        });
        let answers = self
            .nodes
            .ask_in_turn(claim.token, tries, deadline, &operation);
        let withdrawn = answers.until(deadline, ByNode::has_majority).await;
        let ended = withdrawn.of_majority(Effect::MayBeDone)?;
        // A node that had lost the lease has ended none.
        Ok(merge::reached_by(self.nodes.majority(), ended).unwrap_or_default())
    }

    pub(super) async fn release(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let mut tries = BusyTries::default();
        loop {
            let released = self.release_once(names, token, step_back, deadline).await;
            // A release is repeated at the nodes anyway.
            if step_back.is_none() || !tries.again(&released, deadline).await {
                return released;
            }
            // Nodes may have the leases with different tokens for good, and a renewal has one recorded.
            let options = RenewOptions::AS_BEFORE;
            let _ = self.renew_together(names, token, options, deadline).await;
        }
    }

    async fn release_once(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let tries = match step_back {
            // As long as the other nodes remember it: later, the claim may have the locks again. A node that is away for longer
            // keeps the lease until its TTL is over.
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                Tries::UntilConfirmed(TOMBSTONE_TTL.saturating_sub(left))
            }
            // A step back must not be carried out later than its answer.
            Some(_) => Tries::Once,
        };
        let deadline = match step_back {
            None => deadline,
            Some(_) => of_change(deadline),
        };
        let locks = names.clone();
        let operation: NodeOperation<Vec<Released>> = Arc::new(move |node, deadline| {
            let locks = locks.clone();
            Box::pin(async move { node.release(&locks, token, step_back, deadline).await })
        });
        let answers = self.nodes.ask_in_turn(token, tries, deadline, &operation);
        let is_decided = |answers: &ByNode<Vec<Released>>| {
            let (majority, answered) = (answers.majority(), answers.received().collect::<Vec<_>>());
            (0..names.len()).all(|lock| match common(majority, lock, &answered) {
                Some(Released::SteppedBack(_)) => {
                    let leases = stepped_back(&answered, lock);
                    agreed_fence(majority, &leases).is_some()
                        && lease::agree_on_terms(
                            majority,
                            leases.iter().map(|lease| [(lease, HoldOptions::default())]),
                        )
                }
                Some(_) => true,
                None => false,
            })
        };
        let released = match step_back {
            None => answers.until(deadline, is_decided).await,
            Some(_) => answers.of_all(deadline).await,
        };
        let released = released.of_majority(Effect::MayBeDone);
        let released = released.map_err(|error| match step_back {
            // It is repeated, also at nodes that have done nothing so far.
            None => StoreError::unknown(error.fault(), error.detail()),
            Some(_) => error,
        })?;
        let majority = self.nodes.majority();
        let answered: Vec<_> = released.iter().collect();
        let merged = (0..names.len()).filter_map(|lock| {
            let common =
                common(majority, lock, &answered).or_else(|| common(1, lock, &answered))?;
            if let Released::Freed { held_for, .. } = common {
                let fence = merge::agreed(majority, &freed(&answered, lock));
                return Some(Ok(Released::Freed { held_for, fence }));
            }
            if !matches!(common, Released::SteppedBack(_)) {
                return Some(Ok(common));
            }
            let leases = stepped_back(&answered, lock);
            let Some(fence) = agreed_fence(majority, &leases) else {
                // A renewal has one token recorded by a majority. Until then none may be reported.
                let detail = "nodes have the lease with different fencing tokens";
                return Some(Err(StoreError::unknown(Fault::Busy, detail)));
            };
            let merged = lease::merged(self.drift, majority, leases, fence)?;
            Some(Ok(Released::SteppedBack(merged)))
        });
        merged.collect()
    }
}

/// The outcome that at least `least` nodes report of a lock; the one that changed most if several do.
fn common(least: usize, lock: usize, answered: &[&Vec<Released>]) -> Option<Released> {
    let of_lock = || answered.iter().filter_map(|released| released.get(lock));
    let kinds: [fn(&Released) -> bool; 5] = [
        |released| matches!(released, Released::Freed { .. }),
        |released| matches!(released, Released::SteppedBack(_)),
        |released| matches!(released, Released::LeftQueue),
        |released| matches!(released, Released::Repeated),
        |released| matches!(released, Released::NotHolder(_)),
    ];
    kinds.into_iter().find_map(|is_of_kind| {
        let same = || of_lock().filter(|released| is_of_kind(released));
        if same().count() < least {
            return None;
        }
        same()
            .max_by_key(|released| match released {
                Released::Freed { held_for, .. } => (0, *held_for),
                Released::NotHolder(reason) => (merge::rank(reason), Duration::ZERO),
                Released::SteppedBack(_) | Released::LeftQueue | Released::Repeated => {
                    (0, Duration::ZERO)
                }
            })
            .cloned()
    })
}

/// The tokens of the leases that nodes have ended.
fn freed(answered: &[&Vec<Released>], lock: usize) -> Vec<Fence> {
    let of_lock = answered.iter().filter_map(|released| released.get(lock));
    let fences = of_lock.filter_map(|released| match released {
        Released::Freed { fence, .. } => *fence,
        Released::SteppedBack(_)
        | Released::LeftQueue
        | Released::Repeated
        | Released::NotHolder(_) => None,
    });
    fences.collect()
}

fn stepped_back(answered: &[&Vec<Released>], lock: usize) -> Vec<Lease> {
    let of_lock = answered.iter().filter_map(|released| released.get(lock));
    let leases = of_lock.filter_map(|released| match released {
        Released::SteppedBack(lease) => Some(lease.clone()),
        Released::Freed { .. }
        | Released::LeftQueue
        | Released::Repeated
        | Released::NotHolder(_) => None,
    });
    leases.collect()
}

/// The token that a majority of nodes has the lease with.
fn agreed_fence(majority: usize, leases: &[Lease]) -> Option<Fence> {
    let fences: Vec<_> = leases.iter().map(|lease| lease.holder.fence).collect();
    merge::agreed(majority, &fences)
}
