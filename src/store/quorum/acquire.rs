//! Acquiring from a quorum: rounds until one decides, with pauses of random length, so that contenders that got some nodes
//! each do not meet again.

use std::collections::HashMap;
use std::iter::zip;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use super::Core;
use super::answers::{ByNode, Effect};
use super::grants::{
    agree_on_terms, agreed_fences, counted, fences, merged, still_held, were_held,
};
use super::late_changes::{may_re_enter, of_acquire};
use super::recording::{RECORDINGS_MAX, Recording, fences_above, recorded, taken};
use super::restoring::HeldBefore;
use super::round::{Ask, Round};
use super::verdict::{self, Verdict, judge, waiting_at};
use crate::backoff::{Backoff, jittered, up_to};
use crate::domain::{
    Acquired, Attempt, Claim, Fence, GrantKind, Granted, LockName, LockState, LockView, Mode,
    QueueRequest, RenewOptions, Renewed,
};
use crate::store::memory::wall_time;
use crate::store::{Fault, StoreError, StoreResult};

/// The most rounds of one request.
const ROUNDS_MAX: usize = 12;

/// The shortest pause before the next round.
const PAUSE_MIN: Duration = Duration::from_millis(4);

/// The longest, whose half is added at random.
const PAUSE_MAX: Duration = Duration::from_millis(160);

/// How a round ended.
enum RoundEnd {
    Granted(Granted),
    Answered(Acquired),
    /// Nodes have different locks of it, of which a majority may have each.
    Partly {
        /// What to answer if they do not. None if the nodes that have none of them then grant the locks anew.
        otherwise: Option<Acquired>,
    },
    /// Nothing has a majority, or the claim has lost what it had.
    Lost {
        /// What to answer if it is so in the last round too.
        answer: Option<Acquired>,
        /// The place in the queues that nodes have it at, if some do.
        place: Option<u64>,
    },
    /// The claim may hold the locks already: a node that has failed may have its leases.
    Unclear(Fault),
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
        self.attempts.keep(claim.token, Duration::ZERO);
        let mut pauses = Backoff::default();
        let mut last = None;
        let mut known_place = None;
        let mut was_partial = false;
        let mut longest = Duration::ZERO;
        for _ in 0..ROUNDS_MAX {
            let begun = Instant::now();
            let mut ask = Ask {
                claim: Arc::clone(&at_nodes),
                requested: attempt,
                attempt: self.attempts.at_nodes(claim.token, attempt),
                request: request.copied(),
                deadline: of_acquire(claim, deadline),
                ends: deadline,
                now_us: wall_time().unix_us(),
            };
            if let Some(place) = known_place {
                // A node that has granted the locks, and has taken that back, does not know the place any more.
                ask.take_place(place);
            }
            match self.round(&ask, was_partial).await {
                Ok(RoundEnd::Granted(granted)) => {
                    if claim.takes_over {
                        // The stream releases what all of its attempts at the nodes may have left there.
                        let lasts = granted.leases.iter().map(|lease| lease.ttl.get()).max();
                        self.attempts.keep(claim.token, lasts.unwrap_or_default());
                    }
                    return Ok(Acquired::Granted(granted));
                }
                Ok(RoundEnd::Answered(Acquired::Waiting(mut waiting))) => {
                    // A node that took back a grant forgets the place of this request, which lost none.
                    waiting.restored &= request.is_some_and(|it| it.ticket.is_some());
                    return Ok(Acquired::Waiting(waiting));
                }
                Ok(RoundEnd::Answered(answer)) => return Ok(answer),
                Ok(RoundEnd::Partly { otherwise }) => {
                    let is_held = was_partial || self.bring_back(claim, deadline).await?;
                    if let Some(answer) = otherwise.filter(|_| !is_held) {
                        return Ok(answer);
                    }
                    was_partial = true;
                    let detail = "nodes have different locks of the claim";
                    last = Some(Err(StoreError::unknown(Fault::Busy, detail)));
                }
                Ok(RoundEnd::Lost { answer, place }) => {
                    last = answer.map(Ok);
                    known_place = place.or(known_place);
                }
                Ok(RoundEnd::Unclear(fault)) => last = Some(Err(may_hold(fault))),
                // Nothing was granted. What the round before has found says more than that there was no time for this one.
                Err(StoreError::Unavailable { .. })
                    if last.is_some() && Instant::now() >= deadline =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
            longest = longest.max(begun.elapsed());
            let pause = pauses.next(PAUSE_MIN, PAUSE_MAX);
            let pause = jittered(pause / 2) + up_to(pause);
            // A round that has no time to end would leave it unclear whether the claim was granted, although it is known that
            // it was not. It may take longer than those before.
            let takes = last.as_ref().map_or(Duration::ZERO, |_| longest * 2);
            if Instant::now() + pause + takes > deadline {
                break;
            }
            sleep(pause).await;
        }
        last.unwrap_or_else(|| {
            let detail = "contenders have kept each other from a majority";
            Err(StoreError::unavailable(Fault::Busy, detail))
        })
    }

