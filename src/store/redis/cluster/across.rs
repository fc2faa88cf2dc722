//! Operations on locks of several partitions of a cluster. A script works on one partition, so each operation has several.
//!
//! A claim first asks in every partition whether it could be granted, and is queued there with one sequence number, by
//! which all queues agree on who is first. Only when nothing is in its way anywhere is it granted the locks, partition by
//! partition in one order; if another claim was faster somewhere, what it was granted is undone before anybody is told.
//!
//! If the process is killed between two of these grants, the first ones last until their TTL is over. A short TTL for them,
//! which a last step extends, would be one round trip more for each partition of every such claim, and would leave the same
//! gap, only shorter.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::answers::{later, listed, name_of};
use super::partial_claim::{PartialClaim, PlacesBefore, ask, enqueue, grant, leave, undo};
use crate::domain::{
    Acquired, Attempt, Claim, ClaimDigest, LockName, LockNames, Mismatch, QueueRequest, Refused,
    Released, RenewOptions, Renewed, Rollback, StepBack, SuspendOptions, Suspended, Token,
};
use crate::store::redis::RedisStore;
use crate::store::redis::encode::{Purpose, digests};
use crate::store::redis::node::Node;
use crate::store::{Fault, StoreError, StoreResult};

impl RedisStore {
    /// [`LockStore::acquire`](crate::store::LockStore::acquire). Also returns whether an earlier try may still arrive in some
    /// partition, whatever came of it in the others.
    pub(in crate::store::redis) async fn acquire_across(
        &self,
        claim: &Claim,
        attempt: Attempt,
        queue_request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<(Acquired, bool)> {
        let parts = self.parts(claim);
        let acquiring = acquire_parts(&parts, claim, attempt, queue_request.copied(), deadline);
        let acquired = acquiring.await;
        let may_arrive = parts.iter().any(PartialClaim::may_arrive);
        match acquired {
            Err(error) if may_arrive => Err(StoreError::unknown(error.fault(), error.detail())),
            acquired => Ok((acquired?, may_arrive)),
        }
    }

    /// [`LockStore::suspend`](crate::store::LockStore::suspend).
    pub(in crate::store::redis) async fn suspend_across(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let mut parts = self.parts(claim);
        // Of several queues with the same position, that of the first lock counts.
        parts.sort_by(|one, other| one.claim.names.first().cmp(&other.claim.names.first()));
        let suspending = parts
            .iter()
            .map(|it| it.node.suspend(&it.claim, options, deadline));
        let mut all = Suspended {
            position: None,
            blocked_by: Vec::new(),
        };
        for suspended in join_all(suspending).await {
            let suspended = suspended?;
            all.position = later(all.position, suspended.position);
            all.blocked_by.extend(suspended.blocked_by);
        }
        all.blocked_by = listed(claim, all.blocked_by);
        Ok(all)
    }

    /// [`LockStore::withdraw`](crate::store::LockStore::withdraw).
    pub(in crate::store::redis) async fn withdraw_across(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<usize> {
        let parts = self.parts(claim);
        let withdrawing = parts
            .iter()
            .map(|it| it.node.withdraw(&it.claim, attempt, rollback, deadline));
        Ok(all_done(join_all(withdrawing).await)?.into_iter().sum())
    }

    /// [`LockStore::renew`](crate::store::LockStore::renew).
    pub(in crate::store::redis) async fn renew_across(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let parts = self.parts_of(names);
        // None is renewed unless all can be.
        let mut lost = Vec::new();
        for purpose in [Purpose::Ask, Purpose::Grant] {
            let renewing = parts
                .iter()
                .map(|(node, names)| node.renew(names, token, change, purpose, deadline));
            let (mut renewals, mut mismatches) = (Vec::new(), Vec::new());
            for ((_, names), renewed) in parts.iter().zip(join_all(renewing).await) {
                match renewed {
                    Ok(Renewed::Extended(extended)) => {
                        renewals.extend(names.iter().cloned().zip(extended))
                    }
                    Ok(Renewed::NotHolder(not_held)) => lost.extend(not_held),
                    Ok(Renewed::Mismatched(mismatch)) => mismatches.push(mismatch),
                    Err(error) if purpose == Purpose::Grant => {
                        return Err(StoreError::unknown(error.fault(), error.detail()));
                    }
                    Err(error) => return Err(error),
                }
            }
            mismatches.sort_by(|one, other| name_of(one).cmp(name_of(other)));
            if let (true, Some(first)) = (lost.is_empty(), mismatches.into_iter().next()) {
                return Ok(Renewed::Mismatched(first));
            }
            if !lost.is_empty() {
                lost.sort_by(|one, other| one.name.cmp(&other.name));
                return Ok(Renewed::NotHolder(lost));
            }
            if purpose == Purpose::Grant {
                renewals.sort_by(|(one, _), (other, _)| one.cmp(other));
                return Ok(Renewed::Extended(
                    renewals.into_iter().map(|it| it.1).collect(),
                ));
            }
        }
        Err(StoreError::unavailable(
            Fault::Corrupt,
            "nothing was renewed",
        ))
    }

    /// [`LockStore::release`](crate::store::LockStore::release).
    pub(in crate::store::redis) async fn release_across(
        &self,
        names: &LockNames,
        token: Token,
        step_back: Option<StepBack>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let parts = self.parts_of(names);
        let releasing = parts
            .iter()
            .map(|(node, names)| node.release(names, token, step_back, deadline));
        let (mut all, mut failed) = (Vec::new(), None);
        for ((_, names), released) in parts.iter().zip(join_all(releasing).await) {
            match released {
                Ok(released) => all.extend(names.iter().cloned().zip(released)),
                Err(error) if !matches!(failed, Some(StoreError::Unknown { .. })) => {
                    failed = Some(error);
                }
                Err(_) => {}
            }
        }
        if let Some(error) = failed {
            return Err(match all.is_empty() {
                true => error,
                false => StoreError::unknown(error.fault(), error.detail()),
            });
        }
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(all.into_iter().map(|it| it.1).collect())
    }

    /// The partitions of some locks, in the order in which every claim is granted its locks, so that of several claims
    /// on the same ones the first to be granted some is granted all.
    fn parts_of(&self, names: &LockNames) -> Vec<(&Node, LockNames)> {
        let mut parts: Vec<Vec<LockName>> = vec![Vec::new(); self.nodes.len()];
        for name in names.iter() {
            parts[self.number_for(name)].push(name.clone());
        }
        let parts = self.nodes.iter().zip(parts);
        let some = parts.filter_map(|(node, names)| Some((node, LockNames::several(names).ok()?)));
        some.collect()
    }

    fn parts(&self, claim: &Claim) -> Vec<PartialClaim<'_>> {
        let parts = self.parts_of(&claim.names).into_iter();
        let of_all = identify_locks(claim);
        let part = |(node, names)| {
            let claim = Claim {
                names,
                ..claim.clone()
            };
            PartialClaim::new(node, claim, of_all)
        };
        parts.map(part).collect()
    }
}

/// Asks all partitions, and grants the claim its locks if none objects. Else it waits, or learns what is in the way.
async fn acquire_parts(
    parts: &[PartialClaim<'_>],
    claim: &Claim,
    attempt: Attempt,
    mut request: Option<QueueRequest>,
    deadline: Instant,
) -> StoreResult<Acquired> {
    let is_resumed = request.is_some_and(|it| it.ticket.is_some());
    let mut answers = if is_resumed {
        enqueue(
            parts,
            attempt,
            &mut request,
            PlacesBefore::Former(0),
            deadline,
        )
        .await?
    } else {
        ask(parts, attempt, request.is_some(), deadline).await?
    };
    let mut places = match answers.has_place_in() {
        Some(number) => PlacesBefore::Former(number),
        None if is_resumed => PlacesBefore::Former(0),
        None => PlacesBefore::None,
    };
    let mut end = answers.end(claim, request.is_some());
    if end.is_none() && answers.is_blocked && request.is_some() && !is_resumed {
        answers = enqueue(parts, attempt, &mut request, places, deadline).await?;
        end = answers.end(claim, true);
        places = places.max(PlacesBefore::New);
    }
    if let Some(end) = end {
        // Like the script, which does so where all locks are in one partition.
        let ends_wait = matches!(
            end,
            Acquired::Refused(Refused::Ended(_) | Refused::Mismatched(Mismatch::Limit { .. }))
        );
        let has_place = ends_wait && answers.has_place_in().is_some();
        let is_queued = request.is_some_and(|it| it.ticket.is_some() || has_place);
        if is_queued && !matches!(end, Acquired::Superseded | Acquired::WaitExpired) {
            leave(parts, request.filter(|_| places > PlacesBefore::New)).await;
        }
        return Ok(end);
    }
    if !answers.is_blocked {
        return grant(parts, claim, attempt, (request, places), deadline).await;
    }
    if answers.holds_unreported {
        // An earlier poll of this attempt was granted them before a partition failed. A claim that waits holds nothing.
        undo(parts, attempt, deadline).await?;
    }
    match answers.waiting {
        Some(waiting) => Ok(Acquired::Waiting(waiting)),
        None => {
            let conflicts = listed(claim, answers.conflicts);
            Ok(Acquired::Refused(Refused::Blocked(conflicts)))
        }
    }
}

/// A number that identifies the locks of a claim, whatever their order. It is larger than any number of locks, which
/// identifies those of a claim that has all of them in one partition.
fn identify_locks(claim: &Claim) -> u64 {
    let digests = digests(&claim.names, claim.token).into_iter();
    let numbers = digests.map(|ClaimDigest([a, b, c, d, ..])| u32::from_be_bytes([a, b, c, d]));
    (1 << 32) | u64::from(numbers.fold(0, |all, number| all ^ number))
}

pub(super) fn all_done<T>(outcomes: Vec<StoreResult<T>>) -> StoreResult<Vec<T>> {
    let all: StoreResult<Vec<T>> = outcomes.into_iter().collect();
    all.map_err(|error| StoreError::unknown(error.fault(), error.detail()))
}
