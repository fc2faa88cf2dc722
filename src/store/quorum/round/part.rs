//! The part of one node in a round.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep};

use super::super::attempts::Attempts;
use super::super::decision::{Decision, Kept};
use super::super::drift::{TOO_FAR_AHEAD, TokenLead};
use super::super::follow_ups::{FollowUps, confirm};
use super::super::grants::fences;
use super::super::late_changes::of_acquire;
use super::super::nodes::{NodeStore, answered_by};
use super::super::recording::{Recording, changes};
use super::super::restoring::HeldBefore;
use super::super::turns::NodeTurn;
use super::Ask;
use crate::domain::{Acquired, Claim, Fence, GrantKind, HoldCount, Rollback};
use crate::store::assignment::{Assigned, FenceChange};
use crate::store::{Fault, StoreError, StoreResult};

/// When a node that did not grant what a majority has granted is asked again: what was in the way there is mostly the lease
/// of a contender that is being rolled back.
const CATCH_UP_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(150)];

/// How long a node may take to get leases back.
const RESTORE_MAX: Duration = Duration::from_secs(2);

/// How long one step of catching up may take.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);

/// The part of one node.
pub(super) struct RoundPart {
    pub(super) index: usize,
    pub(super) node: NodeStore,
    pub(super) turn: NodeTurn,
    pub(super) follow_ups: FollowUps,
    pub(super) token_lead: TokenLead,
    pub(super) attempts: Attempts,
    pub(super) ask: Ask,
    pub(super) decision: watch::Receiver<Decision>,
}

impl RoundPart {
    /// Takes part in the round at one node, from the request to the end that was decided.
    pub(super) async fn run(
        mut self,
        vote: impl FnOnce(StoreResult<Acquired>) + Send,
        vote_again: impl FnOnce(StoreResult<Acquired>) + Send,
    ) {
        let mut answer = self.acquire().await;
        let mut may_hold = may_hold(&answer);
        vote(answer.clone());
        // The majority does not wait for a node that has not answered.
        let follow_up = answer.is_err().then(|| self.follow_ups.begin());
        if let Some(None) = follow_up {
            return;
        }
        let follow_up = follow_up.flatten();
        self.turn.begins().await;
        let mut decision = self.decided(0).await;
        if let Decision::Place(sequence) = decision {
            self.ask.take_place(sequence);
            self.ask.deadline = of_acquire(&self.ask.claim, self.ask.ends);
            answer = self.acquire().await;
            may_hold |= self::may_hold(&answer);
            vote_again(answer.clone());
            decision = self.decided(1).await;
        }
        let granted = match &answer {
            Ok(Acquired::Granted(granted)) => Some(granted.clone()),
            Ok(_) | Err(_) => None,
        };
        let mut present = granted.as_ref().map(fences);
        while let Decision::Assign(assignment) = &decision {
            let decided = &assignment.decided;
            let counts = granted.as_ref().is_some_and(|it| assignment.counts(it));
            let recording = match present.as_ref().filter(|_| counts) {
                Some(present) => self.record(present, decided).await,
                None => Ok(Recording::NotHeld),
            };
            if let Ok(Recording::Recorded(_)) = recording {
                present = Some(decided.to_vec());
            }
            // The round may be over before a node answers.
            let _ = assignment.answers.send((self.index, recording));
            decision = self.decided(decision.stage()).await;
        }
        match decision {
            Decision::Keep(Kept {
                held_before: Some(held),
                ..
            }) if !granted.as_ref().is_some_and(|granted| held.is_had(granted)) => {
                if may_hold {
                    self.restore(&held, follow_up).await;
                }
            }
            // A node that has the tokens that were decided has nothing to catch up with.
            Decision::Keep(kept) if present.as_deref() != Some(&*kept.decided) => {
                if let Some(_permit) = follow_up.or_else(|| self.follow_ups.begin()) {
                    self.catch_up(present, &kept).await;
                }
            }
            Decision::Keep(_) => {}
            Decision::RollBack(place) => self.end(may_hold, &answer, place, follow_up).await,
            Decision::Open | Decision::Place(_) | Decision::Assign(_) => {
                self.end(may_hold, &answer, None, follow_up).await;
            }
        }
    }

    /// Ends the part of a node in a round that has granted nothing. `follow_up` is its permit to go on alone, if it has one.
    async fn end(
        &mut self,
        may_hold: bool,
        answer: &StoreResult<Acquired>,
        place: Option<u64>,
        follow_up: Option<OwnedSemaphorePermit>,
    ) {
        if may_hold {
            // The next round, or the next poll of a request that waits, asks this node again.
            self.ask.rename(&self.attempts);
            if let Some(_permit) = follow_up.or_else(|| self.follow_ups.begin()) {
                self.roll_back().await;
            }
            return;
        }
        // A node that was late still has the claim at a place of its own.
        let (Ok(Acquired::Waiting(waiting)), Some(place)) = (answer, place) else {
            return;
        };
        if waiting.ticket.sequence != place {
            self.ask.take_place(place);
            self.ask.deadline = Instant::now() + CATCH_UP_MAX;
            let answer = self.acquire().await;
            if self::may_hold(&answer) {
                self.roll_back().await;
            }
        }
    }

