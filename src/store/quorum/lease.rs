//! A lease as its holder is told of it, made of what the nodes have of it. A node that has missed a change has a former hold
//! count or TTL. What others see of a lease is in `merge`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::drift::Drift;
use super::merge;
use crate::domain::{Fence, HoldOptions, Lease, LockName, PreviousLease, Ttl};

/// A lease as its holder is told of it: it lasts as long as a majority of nodes keeps it, and has the decided token. It is
/// exclusive only if a majority has it so: a node that was away when it became a shared one may still have it alone.
pub(super) fn merged(
    drift: Drift,
    majority: usize,
    mut at_nodes: Vec<Lease>,
    decided: Fence,
) -> Option<Lease> {
    at_nodes.sort_by_key(|lease| std::cmp::Reverse(lease.holder.expires_in));
    let mode = merge::mode(majority, at_nodes.iter().map(|lease| lease.holder.mode));
    let hold_count = merge::likeliest(at_nodes.iter().map(|lease| lease.holder.hold_count))?;
    let ttls = at_nodes.iter().map(|it| (it.ttl, it.holder.expires_in));
    let ttl = newest_ttl(majority, &ttls.collect::<Vec<_>>())?;
    let first = merge::granted_first(at_nodes.iter().map(|lease| &lease.holder))?;
    let (owner, metadata) = (first.owner.clone(), first.metadata.clone());
    at_nodes.truncate(majority);
    let mut lease = drift.lease_of_holder(at_nodes.pop()?);
    lease.ttl = drift.ttl_of_holder(ttl);
    lease.holder.mode = mode;
    lease.holder.hold_count = hold_count;
    lease.holder.fence = decided;
    (lease.holder.owner, lease.holder.metadata) = (owner, metadata);
    Some(lease)
}

/// Whether a majority of nodes has leases with the same hold counts, TTLs and modes. Another node may have missed a change. If
/// there is none, some nodes that have answered missed the last change, and others have it: nobody knows which.
pub(super) fn agree_on_terms<'a, L>(majority: usize, at_nodes: impl Iterator<Item = L>) -> bool
where
    L: IntoIterator<Item = &'a Lease>,
{
    let terms = |leases: L| {
        let leases = leases.into_iter();
        let terms = leases.map(|lease| (lease.holder.hold_count, lease.ttl, lease.holder.mode));
        terms.collect::<Vec<_>>()
    };
    let all: Vec<_> = at_nodes.map(terms).collect();
    merge::agreed(majority, &all).is_some()
}

/// The fencing tokens of leases, in their order.
pub(super) fn fences<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> Vec<Fence> {
    let fences = leases.into_iter().map(|lease| lease.holder.fence);
    fences.collect()
}

/// The TTL of a lease that a majority of these nodes has; or else the one of the node that renewed it last, because a change
/// of the TTL renews. Each comes with how much of the lease was left.
pub(super) fn newest_ttl(majority: usize, at_nodes: &[(Ttl, Duration)]) -> Option<Ttl> {
    let ttls: Vec<_> = at_nodes.iter().map(|(ttl, _)| *ttl).collect();
    let renewed_last = || {
        let at_nodes = at_nodes.iter();
        at_nodes.min_by_key(|(ttl, left)| ttl.get().saturating_sub(*left))
    };
    merge::agreed(majority, &ttls).or_else(|| renewed_last().map(|(ttl, _)| *ttl))
}

/// The options of a lease, of which a node may lack some that are over.
pub(super) fn options(reports: impl Iterator<Item = HoldOptions>) -> HoldOptions {
    let strictest = |one: HoldOptions, other: HoldOptions| HoldOptions {
        min_hold_left: one.min_hold_left.max(other.min_hold_left),
        max_hold_left: match (one.max_hold_left, other.max_hold_left) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        },
        lock_delay: one.lock_delay.max(other.lock_delay),
        is_of_stream: one.is_of_stream || other.is_of_stream,
    };
    reports.reduce(strictest).unwrap_or_default()
}

/// The previous leases that a majority reports.
pub(super) fn previous(
    drift: Drift,
    majority: usize,
    reports: &[&[PreviousLease]],
) -> Vec<PreviousLease> {
    let mut by_name: BTreeMap<&LockName, Vec<Duration>> = BTreeMap::new();
    for report in reports.iter().copied().flatten() {
        by_name
            .entry(&report.name)
            .or_default()
            .push(report.held_for);
    }
    by_name.retain(|_, reports| reports.len() >= majority);
    let previous = by_name.into_iter().filter_map(|(name, reports)| {
        Some(PreviousLease {
            name: name.clone(),
            held_for: drift.without(merge::reached_by(majority, reports)?),
        })
    });
    previous.collect()
}
