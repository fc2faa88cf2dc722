//! The grants among the answers of the nodes to an acquire, and the one that its holder is told of.

use std::iter::{repeat, zip};

use super::answers::ByNode;
use super::drift::Drift;
use super::lease::AtNode;
use super::recording::Recording;
use super::{lease, merge};
use crate::domain::{Acquired, Fence, GrantKind, Granted, HoldOptions, Lease};

/// The grants among the answers.
pub(super) fn granted(votes: &ByNode<Acquired>) -> impl Iterator<Item = &Granted> {
    votes.received().filter_map(grant)
}

fn grant(vote: &Acquired) -> Option<&Granted> {
    match vote {
        Acquired::Granted(granted) => Some(granted),
        Acquired::Waiting(_)
        | Acquired::Superseded
        | Acquired::WaitExpired
        | Acquired::Refused(_) => None,
    }
}

/// How many nodes have its leases from before.
pub(super) fn held_before(votes: &ByNode<Acquired>) -> usize {
    granted(votes)
        .filter(|granted| is_from_before(granted))
        .count()
}

/// Whether a majority has its leases from before. Nodes that have granted them just now have lacked them then, and do not count.
pub(super) fn were_held(votes: &ByNode<Acquired>) -> bool {
    held_before(votes) >= votes.majority()
}

/// Whether the claim held the leases already.
pub(super) fn is_from_before(granted: &Granted) -> bool {
    granted.kind != GrantKind::New
}

/// The grants that count.
pub(super) fn counted(votes: &ByNode<Acquired>) -> impl Iterator<Item = &Granted> {
    counted_by_index(votes).map(|(_, granted)| granted)
}

/// Those of them that nodes have not lost since, as far as is known. The others say how long the leases last, too, whether
/// they have recorded the tokens yet or not.
pub(super) fn still_held<'a>(
    votes: &'a ByNode<Acquired>,
    recordings: &ByNode<Recording>,
) -> Vec<&'a Granted> {
    let is_lost = |node: usize| matches!(recordings.0[node], Some(Ok(Recording::NotHeld)));
    let held = counted_by_index(votes).filter(|(node, _)| !is_lost(*node));
    held.map(|(_, granted)| granted).collect()
}

fn counted_by_index(votes: &ByNode<Acquired>) -> impl Iterator<Item = (usize, &Granted)> {
    let were_held = were_held(votes);
    let granted = votes
        .by_index()
        .filter_map(|(node, vote)| Some((node, grant(vote)?)));
    granted.filter(move |(_, granted)| !were_held || is_from_before(granted))
}

/// The fencing tokens of a grant.
pub(super) fn fences(granted: &Granted) -> Vec<Fence> {
    lease::fences(&granted.leases)
}

/// The fencing tokens that a majority already has.
pub(super) fn agreed_fences(votes: &ByNode<Acquired>) -> Option<Vec<Fence>> {
    let all: Vec<_> = counted(votes).map(fences).collect();
    merge::agreed(votes.majority(), &all)
}

/// Whether a majority has the leases alike, apart from their tokens. Of nodes that differ, some missed the last change, carried
/// out one that no majority did, or were granted them with something else: whichever two answer first must not decide what
/// the claim is told.
pub(super) fn agree_on_terms(votes: &ByNode<Acquired>) -> bool {
    lease::agree_on_terms(votes.majority(), counted(votes).map(with_options))
}

/// The leases of a grant, each with its options.
pub(super) fn with_options(granted: &Granted) -> impl Iterator<Item = AtNode<'_>> {
    // A new grant has none: they are those of the claim.
    let options = granted.options.iter().copied();
    let options = options.chain(repeat(HoldOptions::default()));
    zip(&granted.leases, options)
}

/// For each lock the largest token that was proposed. It is larger than every token that was decided for the lock before,
/// because a majority has recorded that, and one of its nodes is among those that proposed.
pub(super) fn largest_fences(votes: &ByNode<Acquired>) -> Vec<Fence> {
    merge::largest(counted(votes).map(fences))
}

/// The grant that its holder is told of, from those of the nodes that hold it.
pub(super) fn merged(
    drift: Drift,
    majority: usize,
    held: &[&Granted],
    decided: &[Fence],
) -> Option<Granted> {
    let lease = |(index, decided): (usize, &Fence)| -> Option<Lease> {
        let leases = held
            .iter()
            .map(|granted| granted.leases.get(index).cloned());
        lease::merged(drift, majority, leases.collect::<Option<_>>()?, *decided)
    };
    let leases = decided.iter().enumerate().map(lease);
    let leases = leases.collect::<Option<Vec<_>>>()?;
    let kind = kind(held, majority);
    if kind != GrantKind::New {
        let options = (0..leases.len()).map(|index| options(majority, held, index));
        return Some(Granted::before(kind, leases.into_iter().zip(options)));
    }
    let expired: Vec<_> = held.iter().map(|granted| &granted.expired[..]).collect();
    Some(Granted {
        kind,
        leases,
        options: Vec::new(),
        expired: lease::previous(drift, majority, &expired),
    })
}

/// What else applies to the lease of one lock, by number.
fn options(majority: usize, held: &[&Granted], index: usize) -> HoldOptions {
    let options = held.iter().map(|granted| granted.options.get(index));
    lease::options(majority, options.flatten().copied())
}

/// How the claim came to hold its locks: it held them already if it did so at a majority.
fn kind(held: &[&Granted], majority: usize) -> GrantKind {
    let before = || held.iter().filter(|granted| is_from_before(granted));
    let is_deeper = before().any(|granted| granted.kind == GrantKind::Reentered);
    match before().count() >= majority {
        false => GrantKind::New,
        true if is_deeper => GrantKind::Reentered,
        true => GrantKind::Replayed,
    }
}
