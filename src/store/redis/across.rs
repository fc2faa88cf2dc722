//! Operations on locks of several partitions of a cluster. A script works on one partition, so each operation has several.
//!
//! A claim first asks in every partition whether it could be granted, and is queued there with one sequence number, by
//! which all queues agree on who is first. Only when nothing is in its way anywhere is it granted the locks, partition by
//! partition in one order; if another claim was faster somewhere, what it was granted is undone before anybody is told.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::RedisStore;
use super::encode::{Purpose, Scope, Undoing};
use super::node::Node;
use super::operations::{Asked, no_answer};
use crate::domain::{
    Acquired, AnswerRoom, Attempt, Claim, Conflict, ConflictKind, GrantKind, Granted, HoldCount,
    LockName, LockNames, Mismatch, Position, QueueRequest, Refused, Released, RenewOptions,
    Renewed, Rollback, SuspendOptions, Suspended, Token, Waiting,
};
use crate::store::{Fault, StoreError, StoreResult};

/// A lease that was granted less than this long ago may be one of several that its claim is just being granted.
const NEW_MS: u64 = 100;
/// The pause before the partitions are asked again then, and how often they are.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);
const SETTLED_AFTER: usize = 20;

/// The locks of a claim in one partition, and the claim on them.
struct Part<'a> {
    node: &'a Node,
    claim: Claim,
    /// How many locks the whole claim has.
    in_all: usize,
}

/// What the partitions answer to a claim.
#[derive(Default)]
struct Answers {
    /// The locks that the claim does not hold.
    not_held: Vec<LockName>,
    /// Whether it holds some that a client has received.
    holds: bool,
    /// Of each partition the first lock, and the sequence number of the place that the claim has.
    tickets: Vec<(LockName, Option<u64>)>,
    waiting: Option<Waiting>,
    conflicts: Vec<Conflict>,
    /// Whether a lock is not free.
    is_blocked: bool,
    /// The answer that ends the matter, and its rank: the smallest counts.
    decided: Option<(u8, Acquired)>,
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
            true => enqueue(&parts, attempt, &mut request, deadline).await?,
            false => ask_settled(&parts, attempt, deadline).await?,
        };
        let mut end = answers.end(claim, request.is_some());
        if end.is_none() && answers.is_blocked && request.is_some() && !is_resumed {
            answers = enqueue(&parts, attempt, &mut request, deadline).await?;
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
        answers.add(part, asked?);
    }
    Ok(answers)
}

/// Asks one partition after the other, and queues the claim in each, with the ticket of the first.
async fn enqueue(
    parts: &[Part<'_>],
    attempt: Attempt,
    request: &mut Option<QueueRequest>,
    deadline: Instant,
) -> StoreResult<Answers> {
    let mut answers = Answers::default();
    for part in parts {
        let asked = part.acquire(Purpose::Ask, attempt, request.as_ref(), deadline);
        answers.add(part, asked.await?);
        if answers.decided.is_some() {
            break;
        }
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
            // The caller rolls back what the attempt has been granted.
            Err(error) if number > 0 => {
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
        let answers = enqueue(parts, attempt, &mut request, deadline).await?;
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

/// Whether a lock was granted so lately that its claim may have yet to be granted others.
fn is_new(conflict: &Conflict) -> bool {
    let ConflictKind::Holders(holders) = &conflict.by else {
        return false;
    };
    holders.listed.iter().any(|holder| {
        let left_ms = u64::try_from(holder.expires_in.as_millis()).unwrap_or(u64::MAX);
        let now_ms = holder.expires_at.unix_ms().saturating_sub(left_ms);
        now_ms.saturating_sub(holder.acquired_at.unix_ms()) < NEW_MS
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

impl Answers {
    fn add(&mut self, part: &Part<'_>, asked: Asked) {
        let names = &part.claim.names;
        match asked {
            Asked::Holds { is_acknowledged } => {
                self.holds |= is_acknowledged;
                return;
            }
            Asked::Queued(waiting) => self.wait(waiting),
            Asked::Open { ticket, conflicts } => {
                let first = names.first().cloned();
                self.tickets.extend(first.map(|name| (name, ticket)));
                self.block(conflicts);
            }
            Asked::Answered(Acquired::Waiting(waiting)) => {
                self.is_blocked = true;
                self.wait(waiting);
            }
            Asked::Answered(Acquired::Refused(Refused::Blocked(conflicts))) => {
                self.block(conflicts);
            }
            Asked::Answered(answer) => self.decide(answer),
        }
        self.not_held.extend(names.iter().cloned());
    }

    fn decide(&mut self, answer: Acquired) {
        let rank = match &answer {
            Acquired::Refused(Refused::Ended(_)) => 0,
            Acquired::Refused(Refused::Mismatched(_)) => 1,
            Acquired::Refused(Refused::Recovering { .. }) => 3,
            _ => 2,
        };
        let decided = self.decided.as_ref();
        if decided.is_none_or(|(other, _)| rank < *other) {
            self.decided = Some((rank, answer));
        }
    }

    /// The answer that ends the matter, if there is one: some lock cannot be granted, or the claim is another one.
    fn end(&mut self, claim: &Claim, waits: bool) -> Option<Acquired> {
        match self.decided.take() {
            // A partition that recovers keeps a waiting claim in its queues.
            Some((_, Acquired::Refused(Refused::Recovering { .. }))) if waits => {
                self.is_blocked = true;
            }
            Some((_, answer)) => return Some(answer),
            None => {}
        }
        let is_missing = |name: &&LockName| self.not_held.contains(name);
        let stray = match self.holds {
            true => claim.names.iter().find(is_missing),
            false => self.stray_place(),
        };
        let name = stray?.clone();
        Some(Acquired::Refused(Refused::Mismatched(Mismatch::Claim {
            name,
        })))
    }

    /// A lock on which the claim has a place that it does not have on all of its locks.
    fn stray_place(&self) -> Option<&LockName> {
        let mut places = self.tickets.iter().map(|(_, ticket)| ticket);
        let first = places.next()?;
        if places.all(|ticket| ticket == first) {
            return None;
        }
        let with_place = self.tickets.iter().filter(|(_, ticket)| ticket.is_some());
        with_place.map(|(name, _)| name).min()
    }

    fn block(&mut self, conflicts: Vec<Conflict>) {
        self.is_blocked |= !conflicts.is_empty();
        self.conflicts.extend(conflicts);
    }

    fn wait(&mut self, also: Waiting) {
        let Some(waiting) = self.waiting else {
            self.waiting = Some(also);
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

/// The conflicts in the order of names, with as many of their holders as one answer lists.
fn listed(claim: &Claim, mut conflicts: Vec<Conflict>) -> Vec<Conflict> {
    conflicts.sort_by(|one, other| one.name.cmp(&other.name));
    let mut room = AnswerRoom::for_locks(claim.names.len());
    for conflict in &mut conflicts {
        if let ConflictKind::Holders(holders) = &mut conflict.by {
            let listed = std::mem::take(&mut holders.listed);
            holders.listed = room.take(listed.into_iter());
        }
    }
    conflicts
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