    /// Brings leases that a majority has to the nodes that lack them, as a renewal does. Returns whether the claim has all. It
    /// does nothing for a request that contradicts the leases, which changes nothing.
    async fn bring_back(&self, claim: &Claim, deadline: Instant) -> StoreResult<bool> {
        let views = claim.names.iter().map(|name| self.inspect(name, deadline));
        let views = try_join_all(views).await?;
        let contradicts = |(name, view): (&LockName, &LockView)| match &view.state {
            LockState::Held(holders) => {
                let mut listed = holders.listed.iter();
                let digest = claim.token.digest(name);
                listed.any(|holder| holder.claim == digest && holder.mode != claim.mode)
            }
            LockState::Free | LockState::Cooling { .. } => false,
        };
        if zip(claim.names.iter(), &views).any(contradicts) {
            return Ok(false);
        }
        let options = RenewOptions::AS_BEFORE;
        let renewed = self
            .renew(&claim.names, claim.token, options, deadline)
            .await;
        Ok(matches!(renewed?, Renewed::Extended(_)))
    }

    /// One round. If the claim is not granted, what nodes have granted is rolled back. `was_partial` says whether nodes that have
    /// different locks of the claim have got back what they lack, as far as they can.
    async fn round(&self, ask: &Ask, was_partial: bool) -> StoreResult<RoundEnd> {
        let begun = Instant::now();
        let (mut round, [votes, votes_at_place]) = Round::begin(&self.nodes, &self.attempts, ask);
        let mut votes = match may_re_enter(&ask.claim) {
            true => votes.of_all(ask.deadline).await,
            false => votes.until(ask.deadline, verdict::is_decided).await,
        };
        let mut verdict = judge(self.drift, &votes);
        let mut place = None;
        if let Verdict::Unplaced(sequence) = verdict {
            place = Some(sequence);
            round.place(sequence);
            votes = votes_at_place.until(ask.ends, verdict::is_decided).await;
            verdict = judge(self.drift, &votes);
        }
        if let Verdict::Answered(Acquired::Waiting(waiting)) = &verdict {
            place = Some(waiting.ticket.sequence);
        }
        let end = match verdict {
            Verdict::Granted(_) if !was_partial && verdict::may_have_each(&votes) => {
                Ok(RoundEnd::Partly { otherwise: None })
            }
            Verdict::Granted(decided) => {
                let second = self.second_phase(&mut round, &votes, decided, ask.claim.mode);
                match second.await {
                    Ok(Some(granted)) if is_alive(&granted, begun) => {
                        let held_before = self.held_before(ask, &votes, &granted, begun);
                        round.keep(&fences(&granted), held_before);
                        return Ok(RoundEnd::Granted(granted));
                    }
                    Ok(Some(_)) => {
                        let detail = "the locks were granted too late, and are released again";
                        Err(StoreError::unavailable(Fault::Timeout, detail))
                    }
                    Ok(None) => Ok(RoundEnd::Lost {
                        answer: None,
                        place: verdict::place_known(&votes),
                    }),
                    Err(error) => Err(error),
                }
            }
            // It has the place at as many nodes as it could get it.
            Verdict::Unplaced(_) => Ok(RoundEnd::Answered(waiting_at(&votes))),
            Verdict::Answered(answer) if verdict::lack_different_locks(&votes) => {
                let otherwise = Some(answer);
                Ok(RoundEnd::Partly { otherwise })
            }
            Verdict::Answered(answer) => Ok(RoundEnd::Answered(answer)),
            Verdict::Split(answer) => Ok(RoundEnd::Lost {
                answer: Some(answer),
                place: verdict::place_known(&votes),
            }),
            Verdict::Unclear => Ok(RoundEnd::Unclear(votes.fault())),
            Verdict::Failed(error) => Err(error),
        };
        round.roll_back(place);
        if may_hold_somewhere(&votes) {
            ask.rename(&self.attempts);
        }
        end
    }

