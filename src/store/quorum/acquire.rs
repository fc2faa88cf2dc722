//! Acquiring from a quorum: rounds until one decides, with pauses of random length, so that contenders that got some nodes
//! each do not meet again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Core;
use super::drift::Drift;
use super::merge;
use super::nodes::{ByNode, Effect};
use super::round::{Ask, Recorded, Round};
use super::verdict::{self, SPLIT_PAUSE, Verdict, judge, waiting_at};
use crate::backoff::{Backoff, jittered, up_to};
use crate::domain::{
    Acquired, Attempt, Claim, Fence, GrantKind, Granted, Lease, Mode, QueueRequest,
};
use crate::store::memory::wall_time;
use crate::store::{Fault, StoreError, StoreResult};

/// The most rounds of one request.
const ROUNDS_MAX: usize = 12;

/// The shortest pause before the next round.
const PAUSE_MIN: Duration = Duration::from_millis(4);

/// What became of the locks that a majority granted in the first phase.
enum Second {
    Granted(Granted),
    /// The claim has lost them again.
    Lost,
    /// Too late: less is left of the leases than the clocks may drift apart.
    Late,
    Failed(StoreError),
}

impl Core {
    pub(super) async fn acquire(
        &self,
        claim: &Claim,
        attempt: Attempt,
        request: Option<&QueueRequest>,
        deadline: Instant,
    ) -> StoreResult<Acquired> {
        let at_nodes = Arc::new(self.drift.claim_at_nodes(claim));
        let mut pauses = Backoff::default();
        let mut last = None;
        for _ in 0..ROUNDS_MAX {
            let begun = Instant::now();
            let mut round = Round::begin(
                &self.nodes,
                &Ask {
                    claim: Arc::clone(&at_nodes),
                    attempt: self.attempts.at_nodes(claim.token, attempt),
                    request: request.copied(),
                    deadline,
                    now_us: wall_time().unix_us(),
                },
            );
            let mut votes = round.votes().await;
            let mut verdict = judge(self.drift, &votes);
            let mut place = None;
            if let Verdict::Unplaced(sequence) = verdict {
                place = Some(sequence);
                votes = round.votes_at(sequence).await;
                verdict = match judge(self.drift, &votes) {
                    // It is at the place where it could be had.
                    Verdict::Unplaced(_) => Verdict::Answered(waiting_at(&votes)),
                    verdict => verdict,
                };
            }
            let second = match &verdict {
                Verdict::Granted(fences) => {
                    Some(self.second(&mut round, &votes, fences, claim, begun).await)
                }
                Verdict::Unplaced(_)
                | Verdict::Answered(_)
                | Verdict::Split(_)
                | Verdict::Failed(_) => None,
            };
            if let (Some(Second::Granted(granted)), Verdict::Granted(fences)) = (&second, &verdict)
            {
                round.keep(fences);
                return Ok(Acquired::Granted(granted.clone()));
            }
            round.roll_back(place);
            if may_hold_somewhere(&votes) {
                self.attempts.rename(claim.token, attempt);
            }
            match (verdict, second) {
                (Verdict::Answered(answer), _) => return Ok(answer),
                (Verdict::Failed(error), _) | (_, Some(Second::Failed(error))) => {
                    return Err(error);
                }
                (_, Some(Second::Late)) => {
                    let detail = "the locks were granted too late; they are released again";
                    return Err(StoreError::unavailable(Fault::Timeout, detail));
                }
                (Verdict::Split(answer), _) => last = Some(answer),
                (Verdict::Granted(_) | Verdict::Unplaced(_), _) => {}
            }
            let pause = pauses.next(PAUSE_MIN, SPLIT_PAUSE * 4);
            if Instant::now() + pause > deadline {
                break;
            }
            sleep(jittered(pause / 2) + up_to(pause)).await;
        }
        last.ok_or_else(|| {
            let detail = "contenders have kept each other from a majority";
            StoreError::unavailable(Fault::Busy, detail)
        })
    }

