//! Operations on locks of several partitions of a cluster. A script works on one partition, so each operation has several.
//!
//! A claim first asks in every partition whether it could be granted, and is queued there with one sequence number, by
//! which all queues agree on who is first. Only when nothing is in its way anywhere is it granted the locks, partition by
//! partition in one order; if another claim was faster somewhere, what it was granted is undone before anybody is told.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::RedisStore;
use super::encode::{Purpose, Undoing};
use super::node::Node;
use super::operations::Asked;
use crate::domain::{
    Acquired, Attempt, Claim, Conflict, GrantKind, Granted, HoldCount, LockName, LockNames,
    Mismatch, Position, QueueRequest, Refused, Released, RenewOptions, Renewed, Rollback,
    SuspendOptions, Suspended, Token, Waiting,
};
use crate::store::{Fault, StoreError, StoreResult};

/// The locks of a claim in one partition, and the claim on them.
struct Part<'a> {
    node: &'a Node,
    claim: Claim,
}

/// What the partitions answer to a claim.
#[derive(Default)]
struct Answers {
    granted: Vec<(LockNames, Granted)>,
    not_held: Option<LockName>,
    waiting: Option<Waiting>,
    conflicts: Vec<Conflict>,
    /// The answer that ends the matter.
    decided: Option<Acquired>,
    /// Whether a lock is not free.
    is_blocked: bool,
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
        let parts = self.parts(claim);
        let mut queue_request = queue_request.copied();
        let asked = ask(&parts, attempt, &mut queue_request, deadline).await?;
        let is_resumed = asked
            .granted
            .iter()
            .any(|(_, it)| it.kind == GrantKind::New);
        if let Some(decided) = asked.decided {
            if queue_request.is_some()
                && !matches!(decided, Acquired::Superseded | Acquired::WaitExpired)
            {
                leave(&parts, deadline).await;
            }
            return Ok(decided);
        }
        if asked.granted.len() == parts.len() {
            return Ok(Acquired::Granted(merged(claim, asked.granted)));
        }
        if let (false, Some(name)) = (asked.granted.is_empty() || is_resumed, asked.not_held) {
            return Ok(Acquired::Refused(Refused::Mismatched(Mismatch::Claim {
                name,
            })));
        }
        match (asked.is_blocked, asked.waiting) {
            (false, _) => {
                self.grant(&parts, claim, attempt, queue_request, deadline)
                    .await
            }
            (true, Some(waiting)) => Ok(Acquired::Waiting(waiting)),
            (true, None) => Ok(blocked(claim, asked.conflicts)),
        }
    }

    /// Grants the locks of a claim that all partitions admit.
    async fn grant(
        &self,
        parts: &[Part<'_>],
        claim: &Claim,
        attempt: Attempt,
        mut queue_request: Option<QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let mut granted = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let acquiring =
                part.node
                    .acquire(&part.claim, attempt, queue_request.as_ref(), deadline);
            let refused = match acquiring.await {
                Ok(Acquired::Granted(it)) => {
                    granted.push((part.claim.names.clone(), it));
                    continue;
                }
                Ok(refused) => refused,
                // The caller rolls back what the attempt has been granted.
                Err(error) if number > 0 => {
                    return Err(StoreError::unknown(error.fault(), error.detail()));
                }
                Err(error) => return Err(error),
            };
            undo(&parts[..number], attempt, deadline).await?;
            if let Acquired::Waiting(_) = refused {
                // The places that the grants have taken.
                let asked = ask(parts, attempt, &mut queue_request, deadline).await?;
                if let Some(waiting) = asked.waiting {
                    return Ok(Acquired::Waiting(waiting));
                }
            }
            return Ok(refused);
        }
        Ok(Acquired::Granted(merged(claim, granted)))
    }

    /// [`LockStore::suspend`](crate::store::LockStore::suspend).
    pub(super) async fn suspend_across(
        &self,
        claim: &Claim,
        options: SuspendOptions,
        deadline: Instant,
    ) -> StoreResult<Suspended> {
        let parts = self.parts(claim);
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
        all.blocked_by
            .sort_by(|one, other| one.name.cmp(&other.name));
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
            let mut renewals = Vec::new();
            for ((_, names), renewed) in parts.iter().zip(join_all(renewing).await) {
                match renewed {
                    Ok(Renewed::Extended(extended)) => {
                        renewals.extend(names.iter().cloned().zip(extended))
                    }
                    Ok(Renewed::NotHolder(not_held)) => lost.extend(not_held),
                    Ok(Renewed::Mismatched(mismatch)) => return Ok(Renewed::Mismatched(mismatch)),
                    Err(error) if purpose == Purpose::Grant => {
                        return Err(StoreError::unknown(error.fault(), error.detail()));
                    }
                    Err(error) => return Err(error),
                }
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
                Err(error) => failed = Some(error),
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
            claim: Claim {
                names,
                ..claim.clone()
            },
        };
        parts.map(part).collect()
    }
}

