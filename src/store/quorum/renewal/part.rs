//! The part of one node in a renewal: it renews, and is brought to what a majority has decided then, or later if it is not
//! ready for that. What it is brought to is in `restoring`.

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::super::answers::LATE_ANSWERS_MAX;
use super::super::drift::TokenLead;
use super::super::follow_ups::FollowUps;
use super::super::late_changes::CHANGE_WITHIN;
use super::super::nodes::{NodeStore, answered_by};
use super::super::part_held::{PartHeld, renew_part_held};
use super::super::restoring::{Decided, Restored};
use super::super::turns::NodeTurn;
use crate::backoff::{Backoff, jittered};
use crate::domain::{LockNames, RenewOptions, Renewed, RollbackRight, Token, Ttl};
use crate::store::StoreResult;

/// How long a node may take to get the lease back.
const RESTORE_MAX: Duration = Duration::from_secs(2);

/// For how long a node is asked again that could not get the lease back. One that was away evicts whom it has to within four
/// seconds of its return, see `follow_ups`, and grants again within five.
const READY_WITHIN: Duration = Duration::from_secs(6);

/// The pauses in between.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a lease lasts at a node that alone has extended it: the shortest time that a node can keep one.
const ENDED: Duration = Duration::from_millis(1);

/// The part of one node in a renewal.
pub(super) struct RenewalPart {
    pub(super) node: NodeStore,
    pub(super) turn: NodeTurn,
    pub(super) follow_ups: FollowUps,
    pub(super) token_lead: TokenLead,
    pub(super) names: LockNames,
    pub(super) token: Token,
    /// As the nodes get them.
    pub(super) options: RenewOptions,
    pub(super) deadline: Instant,
    /// Closed without a decision if it is not known whether the lease goes on.
    pub(super) decision: watch::Receiver<RenewalDecision>,
}

/// What becomes of the lease at all nodes.
#[derive(Clone, Debug)]
pub(super) enum RenewalDecision {
    Open,
    /// A majority has extended it with different tokens, and gets the same ones.
    Counted,
    /// A majority has extended it.
    Extended(Arc<Decided>),
    /// A majority remembers its end, and whether it ran out. What a node has extended is a rest.
    Ended {
        ran_out: bool,
    },
}

/// What a node has answered.
enum Answer {
    /// To a renewal of all locks together.
    Together(Renewed),
    /// To one of those that it has.
    Part(PartHeld),
}

impl RenewalPart {
    /// Takes part in the renewal at one node, from the request until the node has what was decided.
    pub(super) async fn run(mut self, vote: impl FnOnce(StoreResult<Renewed>) + Send) {
        let in_turn = async {
            self.turn.begins().await;
            let renewed = self
                .node
                .renew(&self.names, self.token, self.options, self.deadline);
            renewed.await
        };
        let answer = answered_by(self.deadline, in_turn).await;
        vote(answer.clone());
        match self.decided_after(answer.is_ok()).await {
            Some(RenewalDecision::Extended(decided)) => {
                self.follow(&decided, answer.map(Answer::Together)).await;
            }
            Some(RenewalDecision::Ended { ran_out }) => {
                if let Ok(Renewed::Extended(_)) = answer {
                    self.end_rest(ran_out).await;
                }
            }
            Some(RenewalDecision::Open | RenewalDecision::Counted) | None => {}
        }
    }

    /// The same, but the node extends those of the locks that it has.
    pub(super) async fn run_in_part(mut self, vote: impl FnOnce(StoreResult<PartHeld>) + Send) {
        let in_turn = async {
            self.turn.begins().await;
            let claim = (&self.names, self.token);
            renew_part_held(&self.node, claim, self.options, self.deadline).await
        };
        let answer = answered_by(self.deadline, in_turn).await;
        vote(answer.clone());
        let decision = self.decided_after(answer.is_ok()).await;
        if let Some(RenewalDecision::Extended(decided)) = decision {
            self.follow(&decided, answer.map(Answer::Part)).await;
        }
    }

    /// What was decided after the answer of this node. None if it is not known whether the lease goes on, or if another operation
    /// of the claim follows while that takes long: it does not wait for a node that is slower than others may be.
    async fn decided_after(&mut self, has_answered: bool) -> Option<RenewalDecision> {
        // A node that is known to be away may come back in a moment. Otherwise the next renewal tries again.
        if !has_answered && self.node.health().up {
            return None;
        }
        let is_counted = |decision: &RenewalDecision| !matches!(decision, RenewalDecision::Open);
        let in_time = timeout(LATE_ANSWERS_MAX, self.decision.wait_for(is_counted));
        let is_late = in_time.await.is_err();
        if is_late {
            select! {
                biased;
                counted = self.decision.wait_for(is_counted) => drop(counted.ok()?),
                () = self.turn.is_followed() => return None,
            }
        }
        let is_final = |decision: &RenewalDecision| {
            !matches!(decision, RenewalDecision::Open | RenewalDecision::Counted)
        };
        let decision = self.decision.wait_for(is_final).await.ok()?;
        Some(decision.clone())
    }