    /// The second phase, with the check that the leases have not ended meanwhile.
    async fn second(
        &self,
        round: &mut Round,
        votes: &ByNode<Acquired>,
        decided: &[Fence],
        claim: &Claim,
        begun: Instant,
    ) -> Second {
        let limit = match claim.mode {
            Mode::Shared(share) => share.limit(),
            Mode::Exclusive => None,
        };
        let is_recorded = verdict::agreed_fences(votes).is_some();
        let (recorded, held): (_, Vec<&Granted>);
        if is_recorded && limit.is_none() {
            held = verdict::granted(votes).collect();
        } else {
            recorded = round.record(decided).await;
            held = recorded
                .answered()
                .flatten()
                .map(|it| &it.granted)
                .collect();
            if held.len() < votes.majority() {
                return match recorded.has_majority() {
                    true => Second::Lost,
                    false => Second::Failed(recorded.no_majority(Effect::MayBeDone)),
                };
            }
            if exceeds(limit, &recorded) {
                return Second::Lost;
            }
        }
        let elapsed = begun.elapsed();
        match merged(self.drift, votes.majority(), &held, decided) {
            Some(granted)
                if granted
                    .leases
                    .iter()
                    .all(|lease| lease.holder.expires_in > elapsed) =>
            {
                Second::Granted(granted)
            }
            Some(_) | None => Second::Late,
        }
    }
}

/// Whether some node may have granted the locks, or may yet: it refuses the attempt from now on.
fn may_hold_somewhere(votes: &ByNode<Acquired>) -> bool {
    votes.0.iter().any(|vote| match vote {
        Some(Ok(answer)) => matches!(answer, Acquired::Granted(_)),
        Some(Err(error)) => matches!(error, StoreError::Unknown { .. }),
        // A node that is so late may refuse the attempt in the next round too.
        None => false,
    })
}

/// Whether claims hold more permits together than there are.
///
/// A limit of two or more is not kept by majorities alone: of three claims, each may have two of three nodes, and no node
/// more than two claims. But each has been granted by its majority before it asks a majority who holds. The last of them
/// to ask sees all others, since their majorities and its own have a node in common.
fn exceeds(limit: Option<u32>, recorded: &ByNode<Option<Recorded>>) -> bool {
    let Some(limit) = limit else {
        return false;
    };
    let held = || recorded.answered().flatten().map(|it| &it.permits_used);
    let locks = held().map(Vec::len).max().unwrap_or_default();
    (0..locks).any(|lock| {
        let mut users: HashMap<[u8; 16], u32> = HashMap::new();
        for used in held().filter_map(|locks| locks.get(lock)).flatten() {
            let most = users.entry(used.user).or_default();
            *most = used.permits.max(*most);
        }
        let taken: u64 = users.into_values().map(u64::from).sum();
        taken > u64::from(limit)
    })
}

/// The grant that its holder is told of, from those of the nodes that hold it.
fn merged(drift: Drift, majority: usize, held: &[&Granted], decided: &[Fence]) -> Option<Granted> {
    let lease = |(index, decided): (usize, &Fence)| -> Option<Lease> {
        let leases = held
            .iter()
            .map(|granted| granted.leases.get(index).cloned());
        merge::lease(drift, majority, leases.collect::<Option<_>>()?, *decided)
    };
    let leases = decided.iter().enumerate().map(lease);
    let expired: Vec<_> = held.iter().map(|granted| &granted.expired[..]).collect();
    let kind = kind(held, majority);
    Some(Granted {
        kind,
        leases: leases.collect::<Option<_>>()?,
        expired: match kind {
            GrantKind::New => merge::previous(drift, majority, &expired),
            GrantKind::Reentered | GrantKind::Replayed => Vec::new(),
        },
    })
}

/// How the claim came to hold its locks: it held them already if it did so at a majority.
fn kind(held: &[&Granted], majority: usize) -> GrantKind {
    let before = || held.iter().filter(|granted| granted.kind != GrantKind::New);
    let is_deeper = before().any(|granted| granted.kind == GrantKind::Reentered);
    match before().count() >= majority {
        false => GrantKind::New,
        true if is_deeper => GrantKind::Reentered,
        true => GrantKind::Replayed,
    }
}
