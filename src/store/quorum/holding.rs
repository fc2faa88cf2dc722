//! Operations on one claim after its grant, or while it waits: suspend, withdraw, renew and release.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Core;
use super::drift::Drift;
use super::merge;
use super::nodes::{ByNode, Effect, Operation, Tries, answered_by};
use crate::domain::{
    Acquired, Attempt, Claim, Fence, HoldCount, LockNames, NotHeld, NotHolder, Released,
    RenewOptions, Renewal, Renewed, Rollback, SuspendOptions, Suspended, Token,
};
use crate::store::StoreResult;
use crate::store::assignment::FenceChange;

/// For how long a release is repeated at a node that does not confirm it. Later, most leases have ended by themselves.
const RELEASE_TRIES: Duration = Duration::from_secs(60);

/// How long a node may take to be brought to what a majority has.
const RESTORE_MAX: Duration = Duration::from_secs(2);

impl Core {
    pub(super) async fn suspend(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let at_nodes = Arc::new(self.drift.claim_at_nodes(claim));
        let operation: Operation<Suspended> = Arc::new(move |node, deadline| {
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
    ) -> StoreResult<()> {
        let attempts = self.attempts.all_at_nodes(claim.token, attempt);
        let tries = Tries::UntilConfirmed(claim.ttl.get());
        let at_nodes = Arc::new(self.drift.claim_at_nodes(claim));
        let operation: Operation<()> = Arc::new(move |node, deadline| {
            let (claim, attempts) = (Arc::clone(&at_nodes), attempts.clone());
            Box::pin(async move {
                for attempt in attempts {
                    node.withdraw(&claim, attempt, rollback, deadline).await?;
                }
                Ok(())
            })
        });
        let answers = self
            .nodes
            .ask_in_turn(claim.token, tries, deadline, &operation);
        let withdrawn = answers.until(deadline, ByNode::has_majority).await;
        withdrawn.of_majority(Effect::MayBeDone)?;
        Ok(())
    }

    pub(super) async fn release(
        &self,
        names: &LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let tries = match hold_count {
            None => Tries::UntilConfirmed(RELEASE_TRIES),
            // A step back must not be carried out later than its answer.
            Some(_) => Tries::Once,
        };
        let locks = names.clone();
        let operation: Operation<Vec<Released>> = Arc::new(move |node, deadline| {
            let locks = locks.clone();
            Box::pin(async move { node.release(&locks, token, hold_count, deadline).await })
        });
        let answers = self.nodes.ask_in_turn(token, tries, deadline, &operation);
        let is_decided = |answers: &ByNode<Vec<Released>>| {
            let answered: Vec<_> = answers.answered().collect();
            (0..names.len()).all(|lock| common(answers.majority(), lock, &answered).is_some())
        };
        let released = answers.until(deadline, is_decided).await;
        let released = released.of_majority(Effect::MayBeDone)?;
        let majority = self.nodes.majority();
        let answered: Vec<_> = released.iter().collect();
        let merged = (0..names.len()).filter_map(|lock| {
            let common =
                common(majority, lock, &answered).or_else(|| common(1, lock, &answered))?;
            Some(match common.clone() {
                Released::SteppedBack(lease) => {
                    let fence = agreed(&answered, lock).unwrap_or(lease.holder.fence);
                    let leases = stepped_back(&answered, lock);
                    merge::lease(self.drift, majority, leases, fence)
                        .map_or(common.clone(), Released::SteppedBack)
                }
                other => other,
            })
        });
        Ok(merged.collect())
    }

    pub(super) async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        self.attempts.keep(token);
        let at_nodes = RenewOptions {
            ttl: change.ttl.map(|ttl| self.drift.kept_at_nodes(ttl)),
            ..change
        };
        let locks = names.clone();
        let operation: Operation<Renewed> = Arc::new(move |node, deadline| {
            let locks = locks.clone();
            Box::pin(async move { node.renew(&locks, token, at_nodes, deadline).await })
        });
        let begun = Instant::now();
        let answers = self
            .nodes
            .ask_in_turn(token, Tries::Once, deadline, &operation);
        let votes = answers.until(deadline, is_renewal_decided).await;
        let extended: Vec<_> = votes.answered().filter_map(extended).collect();
        if extended.len() < self.nodes.majority() {
            return refusal(votes);
        }
        let renewals = renewals(
            self.drift,
            self.nodes.majority(),
            &extended,
            change.ttl.is_some(),
        );
        let is_over = |renewal: &Renewal| renewal.lease.holder.expires_in <= begun.elapsed();
        if renewals.iter().any(is_over) {
            let detail = "the leases were extended too late";
            let fault = crate::store::Fault::Timeout;
            return Err(crate::store::StoreError::unknown(fault, detail));
        }
        self.restore(names, token, &renewals, &votes);
        Ok(Renewed::Extended(renewals))
    }

    /// Puts the leases back at nodes that have lost them, and the decided tokens at nodes that have others. Otherwise a
    /// lease that is renewed for long would lose one node after the other.
    fn restore(
        &self,
        names: &LockNames,
        token: Token,
        renewals: &[Renewal],
        votes: &ByNode<Renewed>,
    ) {
        let decided: Arc<[Fence]> = renewals.iter().map(|it| it.lease.holder.fence).collect();
        let is_behind = |vote: &Option<StoreResult<Renewed>>| match vote {
            Some(Ok(Renewed::Extended(renewed))) => {
                let mut pairs = renewed.iter().zip(decided.iter());
                pairs.any(|(renewal, decided)| renewal.lease.holder.fence != *decided)
            }
            Some(Ok(Renewed::NotHolder(_))) => true,
            Some(Ok(Renewed::Mismatched(_)) | Err(_)) | None => false,
        };
        let Some(first) = renewals.first().map(|renewal| &renewal.lease) else {
            return;
        };
        let claim = Arc::new(self.drift.claim_at_nodes(&Claim {
            mode: first.holder.mode,
            // The claim has its locks, whoever waits for them there.
            fair: false,
            hold_count: first.holder.hold_count,
            owner: first.holder.owner.clone(),
            metadata: first.holder.metadata.clone(),
            ..Claim::plain(names.clone(), token, first.ttl)
        }));
        for (node, mut turn) in
            votes.0.iter().enumerate().filter_map(|(index, vote)| {
                is_behind(vote).then(|| self.nodes.turn_at(index, token))
            })
        {
            let (claim, decided) = (Arc::clone(&claim), Arc::clone(&decided));
            tokio::spawn(async move {
                turn.begins().await;
                let deadline = Instant::now() + RESTORE_MAX;
                let restored = async {
                    let attempt = Attempt::random();
                    let acquired = node.acquire(&claim, attempt, None, deadline).await?;
                    let Acquired::Granted(granted) = acquired else {
                        return Ok(());
                    };
                    let pairs = granted.leases.iter().zip(decided.iter());
                    let changes: Vec<_> = pairs
                        .map(|(lease, decided)| FenceChange {
                            proposed: lease.holder.fence,
                            decided: *decided,
                        })
                        .collect();
                    node.assign_fences(&claim, &changes, deadline).await?;
                    Ok(())
                };
                // The next renewal tries again.
                let _ = answered_by(deadline, restored).await;
            });
        }
    }
}

fn extended(renewed: &Renewed) -> Option<&Vec<Renewal>> {
    match renewed {
        Renewed::Extended(renewals) => Some(renewals),
        Renewed::NotHolder(_) | Renewed::Mismatched(_) => None,
    }
}

fn is_renewal_decided(votes: &ByNode<Renewed>) -> bool {
    let extended = votes.answered().filter_map(extended).count();
    let refused = votes.answered().count() - extended;
    extended.max(refused) >= votes.majority()
}

/// The answer to a renewal that no majority has carried out.
fn refusal(votes: ByNode<Renewed>) -> StoreResult<Renewed> {
    let majority = votes.majority();
    let refused = votes.answered().filter(|vote| extended(vote).is_none());
    let refused: Vec<_> = refused.cloned().collect();
    if refused.len() < majority && votes.answered().count() < votes.0.len() {
        return Err(votes.no_majority(Effect::MayBeDone));
    }
    let mismatched = refused
        .iter()
        .find(|vote| matches!(vote, Renewed::Mismatched(_)));
    if let Some(mismatched) = mismatched {
        return Ok(mismatched.clone());
    }
    let reasons = refused.iter().filter_map(|vote| match vote {
        Renewed::NotHolder(not_held) => Some(&not_held[..]),
        Renewed::Extended(_) | Renewed::Mismatched(_) => None,
    });
    Ok(Renewed::NotHolder(not_held(&reasons.collect::<Vec<_>>())))
}

/// For each lock that is not held, the reason that says most: a node that never had the lease knows none.
fn not_held(reports: &[&[NotHeld]]) -> Vec<NotHeld> {
    let mut merged: Vec<NotHeld> = Vec::new();
    for not_held in reports.iter().copied().flatten() {
        match merged.iter_mut().find(|known| known.name == not_held.name) {
            Some(known) if rank(&known.reason) < rank(&not_held.reason) => {
                known.reason = not_held.reason.clone();
            }
            Some(_) => {}
            None => merged.push(not_held.clone()),
        }
    }
    merged.sort_by(|a, b| a.name.cmp(&b.name));
    merged
}

fn rank(reason: &NotHolder) -> u8 {
    match reason {
        NotHolder::Unknown => 0,
        NotHolder::Expired => 1,
        NotHolder::Lost => 2,
        NotHolder::Released => 3,
        NotHolder::Evicted { .. } => 4,
    }
}

/// The renewals that a majority has carried out, as the holder is told of them.
fn renewals(
    drift: Drift,
    majority: usize,
    extended: &[&Vec<Renewal>],
    has_new_ttl: bool,
) -> Vec<Renewal> {
    let locks = extended.iter().map(|renewals| renewals.len()).min();
    let merged = (0..locks.unwrap_or_default()).filter_map(|lock| {
        let of_lock = || extended.iter().map(|renewals| &renewals[lock]);
        let fences: Vec<_> = of_lock().map(|it| it.lease.holder.fence).collect();
        let fence = most_common(&fences)?;
        let leases = of_lock().map(|renewal| renewal.lease.clone());
        let lease = merge::lease(drift, majority, leases.collect(), fence)?;
        let before = merge::reached_by(majority, of_lock().map(|it| it.remaining_before))?;
        let remaining_before = match has_new_ttl {
            true => drift.without(before),
            false => before.saturating_sub(drift.of(lease.ttl.get())),
        };
        Some(Renewal {
            lease,
            remaining_before,
        })
    });
    merged.collect()
}

/// The token that most nodes have, and of several the largest.
fn most_common(fences: &[Fence]) -> Option<Fence> {
    let count = |fence: &Fence| fences.iter().filter(|other| *other == fence).count();
    fences
        .iter()
        .copied()
        .max_by_key(|fence| (count(fence), *fence))
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
                Released::Freed { held_for } => (0, *held_for),
                Released::NotHolder(reason) => (rank(reason), Duration::ZERO),
                Released::SteppedBack(_) | Released::LeftQueue | Released::Repeated => {
                    (0, Duration::ZERO)
                }
            })
            .cloned()
    })
}

fn stepped_back(answered: &[&Vec<Released>], lock: usize) -> Vec<crate::domain::Lease> {
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

fn agreed(answered: &[&Vec<Released>], lock: usize) -> Option<Fence> {
    let leases = stepped_back(answered, lock);
    let fences: Vec<_> = leases.iter().map(|lease| lease.holder.fence).collect();
    most_common(&fences)
}