    /// Brings the node to what was decided, now or later.
    async fn follow(&mut self, decided: &Decided, answer: StoreResult<Answer>) {
        let wait = match answer {
            Ok(answer) => self.restore(decided, &answer).await,
            Err(_) => Some(Duration::ZERO),
        };
        if let Some(wait) = wait {
            self.restore_later(decided, wait).await;
        }
    }

    /// Brings the node to what was decided, or tells after which wait that is to be tried again. If the node does not answer now,
    /// the next renewal tries again.
    async fn restore(&self, decided: &Decided, answer: &Answer) -> Option<Duration> {
        let _follow_up = self.follow_ups.begin()?;
        let deadline = Instant::now() + RESTORE_MAX;
        let (node, token_lead) = (&self.node, &self.token_lead);
        let restored = async {
            match answer {
                Answer::Together(renewed) => {
                    let restored = decided.restore(node, token_lead, renewed, deadline);
                    restored.await
                }
                Answer::Part(held) => {
                    let restored = decided.restore_rest(node, token_lead, held, deadline);
                    restored.await
                }
            }
        };
        match answered_by(deadline, restored).await {
            Ok(Restored::NotYet(wait)) => Some(wait),
            Ok(Restored::Done) | Err(_) => None,
        }
    }

    /// Tries again at a node that was away and is not ready yet; the first time after this wait. The next operation of this claim
    /// ends that, and does not wait for it. If another process has changed the lease since, it does as much.
    async fn restore_later(&mut self, decided: &Decided, mut wait: Duration) {
        let Some(_follow_up) = self.follow_ups.begin_late_lease() else {
            return;
        };
        let until = Instant::now() + READY_WITHIN;
        // A node that was silent may be busy with an earlier operation.
        if timeout_at(until, self.turn.begins()).await.is_err() {
            return;
        }
        let mut pauses = Backoff::default();
        loop {
            let pause = jittered(pauses.next(PAUSE_MIN, PAUSE_MAX));
            let next = Instant::now() + pause.max(wait);
            if next > until || timeout_at(next, self.turn.is_followed()).await.is_ok() {
                return;
            }
            wait = Duration::ZERO;
            if !self.node.health().up {
                continue;
            }
            let deadline = Instant::now() + CHANGE_WITHIN;
            match answered_by(deadline, self.restore_if_unchanged(decided, deadline)).await {
                Ok(Restored::NotYet(least)) => wait = least,
                Ok(Restored::Done) => return,
                Err(_) => {}
            }
        }
    }

    async fn restore_if_unchanged(
        &self,
        decided: &Decided,
        deadline: Instant,
    ) -> StoreResult<Restored> {
        if !decided.is_unchanged(deadline).await {
            return Ok(Restored::Done);
        }
        // The node may have the lease: another process has put it back, or the renewal did not reach it.
        let options = RenewOptions {
            rollback_right: self.options.rollback_right,
            ..RenewOptions::default()
        };
        let renewed = self
            .node
            .renew(&self.names, self.token, options, deadline)
            .await?;
        decided
            .restore(&self.node, &self.token_lead, &renewed, deadline)
            .await
    }

    /// Ends what this node has extended of a lease that has ended. If the node does not answer, the rest ends with its TTL.
    async fn end_rest(&self, ran_out: bool) {
        let Some(_follow_up) = self.follow_ups.begin() else {
            return;
        };
        let deadline = Instant::now() + RESTORE_MAX;
        if !ran_out {
            // So its `lock_delay` closes nothing here either.
            let released = self.node.release(&self.names, self.token, None, deadline);
            let _ = answered_by(deadline, released).await;
            return;
        }
        // A release could arrive when the claim has the lock again, and would be remembered instead of the end.
        let shorten = RenewOptions {
            ttl: Some(Ttl::from_store(ENDED)),
            rollback_right: RollbackRight::AsBefore,
            ..RenewOptions::default()
        };
        let shortened = self.node.renew(&self.names, self.token, shorten, deadline);
        let _ = answered_by(deadline, shortened).await;
    }
}
