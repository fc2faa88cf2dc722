//! A claim on locks of several partitions of a cluster, and the steps in which it is granted them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::across::all_done;
use super::answers::{PartitionAnswers, is_new, listed, merged};
use crate::backoff::Backoff;
use crate::domain::{Acquired, Attempt, Claim, QueueRequest, Refused, SuspendOptions};
use crate::store::redis::encode::{Purpose, Undoing};
use crate::store::redis::node::Node;
use crate::store::redis::operations::{AcquireScope, AskReply};
use crate::store::{StoreError, StoreResult};

/// The pause before the partitions are asked again, where a claim may just be granted its locks; doubled up to
/// [`SETTLE_PAUSE_MAX`]. And how often they are.
const SETTLE_PAUSE_MIN: Duration = Duration::from_millis(5);
const SETTLE_PAUSE_MAX: Duration = Duration::from_millis(50);
const SETTLED_AFTER: usize = 10;

/// How long leaving the queues may take.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);

/// How often in a row a claim that waits tries to be granted its locks, where nothing is in its way after a failed try.
const GRANT_TRIES_MAX: usize = 3;

/// The locks of a claim in one partition, and the claim on them.
pub(super) struct PartialClaim<'a> {
    pub(super) node: &'a Node,
    pub(super) claim: Claim,
    /// Identifies all locks of the claim.
    of_all: u64,
    /// Whether the first try of a command may still arrive, and be granted or queued then.
    may_arrive: AtomicBool,
}

/// Which places a claim has in the queues before it is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlacesBefore {
    /// None: a full queue refuses it.
    None,
    /// Those that this request has got. If it cannot have all of them, it has none.
    New,
    /// Those of an earlier request, one of them in the partition with this number. They stay, whatever this one gets.
    Former(usize),
}

/// How often partitions are asked again whose answers are about to change.
struct Settling {
    deadline: Instant,
    asked_again: usize,
    backoff: Backoff,
}

