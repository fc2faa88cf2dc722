//! What the answers of the nodes to a renewal mean together.

use std::time::Duration;

use super::super::answers::{ByNode, Effect, LATE_ANSWERS_MAX};
use super::super::late_changes::CHANGE_WITHIN;
use super::super::restoring::fences;
use super::super::{lease, merge, not_held};
use crate::domain::{Attempt, Fence, Renewal, Renewed};
use crate::store::StoreResult;

/// The leases that a node has extended.
pub(super) fn extended(renewed: &Renewed) -> Option<&Vec<Renewal>> {
    match renewed {
        Renewed::Extended(renewals) => Some(renewals),
        Renewed::NotHolder(_) | Renewed::Mismatched(_) => None,
    }
}

/// Whether a majority has extended the leases.
pub(super) fn has_extended(votes: &ByNode<Renewed>) -> bool {
    votes.received().filter_map(extended).count() >= votes.majority()
}

/// Whether further answers make no difference.
pub(super) fn is_decided(votes: &ByNode<Renewed>) -> bool {
    let refused = votes.received().filter(|vote| extended(vote).is_none());
    refused.count() >= votes.majority() && not_held::is_clear(votes)
        || agreed_fences(votes).is_some() && agree_on_terms(votes)
}

/// How long further answers are waited for; none if that is until the deadline. If nodes have different leases, the rest tells
/// which of them are right.
pub(super) fn rest_max(votes: &ByNode<Renewed>) -> Option<Duration> {
    let differ = has_extended(votes) && !agree_on_terms(votes);
    has_outcome(votes).then_some(match differ {
        true => CHANGE_WITHIN,
        false => LATE_ANSWERS_MAX,
    })
}

/// Whether it is known what becomes of each lock. Else only a slow node can tell, however often the request is repeated.
fn has_outcome(votes: &ByNode<Renewed>) -> bool {
    let extended = votes.received().filter_map(extended).count();
    let refused = votes.received().count() - extended;
    extended >= votes.majority()
        || refused >= votes.majority() && not_held::is_known(votes)
        || not_held::has_each(votes)
}

/// Whether a majority has extended leases that are alike, apart from their tokens.
pub(super) fn agree_on_terms(votes: &ByNode<Renewed>) -> bool {
    let extended = votes.received().filter_map(extended);
    let leases = extended.map(|renewals| renewals.iter().map(|it| (&it.lease, it.options)));
    lease::agree_on_terms(votes.majority(), leases)
}

/// The tokens that a majority of nodes has extended leases with.
pub(super) fn agreed_fences(votes: &ByNode<Renewed>) -> Option<Vec<Fence>> {
    let extended = votes.received().filter_map(extended);
    let all: Vec<_> = extended.map(|renewals| fences(renewals)).collect();
    merge::agreed(votes.majority(), &all)
}

/// The attempt that may roll the leases back at a majority, if there is one. It may not be the one whose stream renews: that
/// stream may have been taken over, and would end what nodes got back as granted to it.
pub(super) fn withdrawable_by(votes: &ByNode<Renewed>) -> Option<Attempt> {
    let extended = votes.received().filter_map(extended);
    let all: Vec<_> = extended
        .map(|renewals| {
            let first = renewals.first()?.withdrawable_by;
            let mut each = renewals.iter();
            first.filter(|_| each.all(|renewal| renewal.withdrawable_by == first))
        })
        .collect();
    merge::agreed(votes.majority(), &all)?
}

/// The answer to a renewal that no majority has carried out. It names no lock if a majority has each of them, as far as is known,
/// but none has all.
pub(super) fn refusal(votes: &ByNode<Renewed>) -> StoreResult<Renewed> {
    let majority = votes.majority();
    let refused = votes.received().filter(|vote| extended(vote).is_none());
    if refused.count() < majority && votes.received().count() < votes.0.len() {
        return match not_held::has_each(votes) {
            true => Ok(Renewed::NotHolder(Vec::new())),
            false => Err(votes.no_majority(Effect::MayBeDone)),
        };
    }
    match mismatched(votes) {
        Some(mismatched) => Ok(mismatched.clone()),
        None => Ok(Renewed::NotHolder(not_held::merged(votes))),
    }
}

fn mismatched(votes: &ByNode<Renewed>) -> Option<&Renewed> {
    let mut answers = votes.received();
    answers.find(|vote| matches!(vote, Renewed::Mismatched(_)))
}