/// Asks every partition whether it admits the claim. The first ticket is that of the others, too.
async fn ask(
    parts: &[Part<'_>],
    attempt: Attempt,
    queue_request: &mut Option<QueueRequest>,
    deadline: Instant,
) -> StoreResult<Answers> {
    let mut answers = Answers::default();
    for part in parts {
        let asked = part.node.acquire_for(
            Purpose::Ask,
            &part.claim,
            attempt,
            queue_request.as_ref(),
            deadline,
        );
        let asked = asked.await?;
        answers.add(part, asked);
        if answers.decided.is_some() {
            break;
        }
        if let (Some(request), Some(waiting)) = (queue_request.as_mut(), &answers.waiting) {
            request.ticket = Some(waiting.ticket);
        }
    }
    Ok(answers)
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
async fn leave(parts: &[Part<'_>], deadline: Instant) {
    let options = SuspendOptions {
        keep: std::time::Duration::ZERO,
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

impl Answers {
    fn add(&mut self, part: &Part<'_>, asked: Asked) {
        let names = &part.claim.names;
        match asked {
            Asked::Admitted(waiting) => self.wait(waiting),
            Asked::Answered(Acquired::Granted(granted)) => {
                self.granted.push((names.clone(), granted));
                return;
            }
            Asked::Answered(Acquired::Waiting(waiting)) => {
                self.is_blocked = true;
                self.wait(Some(waiting));
            }
            Asked::Answered(Acquired::Refused(Refused::Blocked(conflicts))) => {
                self.is_blocked = true;
                self.conflicts.extend(conflicts);
            }
            Asked::Answered(decided) => self.decided = Some(decided),
        }
        self.not_held = self.not_held.take().or_else(|| names.first().cloned());
    }

    fn wait(&mut self, also: Option<Waiting>) {
        let (Some(waiting), Some(also)) = (self.waiting, also) else {
            self.waiting = self.waiting.or(also);
            return;
        };
        let soonest = waiting.recheck_in.into_iter().chain(also.recheck_in).min();
        self.waiting = Some(Waiting {
            ticket: waiting.ticket,
            recheck_in: soonest,
            position: later(waiting.position, also.position),
            // The other partitions are asked with the ticket of the first, so that they find a place restored that is new.
            restored: waiting.restored,
            has_ambiguous_attempt: waiting.has_ambiguous_attempt || also.has_ambiguous_attempt,
        });
    }
}

/// The worse one of two positions.
fn later(one: Option<Position>, other: Option<Position>) -> Option<Position> {
    one.into_iter().chain(other).max_by_key(|it| it.position)
}

fn blocked(claim: &Claim, mut conflicts: Vec<Conflict>) -> Acquired {
    debug_assert!(!claim.names.is_empty());
    conflicts.sort_by(|one, other| one.name.cmp(&other.name));
    Acquired::Refused(Refused::Blocked(conflicts))
}

/// One grant of all locks, in the order of names.
fn merged(claim: &Claim, parts: Vec<(LockNames, Granted)>) -> Granted {
    let kinds = parts.iter().map(|(_, granted)| granted.kind);
    let kind = [GrantKind::New, GrantKind::Reentered]
        .into_iter()
        .find(|kind| kinds.clone().any(|it| it == *kind))
        .unwrap_or(GrantKind::Replayed);
    let mut leases = Vec::with_capacity(claim.names.len());
    let mut expired = Vec::new();
    for (names, granted) in parts {
        leases.extend(names.iter().cloned().zip(granted.leases));
        expired.extend(granted.expired);
    }
    leases.sort_by(|(one, _), (other, _)| one.cmp(other));
    expired.sort_by(|one, other| one.name.cmp(&other.name));
    Granted {
        kind,
        leases: leases.into_iter().map(|(_, lease)| lease).collect(),
        expired,
    }
}