/// Asks all partitions what is in the way of the claim, and changes nothing. Another request of the claim may just be granted
/// its locks, one partition after the other; or another claim may, if what is in the way is only a part of the locks, granted
/// just now. Then asks again, but for the other claim only if this one does not wait: one that waits gets its place at once,
/// and learns there if what is in the way goes away.
pub(super) async fn ask(
    parts: &[PartialClaim<'_>],
    attempt: Attempt,
    waits: bool,
    deadline: Instant,
) -> StoreResult<PartitionAnswers> {
    let locks: usize = parts.iter().map(|part| part.claim.names.len()).sum();
    let mut settling = Settling::by(deadline);
    loop {
        let answers = ask_once(parts, attempt, deadline).await?;
        let is_part = !answers.conflicts.is_empty() && answers.conflicts.len() < locks;
        let may_pass = is_part && !waits && answers.conflicts.iter().any(is_new);
        if !(may_pass || answers.is_held_in_part()) || !settling.may_ask_again().await {
            return Ok(answers);
        }
    }
}

async fn ask_once(
    parts: &[PartialClaim<'_>],
    attempt: Attempt,
    deadline: Instant,
) -> StoreResult<PartitionAnswers> {
    let asking = parts
        .iter()
        .map(|part| part.acquire(part.scope(Purpose::Ask), attempt, None, deadline));
    let mut answers = PartitionAnswers::default();
    for (part, reply) in parts.iter().zip(join_all(asking).await) {
        answers.add(&part.claim.names, reply?, part.node.recovery.grace_left());
    }
    Ok(answers)
}

/// Asks one partition after the other, and queues the claim in each, with the ticket of the first, until one refuses it for
/// good. The first is one where it has a place, if there is any: others may have lost theirs.
pub(super) async fn enqueue(
    parts: &[PartialClaim<'_>],
    attempt: Attempt,
    request: &mut Option<QueueRequest>,
    places: PlacesBefore,
    deadline: Instant,
) -> StoreResult<PartitionAnswers> {
    let mut settling = Settling::by(deadline);
    loop {
        let answers = enqueue_once(parts, attempt, request, places, deadline).await?;
        if !answers.is_held_in_part() || !settling.may_ask_again().await {
            return Ok(answers);
        }
    }
}

async fn enqueue_once(
    parts: &[PartialClaim<'_>],
    attempt: Attempt,
    request: &mut Option<QueueRequest>,
    places: PlacesBefore,
    deadline: Instant,
) -> StoreResult<PartitionAnswers> {
    let mut answers = PartitionAnswers::default();
    let (before, first) = parts.split_at(match places {
        PlacesBefore::None | PlacesBefore::New => 0,
        PlacesBefore::Former(number) => number,
    });
    for part in first.iter().chain(before) {
        let is_decided = answers.decided.is_some();
        // What is decided is reported of the first lock. A partition that only has to say so queues nothing.
        let queueing = request.as_ref().filter(|_| !is_decided);
        let scope = AcquireScope {
            enters_queue: places == PlacesBefore::None,
            ..part.scope(Purpose::Ask)
        };
        let reply = part.acquire(scope, attempt, queueing, deadline).await;
        if reply.is_err() && is_decided {
            continue;
        }
        if reply.is_err() && places <= PlacesBefore::New {
            // A place in some queues only would be that of another claim.
            leave(parts, None).await;
        }
        answers.add(&part.claim.names, reply?, part.node.recovery.grace_left());
        if let (Some(request), Some(waiting)) = (request.as_mut(), &answers.waiting) {
            request.ticket = Some(waiting.ticket);
        }
    }
    Ok(answers)
}

/// Grants the locks of a claim to which no partition objects.
pub(super) async fn grant(
    parts: &[PartialClaim<'_>],
    claim: &Claim,
    attempt: Attempt,
    (mut request, mut places): (Option<QueueRequest>, PlacesBefore),
    deadline: Instant,
) -> StoreResult<Acquired> {
    let mut tries = 1;
    loop {
        let granting = grant_in_order(parts, claim, attempt, request.as_ref(), deadline);
        let refused = granting.await?;
        if matches!(refused, Acquired::Granted(_)) {
            return Ok(refused);
        }
        let (Acquired::Waiting(waiting), Some(waits)) = (&refused, request.as_mut()) else {
            return all_conflicts(parts, claim, refused, attempt, deadline).await;
        };
        waits.ticket = Some(waiting.ticket);
        // The other partitions have not queued the claim, or have taken it out of the queue.
        let mut answers = enqueue(parts, attempt, &mut request, places, deadline).await?;
        if let Some(end) = answers.end(claim, true) {
            leave(parts, request.filter(|_| places > PlacesBefore::New)).await;
            return Ok(end);
        }
        places = places.max(PlacesBefore::New);
        // What was in the way may be gone by now, and nothing would tell the claim.
        if answers.is_blocked || tries == GRANT_TRIES_MAX {
            return Ok(answers.waiting.map_or(refused, Acquired::Waiting));
        }
        tries += 1;
    }
}

/// Grants the locks partition by partition. If one refuses, what was granted before is undone.
async fn grant_in_order(
    parts: &[PartialClaim<'_>],
    claim: &Claim,
    attempt: Attempt,
    request: Option<&QueueRequest>,
    deadline: Instant,
) -> StoreResult<Acquired> {
    let mut granted = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let acquiring = part.acquire(part.scope(Purpose::Grant), attempt, request, deadline);
        match acquiring.await {
            Ok(reply) => match reply? {
                Acquired::Granted(it) => granted.push((part.claim.names.clone(), it)),
                refused @ (Acquired::Waiting(_)
                | Acquired::Superseded
                | Acquired::WaitExpired
                | Acquired::Refused(_)) => {
                    undo(&parts[..number], attempt, deadline).await?;
                    return Ok(refused);
                }
            },
            // The caller rolls back what the attempt has been granted, unless the claim goes on waiting by it.
            Err(error) if number > 0 => {
                if request.is_some() {
                    drop(undo(&parts[..number], attempt, deadline).await);
                }
                return Err(StoreError::unknown(error.fault(), error.detail()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Acquired::Granted(merged(claim, granted)))
}

/// The answer to a claim that one partition refuses: a conflict is reported together with those of the others.
async fn all_conflicts(
    parts: &[PartialClaim<'_>],
    claim: &Claim,
    refused: Acquired,
    attempt: Attempt,
    deadline: Instant,
) -> StoreResult<Acquired> {
    let Acquired::Refused(Refused::Blocked(_)) = &refused else {
        return Ok(refused);
    };
    let answers = ask(parts, attempt, false, deadline).await?;
    Ok(match answers.conflicts.is_empty() {
        true => refused,
        false => Acquired::Refused(Refused::Blocked(listed(claim, answers.conflicts))),
    })
}

/// Undoes what the attempt was granted in these partitions, which may grant it again.
pub(super) async fn undo(
    parts: &[PartialClaim<'_>],
    attempt: Attempt,
    deadline: Instant,
) -> StoreResult<()> {
    let undoing = parts.iter().map(|it| {
        it.node
            .withdraw(&it.claim, attempt, Undoing::Part, deadline)
    });
    all_done(join_all(undoing).await).map(drop)
}

/// Takes the claim out of all queues, because it cannot be granted any more, or is not in all of them. The deadline of the
/// claim may be what it has missed.
pub(super) async fn leave(parts: &[PartialClaim<'_>], request: Option<QueueRequest>) {
    let deadline = Instant::now() + LEAVE_TIMEOUT;
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

impl Settling {
    fn by(deadline: Instant) -> Self {
        Self {
            deadline,
            asked_again: 0,
            backoff: Backoff::default(),
        }
    }

    /// Pauses before the partitions are asked again, or returns that there is no time for it.
    async fn may_ask_again(&mut self) -> bool {
        let pause = self.backoff.next(SETTLE_PAUSE_MIN, SETTLE_PAUSE_MAX);
        self.asked_again += 1;
        if self.asked_again > SETTLED_AFTER || Instant::now() + pause >= self.deadline {
            return false;
        }
        sleep(pause).await;
        true
    }
}

impl<'a> PartialClaim<'a> {
    pub(super) fn new(node: &'a Node, claim: Claim, of_all: u64) -> Self {
        Self {
            node,
            claim,
            of_all,
            may_arrive: AtomicBool::new(false),
        }
    }

    /// Whether an earlier try of what it was sent may still arrive.
    pub(super) fn may_arrive(&self) -> bool {
        self.may_arrive.load(Ordering::Relaxed)
    }

    fn scope(&self, purpose: Purpose) -> AcquireScope {
        AcquireScope {
            purpose,
            of_all: Some(self.of_all),
            enters_queue: false,
        }
    }

    async fn acquire(
        &self,
        scope: AcquireScope,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Result<Acquired, AskReply>> {
        let acquiring = self
            .node
            .acquire(scope, &self.claim, attempt, request, deadline);
        let (reply, may_arrive) = acquiring.await?;
        // A question alone neither grants nor enqueues anything.
        let has_effect = scope.purpose == Purpose::Grant || request.is_some();
        if may_arrive && has_effect {
            self.may_arrive.store(true, Ordering::Relaxed);
        }
        Ok(reply)
    }
}
