//! Renewing each lock of a claim on its own, because nodes have different ones. All nodes extend what they have at once, so that
//! no lease runs out while others are brought to the nodes that lack them.

use std::iter::zip;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::Core;
use super::super::answers::{ByNode, Effect, LATE_ANSWERS_MAX, NodeAnswers};
use super::super::part_held::PartHeld;
use super::part::RenewalDecision;
use super::votes::{agree_on_terms, agreed_fences, extended, has_extended};
use crate::domain::{LockNames, RenewOptions, Renewed, Token};
use crate::store::{Fault, StoreError, StoreResult};
use crate::telemetry::traces;

impl Core {
    /// Extends each lock at the nodes that have it, and then brings it to the others. A change is made by none or by all, so it is
    /// left to a renewal of all together, which a majority can carry out after this.
    pub(super) async fn renew_each(
        &self,
        claim: (&LockNames, Token),
        change: RenewOptions,
        deadline: Instant,
    ) -> StoreResult<Renewed> {
        let options = RenewOptions {
            rollback_right: change.rollback_right,
            ..RenewOptions::default()
        };
        let begun = Instant::now();
        let (decision, decided) = watch::channel(RenewalDecision::Open);
        let (sender, answers) = NodeAnswers::waiting_for(rest_max, self.nodes.all().len());
        for (index, part) in self.parts(claim, options, deadline, &decided) {
            let sender = sender.clone();
            // The renewal may have been decided without this node.
            let run = part.run_in_part(move |answer| drop(sender.send((index, answer))));
            tokio::spawn(traces::inherit(run));
        }
        drop(decided);
        let votes = answers.until(deadline, are_decided).await;
        let by_lock: Vec<_> = by_lock(&votes).collect();
        if !votes.has_majority() || !by_lock.iter().all(has_extended) {
            let all_have_answered = votes.received().count() == votes.0.len();
            return Err(match all_have_answered || have_outcomes(&votes) {
                // A lease has ended since. A renewal of all tells which.
                true => not_together(),
                false => votes.no_majority(Effect::MayBeDone),
            });
        }
        let renewals = zip(claim.0.iter(), &by_lock).map(async |(name, votes)| {
            let one = (&LockNames::from(name.clone()), claim.1);
            let renewals = self.renewals(votes);
            self.with_decided_tokens(one, votes, renewals, &decision, deadline)
                .await
        });
        let renewals: Vec<_> = try_join_all(renewals)
            .await?
            .into_iter()
            .flatten()
            .collect();
        let is_agreed = by_lock.iter().all(agree_on_terms);
        self.conclude(claim, &renewals, is_agreed, begun, &decision)?;
        match change.ttl.is_some() || change.mode.is_some() {
            true => Err(not_together()),
            false => Ok(Renewed::Extended(renewals)),
        }
    }
}

fn not_together() -> StoreError {
    let detail = "a majority of the nodes has each lock of the request, but no majority has all";
    StoreError::unknown(Fault::Busy, detail)
}

/// The answers for each lock.
fn by_lock(votes: &ByNode<PartHeld>) -> impl Iterator<Item = ByNode<Renewed>> {
    let locks = votes.received().map(Vec::len).max().unwrap_or_default();
    (0..locks).map(|lock| {
        let renewed = |held: &PartHeld| match held.get(lock) {
            Some(Some(renewal)) => Renewed::Extended(vec![renewal.clone()]),
            _ => Renewed::NotHolder(Vec::new()),
        };
        let by_node = votes.0.iter();
        ByNode(
            by_node
                .map(|vote| Some(vote.as_ref()?.as_ref().map(renewed).map_err(Clone::clone)))
                .collect(),
        )
    })
}

/// Whether further answers make no difference.
fn are_decided(votes: &ByNode<PartHeld>) -> bool {
    votes.has_majority()
        && by_lock(votes).all(|votes| agreed_fences(&votes).is_some() && agree_on_terms(&votes))
}

/// How long further answers are waited for; none if that is until the deadline.
fn rest_max(votes: &ByNode<PartHeld>) -> Option<Duration> {
    have_outcomes(votes).then_some(LATE_ANSWERS_MAX)
}

/// Whether it is known of each lock whether a majority has it.
fn have_outcomes(votes: &ByNode<PartHeld>) -> bool {
    let has_outcome = |votes: ByNode<Renewed>| {
        let extended = votes.received().filter_map(extended).count();
        let lacking = votes.received().count() - extended;
        extended.max(lacking) >= votes.majority()
    };
    votes.has_majority() && by_lock(votes).all(has_outcome)
}
