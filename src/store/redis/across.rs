//! Operations on locks of several partitions of a cluster. A script works on one partition, so each operation has several.
//!
//! A claim first asks in every partition whether it could be granted, and is queued there with one sequence number, by
//! which all queues agree on who is first. Only when nothing is in its way anywhere is it granted the locks, partition by
//! partition in one order; if another claim was faster somewhere, what it was granted is undone before anybody is told.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::RedisStore;
use super::answers::{Answers, is_new, later, listed, merged, name_of};
use super::encode::{Purpose, Scope, Undoing};
use super::node::Node;
use super::operations::{Asked, no_answer};
use crate::domain::{
    Acquired, Attempt, Claim, HoldCount, LockName, LockNames, QueueRequest, Refused, Released,
    RenewOptions, Renewed, Rollback, SuspendOptions, Suspended, Token,
};
use crate::store::{Fault, StoreError, StoreResult};

/// The pause before the partitions are asked again, where a claim may just be granted its locks, and how often they are.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);
const SETTLED_AFTER: usize = 20;

/// The locks of a claim in one partition, and the claim on them.
struct Part<'a> {
    node: &'a Node,
    claim: Claim,
    /// How many locks the whole claim has.
    in_all: usize,
}

impl RedisStore {
    /// [`LockStore::acquire`](crate::store::LockStore::acquire).
    pub(super) async fn acquire_across(
        &self,
        claim: &Claim,
        attempt: Attempt,
        queue_request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let (parts, mut request) = (self.parts(claim), queue_request.copied());
        let is_resumed = request.is_some_and(|it| it.ticket.is_some());
        let mut answers = match is_resumed {
            true => enqueue(&parts, attempt, &mut request, false, deadline).await?,
            false => ask_settled(&parts, attempt, deadline).await?,
        };
        let mut end = answers.end(claim, request.is_some());
        if end.is_none() && answers.is_blocked && request.is_some() && !is_resumed {
            let is_new = !answers.has_place();
            answers = enqueue(&parts, attempt, &mut request, is_new, deadline).await?;
            end = answers.end(claim, true);
        }
        if let Some(end) = end {
            let is_queued = request.is_some_and(|it| it.ticket.is_some());
            if is_queued && !matches!(end, Acquired::Superseded | Acquired::WaitExpired) {
                leave(&parts, request, deadline).await;
            }
            return Ok(end);
        }
        if !answers.is_blocked {
            return grant(&parts, claim, attempt, request, deadline).await;
        }
        if answers.holds_unreported {
            // An earlier poll of this attempt was granted them before a partition failed. A claim that waits holds nothing.
            undo(&parts, attempt, deadline).await?;
        }
        match answers.waiting {
            Some(waiting) => Ok(Acquired::Waiting(waiting)),
            None => {
                let conflicts = listed(claim, answers.conflicts);
                Ok(Acquired::Refused(Refused::Blocked(conflicts)))
            }
        }
    }

