//! Renewing a claim, and having each node brought to what a majority has renewed. What a node does for that is in `part`, and
//! what it gets in `restoring`.

mod each;
mod part;
mod votes;

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use self::part::{RenewalDecision, RenewalPart};
use self::votes::{
    agree_on_terms, agreed_fences, extended, has_extended, is_decided, refusal, rest_max,
    withdrawable_by,
};
use super::Core;
use super::answers::{ByNode, NodeAnswers};
use super::busy::BusyTries;
use super::late_changes::of_change;
use super::recording::{RECORDINGS_MAX, changes, fences_above};
use super::restoring::{Decided, fences};
use super::{lease, merge, not_held};
use crate::domain::{Fence, LockNames, RenewOptions, Renewal, Renewed, Token};
use crate::store::assignment::Assigned;
use crate::store::memory::wall_time;
use crate::store::{Fault, StoreError, StoreResult};
use crate::telemetry::traces;

impl Core {
    /// Renews, and does so again if another request of the claim is deciding on other tokens. If each lock is held by a
    /// majority, but no majority has all by the answers, each is extended where it is held: together no majority would extend them.
    pub(super) async fn renew(
        &self,
        names: &LockNames,
        token: Token,
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let mut tries = BusyTries::default();
        loop {
            let renewed = match self.renew_together(names, token, change, deadline).await {
                Ok(Renewed::NotHolder(lost)) if lost.is_empty() => {
                    self.renew_each((names, token), change, deadline).await
                }
                renewed => renewed,
            };
            if !tries.again(&renewed, deadline).await {
                return renewed;
            }
        }
    }

    /// Renews at the nodes that have all locks.
    pub(super) async fn renew_together(
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
        let (sender, answers) = NodeAnswers::waiting_for(rest_max, self.nodes.all().len());
        for (index, part) in self.parts((names, token), options, nodes_deadline, &decided) {
            let sender = sender.clone();
            // The renewal may have been decided without this node.
            let run = part.run(move |answer| drop(sender.send((index, answer))));
            tokio::spawn(traces::inherit(run));
        }
        drop(decided);
        let votes = match change.ttl {
            None => answers.until(deadline, is_decided).await,
            Some(_) => answers.of_all(nodes_deadline).await,
        };
        if !has_extended(&votes) {
            if not_held::has_ended(&votes, names) {
                let ran_out = not_held::merged(&votes)
                    .iter()
                    .any(|lost| lost.reason.ran_out());
                decision.send_replace(RenewalDecision::Ended { ran_out });
            }
            return refusal(&votes);
        }
        let renewals = self.renewals(&votes);
        let decided =
            self.with_decided_tokens((names, token), &votes, renewals, &decision, deadline);
        let renewals = decided.await?;
        let is_agreed = agree_on_terms(&votes);
        self.conclude((names, token), &renewals, is_agreed, begun, &decision)?;
        Ok(Renewed::Extended(renewals))
    }

    /// The parts of the nodes in a renewal.
    fn parts<'a>(
        &'a self,
        (names, token): (&'a LockNames, Token),
        options: RenewOptions,
        deadline: Instant,
        decision: &'a watch::Receiver<RenewalDecision>,
    ) -> impl Iterator<Item = (usize, RenewalPart)> + 'a {
        self.nodes.in_turn(token).map(move |at_node| {
            let part = RenewalPart {
                node: at_node.store,
                turn: at_node.turn,
                follow_ups: at_node.follow_ups,
                token_lead: at_node.token_lead,
                names: names.clone(),
                token,
                options,
                deadline,
                decision: decision.clone(),
            };
            (at_node.index, part)
        })
    }

    /// The same renewals with tokens that a majority has.
    async fn with_decided_tokens(
        &self,
        claim: (&LockNames, Token),
        votes: &ByNode<Renewed>,
        mut renewals: Vec<Renewal>,
        decision: &watch::Sender<RenewalDecision>,
        deadline: Instant,
    ) -> StoreResult<Vec<Renewal>> {
        let fences = match agreed_fences(votes) {
            Some(agreed) => agreed,
            None => {
                decision.send_replace(RenewalDecision::Counted);
                self.settle(claim, votes, &renewals, deadline).await?
            }
        };
        for (renewal, fence) in renewals.iter_mut().zip(fences) {
            renewal.lease.holder.fence = fence;
        }
        Ok(renewals)
    }

    /// Tells the nodes what was decided, unless the leases have run out since they were asked.
    fn conclude(
        &self,
        claim: (&LockNames, Token),
        renewals: &[Renewal],
        is_agreed: bool,
        begun: Instant,
        decision: &watch::Sender<RenewalDecision>,
    ) -> StoreResult<()> {
        let is_over = |renewal: &Renewal| renewal.lease.holder.expires_in <= begun.elapsed();
        if renewals.iter().any(is_over) {
            let detail = "the leases were extended too late";
            return Err(StoreError::unknown(Fault::Timeout, detail));
        }
        if let Some(renewal) = renewals.first().filter(|it| it.options.is_of_stream) {
            self.attempts.keep(claim.1, renewal.lease.ttl.get());
        }
        if let Some(decided) = self.decided(claim, renewals, is_agreed, begun) {
            decision.send_replace(RenewalDecision::Extended(Arc::new(decided)));
        }
        Ok(())
    }

    /// The renewals that a majority has carried out, as the holder is told of them, with the largest tokens that the nodes
    /// report.
    fn renewals(&self, votes: &ByNode<Renewed>) -> Vec<Renewal> {
        let withdrawable_by = withdrawable_by(votes);
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
            Some(Renewal {
                lease,
                remaining_before: drift.without(before),
                options: lease::options(majority, of_lock().map(|renewal| renewal.options)),
                withdrawable_by,
            })
        });
        merged.collect()
    }

    /// Has the largest tokens recorded by a majority, whose nodes have the leases with different ones. A token that no
    /// majority has may be larger than those of later holders, and must not be reported. Nobody waits for a slow node: it gets
    /// the tokens as one that was away does.
    async fn settle(
        &self,
        claim: (&LockNames, Token),
        votes: &ByNode<Renewed>,
        renewals: &[Renewal],
        deadline: Instant,
    ) -> StoreResult<Vec<Fence>> {
        let unsettled = || {
            let detail = "nodes have the leases with different fencing tokens";
            StoreError::unknown(Fault::Busy, detail)
        };
        let decided_so_far = self.decided(claim, renewals, false, Instant::now());
        let follower = Arc::new(decided_so_far.ok_or_else(unsettled)?);
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
        claim: (&LockNames, Token),
        renewals: &[Renewal],
        is_agreed: bool,
        asked_at: Instant,
    ) -> Option<Decided> {
        let (nodes, renewals) = (&self.nodes, renewals.to_vec());
        Decided::new(nodes, self.drift, claim, renewals, is_agreed, asked_at)
    }
}