    /// What nodes get that do not have leases as the claim held them before; none for a new grant.
    fn held_before(
        &self,
        ask: &Ask,
        votes: &ByNode<Acquired>,
        granted: &Granted,
        asked_at: Instant,
    ) -> Option<HeldBefore> {
        if granted.kind == GrantKind::New {
            return None;
        }
        // Also of nodes that have lost them since: what was told is without those.
        let held: Vec<_> = counted(votes).collect();
        let granted = merged(self.drift, votes.majority(), &held, &fences(granted))?;
        Some(HeldBefore {
            nodes: Arc::clone(&self.nodes),
            drift: self.drift,
            names: ask.claim.names.clone(),
            token: ask.claim.token,
            granted,
            is_agreed: agree_on_terms(votes),
            asked_at,
        })
    }

    /// Has the decided tokens recorded by a majority that still holds the claim's leases, or larger ones if other claims
    /// that share the locks may have them. Returns nothing if there is none.
    async fn second_phase(
        &self,
        round: &mut Round,
        votes: &ByNode<Acquired>,
        mut decided: Vec<Fence>,
        mode: Mode,
    ) -> StoreResult<Option<Granted>> {
        let (majority, were_held) = (votes.majority(), were_held(votes));
        let limit = match mode {
            Mode::Shared(share) => share.limit(),
            Mode::Exclusive => None,
        };
        if limit.is_none() && agreed_fences(votes).is_some() {
            // A majority has these tokens already.
            let held: Vec<_> = counted(votes).collect();
            return Ok(merged(self.drift, majority, &held, &decided));
        }
        for _ in 0..RECORDINGS_MAX {
            let recordings = round.record(&decided, were_held).await;
            if recorded(&recordings).count() >= majority {
                if exceeds(limit, &recordings) {
                    return Ok(None);
                }
                let held = still_held(votes, &recordings);
                return Ok(merged(self.drift, majority, &held, &decided));
            }
            if !recordings.has_majority() {
                return Err(recordings.no_majority(Effect::MayBeDone));
            }
            match fences_above(&decided, taken(&recordings)) {
                Some(larger) => decided = larger,
                None => break,
            }
        }
        Ok(None)
    }
}

/// The error of a claim that may hold its locks since an earlier request.
fn may_hold(fault: Fault) -> StoreError {
    let detail =
        "a node that does not answer may have the claim's leases, so it may hold the locks already";
    StoreError::unknown(fault, detail)
}

/// Whether the holder has something of its leases. The time counts from before the nodes were asked, and is checked after
/// their last answer, since any of them may have taken longer than the lease.
fn is_alive(granted: &Granted, begun: Instant) -> bool {
    let elapsed = begun.elapsed();
    let mut leases = granted.leases.iter();
    leases.all(|lease| lease.holder.expires_in > elapsed)
}

/// Whether some node may have granted the locks, or may yet: it refuses the attempt from now on.
fn may_hold_somewhere(votes: &ByNode<Acquired>) -> bool {
    votes.0.iter().any(|vote| match vote {
        Some(Ok(answer)) => matches!(answer, Acquired::Granted(_)),
        Some(Err(error)) => matches!(error, StoreError::Unknown { .. }),
        // Its own part in the round finds that out later.
        None => false,
    })
}

/// Whether claims hold more permits together than there are.
///
/// A limit of two or more is not kept by majorities alone: of three claims, each may have two of three nodes, and no node
/// more than two claims. But each has been granted by its majority before it asks a majority who holds. The last of them
/// to ask sees all others, since their majorities and its own have a node in common.
fn exceeds(limit: Option<u32>, recordings: &ByNode<Recording>) -> bool {
    let Some(limit) = limit else {
        return false;
    };
    let at_nodes = || recorded(recordings);
    let locks = at_nodes().map(Vec::len).max().unwrap_or_default();
    (0..locks).any(|lock| {
        let mut users: HashMap<[u8; 16], u32> = HashMap::new();
        for used in at_nodes().filter_map(|locks| locks.get(lock)).flatten() {
            let most = users.entry(used.user).or_default();
            *most = used.permits.max(*most);
        }
        let taken: u64 = users.into_values().map(u64::from).sum();
        taken > u64::from(limit)
    })
}
