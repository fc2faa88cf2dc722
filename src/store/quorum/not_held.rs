//! Why a claim does not hold its locks, by what the nodes answer to its renewal.

use std::collections::BTreeMap;

use super::answers::ByNode;
use super::merge;
use crate::domain::{LockName, LockNames, NotHeld, NotHolder, Renewed};

/// For each lock that a majority lacks, the reason that a majority knows, or else the one that says most: a node that never had
/// the lease knows none. A node that lacks one lock of a claim refuses all, and names those that it lacks. If one is lost,
/// another that a majority may lack, too, is not left out.
pub(super) fn merged(votes: &ByNode<Renewed>) -> Vec<NotHeld> {
    let mut by_name = by_name(votes);
    let most = by_name.values().map(Vec::len).max();
    let needed = match most.is_some_and(|most| most >= votes.majority()) {
        true => merge::needed(votes.0.len(), votes.received().count()),
        false => votes.majority(),
    };
    by_name.retain(|_, reasons| reasons.len() >= needed);
    let merged = by_name.into_iter().filter_map(|(name, reasons)| {
        let common = merge::agreed(votes.majority(), &reasons);
        let known = common.filter(|reason| *reason != NotHolder::Unknown);
        let likeliest = || reasons.iter().max_by_key(|it| merge::rank(it)).cloned();
        Some(NotHeld {
            name: name.clone(),
            reason: known.or_else(likeliest)?,
        })
    });
    merged.collect()
}

/// Whether further answers make no difference to this: it is known of each lock whether a majority lacks it, and no two nodes
/// know different reasons. If they do, a majority decides.
pub(super) fn is_clear(votes: &ByNode<Renewed>) -> bool {
    let by_name = by_name(votes);
    let mut locks = by_name.values();
    is_known(votes)
        && locks.all(|reasons| {
            let mut known = reasons.iter().filter(|it| **it != NotHolder::Unknown);
            let first = known.next();
            known.all(|reason| Some(reason) == first)
        })
}

/// Whether it is known of each lock whether a majority lacks it.
pub(super) fn is_known(votes: &ByNode<Renewed>) -> bool {
    by_name(votes).values().all(|reasons| {
        let is_lacking = reasons.len() >= votes.majority();
        let may_be = reasons.len() + votes.missing() >= votes.majority();
        is_lacking == may_be
    })
}

/// Whether a majority has each lock. A node that refuses because of one has the others.
pub(super) fn has_each(votes: &ByNode<Renewed>) -> bool {
    let answered = votes.received().count();
    let by_name = by_name(votes);
    let mut lacking = by_name.values().map(Vec::len);
    votes.has_majority() && lacking.all(|lacking| answered - lacking >= votes.majority())
}

/// Whether a majority remembers of each of these locks that the claim has ended there. Then it cannot be granted them again
/// for as long.
pub(super) fn has_ended(votes: &ByNode<Renewed>, names: &LockNames) -> bool {
    names.iter().all(|name| {
        let remembers = |not_held: &&[NotHeld]| {
            let mut not_held = not_held.iter();
            not_held.any(|lost| lost.name == *name && lost.reason != NotHolder::Unknown)
        };
        reports(votes).filter(remembers).count() >= votes.majority()
    })
}

/// What nodes that lack a lock know of that.
fn by_name(votes: &ByNode<Renewed>) -> BTreeMap<&LockName, Vec<NotHolder>> {
    let mut by_name: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for lost in reports(votes).flatten() {
        let reasons = by_name.entry(&lost.name).or_default();
        reasons.push(lost.reason.clone());
    }
    by_name
}

fn reports(votes: &ByNode<Renewed>) -> impl Iterator<Item = &[NotHeld]> {
    votes.received().filter_map(|vote| match vote {
        Renewed::NotHolder(not_held) => Some(&not_held[..]),
        Renewed::Extended(_) | Renewed::Mismatched(_) => None,
    })
}