    async fn acquire(&mut self) -> StoreResult<Acquired> {
        let Ask {
            claim,
            attempt,
            request,
            deadline,
            now_us,
            requested: _,
            ends: _,
        } = self.ask.clone();
        let in_turn = async {
            self.turn.begins().await;
            let answer = self
                .node
                .acquire(&claim, attempt, request.as_ref(), deadline);
            answer.await
        };
        let answer = answered_by(deadline, in_turn).await?;
        let Acquired::Granted(granted) = &answer else {
            return Ok(answer);
        };
        if self.token_lead.is_too_far(&granted.leases, now_us) {
            self.roll_back().await;
            return Err(StoreError::unavailable(Fault::Corrupt, TOO_FAR_AHEAD));
        }
        Ok(answer)
    }

    async fn record(&self, present: &[Fence], decided: &[Fence]) -> StoreResult<Recording> {
        let changes = changes(present, decided, false, Some(self.ask.attempt));
        Ok(match self.assign(&changes, self.ask.ends).await? {
            Assigned::Held(permits_used) => Recording::Recorded(permits_used),
            Assigned::NotHeld => Recording::NotHeld,
            Assigned::Taken(counters) => Recording::Taken(counters),
        })
    }

    async fn assign(&self, changes: &[FenceChange], deadline: Instant) -> StoreResult<Assigned> {
        let assigned = self.node.assign_fences(&self.ask.claim, changes, deadline);
        answered_by(deadline, assigned).await
    }

    /// The next decision after one of this stage. A round whose request is gone is rolled back.
    async fn decided(&mut self, stage: u8) -> Decision {
        let is_next = |decision: &Decision| decision.stage() > stage;
        let decision = self.decision.wait_for(is_next).await;
        decision.map_or(Decision::RollBack(None), |decision| decision.clone())
    }

    /// Brings the node to what a majority has decided, in which it has no part yet.
    async fn catch_up(&self, mut proposed: Option<Vec<Fence>>, kept: &Kept) {
        // The claim has its locks, whoever waits for them here. How deep, a renewal brings: by now it may have been
        // answered that it stepped back.
        let claim = Claim {
            fair: false,
            hold_count: HoldCount::ONE,
            ..Claim::clone(&self.ask.claim)
        };
        let decided = &*kept.decided;
        let to_decided =
            |present: &[Fence]| changes(present, decided, true, Some(self.ask.attempt));
        for pause in CATCH_UP_PAUSES {
            let deadline = Instant::now() + CATCH_UP_MAX;
            if let Some(present) = &proposed {
                match self.assign(&to_decided(present), deadline).await {
                    Ok(Assigned::Held(_) | Assigned::Taken(_)) => return,
                    // It has lost what it had granted, or a later attempt has received that.
                    Ok(Assigned::NotHeld) if kept.held_before.is_none() => proposed = None,
                    // It gets a lease of before, and its token, by a renewal.
                    Ok(Assigned::NotHeld) => return,
                    Err(_) => {}
                }
            }
            if proposed.is_none() {
                sleep(pause).await;
                let again = self.node.acquire(&claim, self.ask.attempt, None, deadline);
                if let Ok(Acquired::Granted(granted)) = answered_by(deadline, again).await {
                    let present = fences(&granted);
                    let is_larger = present.iter().zip(decided).any(|(has, it)| has > it);
                    if granted.kind != GrantKind::New && is_larger {
                        // Another attempt has got it here, and its process may have decided on this token since.
                        return;
                    }
                    proposed = Some(present);
                }
            }
        }
        if let Some(proposed) = &proposed {
            // A node that does not answer keeps the token that it proposed, until a renewal finds it.
            let deadline = Instant::now() + CATCH_UP_MAX;
            let _ = self.assign(&to_decided(proposed), deadline).await;
        }
    }

    /// Brings a node that does not have the leases as a majority has them to that. It may have been granted them by this request:
    /// its `max_hold` would begin anew there, and so would what else it asks for. `follow_up` is a permit to go on alone, if there is
    /// one.
    async fn restore(&self, held: &HeldBefore, follow_up: Option<OwnedSemaphorePermit>) {
        let Some(_permit) = follow_up.or_else(|| self.follow_ups.begin()) else {
            return;
        };
        let deadline = Instant::now() + RESTORE_MAX;
        let attempt = self.ask.attempt;
        let restored = held.restore(&self.node, &self.token_lead, attempt, deadline);
        // If the node fails now, a renewal does the same.
        let _ = answered_by(deadline, restored).await;
    }

    /// Rolls back what the node has granted, or may yet grant, until it has confirmed that or the lease has ended.
    async fn roll_back(&self) {
        let until = Instant::now() + self.ask.claim.ttl.get();
        confirm(until, |try_until| {
            let (node, ask) = (Arc::clone(&self.node), self.ask.clone());
            Box::pin(async move {
                let withdrawn = node.withdraw(&ask.claim, ask.attempt, Rollback::Undo, try_until);
                withdrawn.await
            })
        })
        .await;
    }
}

/// Whether the node may have granted the locks, or may yet.
fn may_hold(answer: &StoreResult<Acquired>) -> bool {
    match answer {
        Ok(answer) => matches!(answer, Acquired::Granted(_)),
        Err(error) => matches!(error, StoreError::Unknown { .. }),
    }
}
