//! Renewing a claim, and having each node brought to what a majority has renewed. What a node does for that is in `part`, and
//! what it gets in `restoring`.

mod part;
mod votes;

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use self::part::{RenewalDecision, RenewalPart};
use self::votes::{
    agree_on_terms, agreed_fences, extended, has_outcome, is_decided, refusal, withdrawable_by,
};
use super::Core;
use super::answers::{ByNode, NodeAnswers};
use super::busy::BusyTries;
use super::late_changes::of_change;
use super::recording::{RECORDINGS_MAX, changes, fences_above};
use super::restoring::{Decided, fences};
use super::{lease, merge, not_held};
use crate::domain::{
    Attempt, Claim, Fence, LockNames, RenewOptions, Renewal, Renewed, RollbackRight, Token,
};
use crate::store::assignment::Assigned;
use crate::store::memory::wall_time;
use crate::store::{Fault, StoreError, StoreResult};
use crate::telemetry::traces;

impl Core {
    /// Renews, and does so again if another request of the claim is deciding on other tokens, or if each lock is held by a
    /// majority, but no majority has all.
    pub(super) async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let mut tries = BusyTries::default();
        loop {
            let renewed = match self.renew_once(names, token, change, deadline).await {
                Ok(Renewed::NotHolder(lost)) if lost.is_empty() => {
                    self.bring_each(names, token, deadline).await?;
                    let detail = "a majority of the nodes has each lock of the request, but no majority has all";
                    Err(StoreError::unknown(Fault::Busy, detail))
                }
                renewed => renewed,
            };
            if !tries.again(&renewed, deadline).await {
                return renewed;
            }
        }
    }

    /// Renews the locks one by one, so that nodes get those that they lack.
    async fn bring_each(
        &self,
        names: &LockNames,
        token: Token,
        deadline: Instant,
    ) -> StoreResult<()> {
        let as_it_is = RenewOptions {
            rollback_right: RollbackRight::AsBefore,
            ..RenewOptions::default()
        };
        for name in names.iter() {
            let name = LockNames::from(name.clone());
            self.renew_once(&name, token, as_it_is, deadline).await?;
        }
        Ok(())
    }

    pub(super) async fn renew_once(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let options = RenewOptions {
            ttl: change.ttl.map(|ttl| self.drift.kept_at_nodes(ttl)),
            ..change
        };
        let begun = Instant::now();
        let nodes_deadline = match change.ttl {
            None => deadline,
            Some(_) => of_change(deadline),
        };
        let (decision, decided) = watch::channel(RenewalDecision::Open);
        let (sender, answers) = NodeAnswers::answered_if(has_outcome, self.nodes.all().len());
        for at_node in self.nodes.in_turn(token) {
            let index = at_node.index;
            let part = RenewalPart {
                node: at_node.store,
                turn: at_node.turn,
                follow_ups: at_node.follow_ups,
                token_lead: at_node.token_lead,
                names: names.clone(),
                token,
                options,
                deadline: nodes_deadline,
                decision: decided.clone(),
            };
            let sender = sender.clone();
            // The renewal may have been decided without this node.
            let run = part.run(move |answer| drop(sender.send((index, answer))));
            tokio::spawn(traces::inherit(run));
        }
        let votes = match change.ttl {
            None => answers.until(deadline, is_decided).await,
            Some(_) => answers.of_all(nodes_deadline).await,
        };
        let majority = self.nodes.majority();
        if votes.received().filter_map(extended).count() < majority {
            if not_held::has_ended(&votes, names) {
                let ran_out = not_held::merged(&votes)
                    .iter()
                    .any(|lost| lost.reason.ran_out());
                decision.send_replace(RenewalDecision::Ended { ran_out });
            }
            return refusal(&votes);
        }
        let withdrawable_by = withdrawable_by(&votes);
        let mut renewals = self.renewals(&votes, withdrawable_by, change.ttl.is_some());
        // A lease that no attempt may roll back stays so at each node: nobody knows a random one.
        let attempt = withdrawable_by.unwrap_or_else(Attempt::random);
        let fences = match agreed_fences(&votes) {
            Some(agreed) => agreed,
            None => {
                self.settle((names, token, attempt), &votes, &renewals, deadline)
                    .await?
            }
        };
        for (renewal, fence) in renewals.iter_mut().zip(fences) {
            renewal.lease.holder.fence = fence;
        }
        let is_over = |renewal: &Renewal| renewal.lease.holder.expires_in <= begun.elapsed();
        if renewals.iter().any(is_over) {
            let detail = "the leases were extended too late";
            return Err(StoreError::unknown(Fault::Timeout, detail));
        }
        if let Some(renewal) = renewals.first().filter(|it| it.is_of_stream) {
            self.attempts.keep(token, renewal.lease.ttl.get());
        }
        let is_agreed = agree_on_terms(&votes);
        if let Some(decided) = self.decided((names, token, attempt), &renewals, is_agreed) {
            decision.send_replace(RenewalDecision::Extended(decided));
        }
        Ok(Renewed::Extended(renewals))
    }

    /// The renewals that a majority has carried out, as the holder is told of them, with the largest tokens that the nodes
    /// report.
    fn renewals(
        &self,
        votes: &ByNode<Renewed>,
        withdrawable_by: Option<Attempt>,
        has_new_ttl: bool,
    ) -> Vec<Renewal> {
        let (drift, majority) = (self.drift, self.nodes.majority());
        let extended: Vec<_> = votes.received().filter_map(extended).collect();
        let largest = merge::largest(extended.iter().map(|renewals| fences(renewals)));
        let merged = largest.into_iter().enumerate().filter_map(|(lock, fence)| {
            let of_lock = || extended.iter().map(|renewals| &renewals[lock]);
            let leases = of_lock().map(|renewal| renewal.lease.clone());
            let mut lease = lease::merged(drift, majority, leases.collect(), fence)?;
            let ttls = of_lock().map(|it| (it.lease.ttl, it.remaining_before));
            let ttl = lease::newest_ttl(majority, &ttls.collect::<Vec<_>>())?;
            lease.ttl = drift.ttl_of_holder(ttl);
            let before = merge::reached_by(majority, of_lock().map(|it| it.remaining_before))?;
            let remaining_before = match has_new_ttl {
                true => drift.without(before),
                false => before.saturating_sub(drift.of(lease.ttl.get())),
            };
            Some(Renewal {
                lease,
                remaining_before,
                limits: lease::limits(of_lock().map(|renewal| renewal.limits)),
                withdrawable_by,
                is_of_stream: of_lock().any(|renewal| renewal.is_of_stream),
            })
        });
        merged.collect()
    }

    /// Has the largest tokens recorded by a majority, whose nodes have the leases with different ones. A token that no
    /// majority has may be larger than those of later holders, and must not be reported. Nobody waits for a slow node: it gets
    /// the tokens as one that was away does.
    async fn settle(
        &self,
        renewed: (&LockNames, Token, Attempt),
        votes: &ByNode<Renewed>,
        renewals: &[Renewal],
        deadline: Instant,
    ) -> StoreResult<Vec<Fence>> {
        let unsettled = || {
            let detail = "nodes have the leases with different fencing tokens";
            StoreError::unknown(Fault::Busy, detail)
        };
        let decided_so_far = self.decided(renewed, renewals, false);
        let follower = decided_so_far.ok_or_else(unsettled)?;
        let now_us = wall_time().unix_us();
        let present = self.nodes.token_leads().zip(&votes.0).map(|(lead, vote)| {
            let renewals = extended(vote.as_ref()?.as_ref().ok()?)?;
            // As in a round, such a node has no vote.
            let is_too_far = lead.is_too_far(renewals.iter().map(|it| &it.lease), now_us);
            (!is_too_far).then(|| fences(renewals))
        });
        let mut present: Vec<_> = present.collect();
        let mut decided = merge::largest(present.iter().flatten().cloned());
        for _ in 0..RECORDINGS_MAX {
            let answers = self.nodes.ask_each(deadline, |index, node| {
                let (follower, present) = (Arc::clone(&follower), present[index].as_ref());
                let changes = present.map(|present| changes(present, &decided, false, None));
                Box::pin(async move {
                    let Some(changes) = changes else {
                        return Ok(Assigned::NotHeld);
                    };
                    let assigned = node.assign_fences(&follower.claim, &changes, deadline);
                    assigned.await
                })
            });
            let held = |answers: &ByNode<Assigned>| {
                let held = answers.received();
                held.filter(|it| matches!(it, Assigned::Held(_))).count()
            };
            let majority = self.nodes.majority();
            let is_decided = |answers: &ByNode<Assigned>| {
                held(answers) >= majority || held(answers) + answers.missing() < majority
            };
            let answers = answers.until(deadline, is_decided).await;
            if held(&answers) >= majority {
                return Ok(decided);
            }
            for (index, answer) in answers.by_index() {
                if let Assigned::Held(_) = answer {
                    present[index] = Some(decided.clone());
                }
            }
            let taken = answers.received().filter_map(|answer| match answer {
                Assigned::Taken(counters) => Some(&counters[..]),
                Assigned::Held(_) | Assigned::NotHeld => None,
            });
            decided = fences_above(&decided, taken).ok_or_else(unsettled)?;
        }
        Err(unsettled())
    }

    /// What nodes need to take part again.
    fn decided(
        &self,
        (names, token, attempt): (&LockNames, Token, Attempt),
        renewals: &[Renewal],
        is_agreed: bool,
    ) -> Option<Arc<Decided>> {
        let first = renewals.first()?;
        let lease = &first.lease;
        let claim = Claim {
            mode: lease.holder.mode,
            // The claim has its locks, whoever waits for them there.
            fair: false,
            hold_count: lease.holder.hold_count,
            owner: lease.holder.owner.clone(),
            metadata: lease.holder.metadata.clone(),
            ..Claim::plain(names.clone(), token, lease.ttl)
        };
        // The nodes have reported their own times, which have the allowance.
        let limits = first.limits;
        Some(Arc::new(Decided {
            claim: Claim {
                min_hold: limits.min_hold_left,
                max_hold: limits.max_hold_left,
                lock_delay: limits.lock_delay,
                takes_over: first.is_of_stream,
                ..self.drift.claim_at_nodes(&claim)
            },
            attempt,
            is_withdrawable: first.withdrawable_by.is_some(),
            leases: renewals.iter().map(|it| it.lease.clone()).collect(),
            since: Instant::now(),
            is_agreed,
            nodes: Arc::clone(&self.nodes),
            drift: self.drift,
        }))
    }
}