    /// [`LockStore::suspend`](crate::store::LockStore::suspend).
    pub(super) async fn suspend_across(
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
    pub(super) async fn withdraw_across(
        &self,
        claim: &Claim,
        attempt: Attempt,
        rollback: Rollback,
        deadline: Instant,
    ) -> StoreResult<()> {
        let parts = self.parts(claim);
        let withdrawing = parts
            .iter()
            .map(|it| it.node.withdraw(&it.claim, attempt, rollback, deadline));
        all_done(join_all(withdrawing).await)
    }

    /// [`LockStore::renew`](crate::store::LockStore::renew).
    pub(super) async fn renew_across(
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
    pub(super) async fn release_across(
        &self,
        names: &LockNames,
        token: Token,
        hold_count: Option<HoldCount>,
        deadline: Instant,
    ) -> StoreResult<Vec<Released>> {
        let parts = self.parts_of(names);
        let releasing = parts
            .iter()
            .map(|(node, names)| node.release(names, token, hold_count, deadline));
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

    fn parts(&self, claim: &Claim) -> Vec<Part<'_>> {
        let parts = self.parts_of(&claim.names).into_iter();
        let part = |(node, names)| Part {
            node,
            in_all: claim.names.len(),
            claim: Claim {
                names,
                ..claim.clone()
            },
        };
        parts.map(part).collect()
    }
}

/// Asks all partitions what is in the way of the claim, and changes nothing. If that is only a part of its locks, granted
/// just now, another claim may be about to be granted its locks, or fail to: then asks again.
async fn ask_settled(
    parts: &[Part<'_>],
    attempt: Attempt,
    deadline: Instant,
) -> StoreResult<Answers> {
    let locks: usize = parts.iter().map(|part| part.claim.names.len()).sum();
    for _ in 0..SETTLED_AFTER {
        let answers = ask(parts, attempt, deadline).await?;
        let is_part = !answers.conflicts.is_empty() && answers.conflicts.len() < locks;
        let is_new = answers.conflicts.iter().any(is_new);
        if !is_part || !is_new || Instant::now() + SETTLE_PAUSE >= deadline {
            return Ok(answers);
        }
        sleep(SETTLE_PAUSE).await;
    }
    ask(parts, attempt, deadline).await
}

async fn ask(parts: &[Part<'_>], attempt: Attempt, deadline: Instant) -> StoreResult<Answers> {
    let asking = parts
        .iter()
        .map(|part| part.acquire(Purpose::Ask, attempt, None, deadline));
    let mut answers = Answers::default();
    for (part, asked) in parts.iter().zip(join_all(asking).await) {
        answers.add(&part.claim.names, asked?);
    }
    Ok(answers)
}

/// Asks one partition after the other, and queues the claim in each, with the ticket of the first, until one refuses it for
/// good.
async fn enqueue(
    parts: &[Part<'_>],
    attempt: Attempt,
    request: &mut Option<QueueRequest>,
    is_new: bool,
    deadline: Instant,
) -> StoreResult<Answers> {
    let mut answers = Answers::default();
    for part in parts {
        let is_decided = answers.decided.is_some();
        // What is decided is reported of the first lock. A partition that only has to say so queues nothing.
        let queueing = request.as_ref().filter(|_| !is_decided);
        let asked = part
            .acquire(Purpose::Ask, attempt, queueing, deadline)
            .await;
        if asked.is_err() && is_decided {
            continue;
        }
        if asked.is_err() && is_new {
            // A place in some queues only would be that of another claim.
            leave(parts, None, deadline).await;
        }
        answers.add(&part.claim.names, asked?);
        if let (Some(request), Some(waiting)) = (request.as_mut(), &answers.waiting) {
            request.ticket = Some(waiting.ticket);
        }
    }
    Ok(answers)
}

/// Grants the locks of a claim to which no partition objects.
async fn grant(
    parts: &[Part<'_>],
    claim: &Claim,
    attempt: Attempt,
    mut request: Option<QueueRequest>,
    deadline: Instant,
) -> StoreResult<Acquired> {
    let mut granted = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let acquiring = part.acquire(Purpose::Grant, attempt, request.as_ref(), deadline);
        let refused = match acquiring.await {
            Ok(Asked::Answered(Acquired::Granted(it))) => {
                granted.push((part.claim.names.clone(), it));
                continue;
            }
            Ok(Asked::Answered(refused)) => refused,
            Ok(Asked::Queued(_) | Asked::Holds { .. } | Asked::Open { .. }) => {
                return Err(no_answer());
            }
            // The caller rolls back what the attempt has been granted, unless the claim goes on waiting by it.
            Err(error) if number > 0 => {
                if request.is_some() {
                    drop(undo(&parts[..number], attempt, deadline).await);
                }
                return Err(StoreError::unknown(error.fault(), error.detail()));
            }
            Err(error) => return Err(error),
        };
        undo(&parts[..number], attempt, deadline).await?;
        let (Acquired::Waiting(waiting), Some(waits)) = (&refused, request.as_mut()) else {
            return all_conflicts(parts, claim, refused, attempt, deadline).await;
        };
        waits.ticket = Some(waiting.ticket);
        // The other partitions have not queued the claim, or have taken it out of the queue.
        let mut answers = enqueue(parts, attempt, &mut request, false, deadline).await?;
        if let Some(end) = answers.end(claim, true) {
            leave(parts, request, deadline).await;
            return Ok(end);
        }
        return Ok(answers.waiting.map_or(refused, Acquired::Waiting));
    }
    Ok(Acquired::Granted(merged(claim, granted)))
}

/// The answer to a claim that one partition refuses: a conflict is reported together with those of the others.
async fn all_conflicts(
    parts: &[Part<'_>],
    claim: &Claim,
    refused: Acquired,
    attempt: Attempt,
    deadline: Instant,
) -> StoreResult<Acquired> {
    let Acquired::Refused(Refused::Blocked(_)) = &refused else {
        return Ok(refused);
    };
    let answers = ask_settled(parts, attempt, deadline).await?;
    Ok(match answers.conflicts.is_empty() {
        true => refused,
        false => Acquired::Refused(Refused::Blocked(listed(claim, answers.conflicts))),
    })
}

/// Undoes what the attempt was granted in these partitions, which may grant it again.
async fn undo(parts: &[Part<'_>], attempt: Attempt, deadline: Instant) -> StoreResult<()> {
    let undoing = parts.iter().map(|it| {
        it.node
            .withdraw(&it.claim, attempt, Undoing::Part, deadline)
    });
    all_done(join_all(undoing).await)
}

/// Takes the claim out of all queues, because it cannot be granted any more.
async fn leave(parts: &[Part<'_>], request: Option<QueueRequest>, deadline: Instant) {
    let options = SuspendOptions {
        keep: request.map_or(Duration::ZERO, |request| request.place_kept),
        lists_conflicts: false,
    };
    let leaving = parts
        .iter()
        .map(|it| it.node.suspend(&it.claim, options, deadline));
    // A place that could not be left expires.
    drop(join_all(leaving).await);
}

fn all_done(outcomes: Vec<StoreResult<()>>) -> StoreResult<()> {
    match outcomes.into_iter().find_map(Result::err) {
        Some(error) => Err(StoreError::unknown(error.fault(), error.detail())),
        None => Ok(()),
    }
}

impl Part<'_> {
    async fn acquire(
        &self,
        purpose: Purpose,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Asked> {
        let scope = Scope {
            purpose,
            in_all: Some(self.in_all),
        };
        let acquiring = self
            .node
            .acquire_for(scope, &self.claim, attempt, request, deadline);
        acquiring.await
    }
}
