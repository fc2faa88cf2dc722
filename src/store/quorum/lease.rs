//! A lease as its holder is told of it, made of what the nodes have of it. A node that has missed a change has a former hold
//! count or TTL. What others see of a lease is in `merge`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter::zip;
use std::time::Duration;

use super::drift::Drift;
use super::merge;
use crate::domain::{
    Fence, HoldOptions, Holder, Lease, LockName, Metadata, Owner, PreviousLease, Ttl,
};

/// A lease as its holder is told of it: it lasts as long as a majority of nodes keeps it, and has the decided token. It is
/// exclusive only if a majority has it so: a node that was away when it became a shared one may still have it alone.
pub(super) fn merged(
    drift: Drift,
    majority: usize,
    mut at_nodes: Vec<Lease>,
    decided: Fence,
) -> Option<Lease> {
    at_nodes.sort_by_key(|lease| Reverse(lease.holder.expires_in));
    let mode = merge::mode(majority, at_nodes.iter().map(|lease| lease.holder.mode));
    let hold_count = merge::likeliest(at_nodes.iter().map(|lease| lease.holder.hold_count))?;
    let ttls = at_nodes.iter().map(|it| (it.ttl, it.holder.expires_in));
    let ttl = newest_ttl(majority, &ttls.collect::<Vec<_>>())?;
    let (owner, metadata) = text(majority, &at_nodes)?;
    at_nodes.truncate(majority);
    let mut lease = drift.lease_of_holder(at_nodes.pop()?);
    lease.ttl = drift.ttl_of_holder(ttl);
    lease.holder.mode = mode;
    lease.holder.hold_count = hold_count;
    lease.holder.fence = decided;
    (lease.holder.owner, lease.holder.metadata) = (owner, metadata);
    Some(lease)
}

/// A lease as a node has it, with what else applies to it.
pub(super) type AtNode<'a> = (&'a Lease, HoldOptions);

/// Whether a majority of nodes has the leases alike, apart from their tokens and their ends. Another node may have missed a
/// change, or was granted them with something else. If there is none, nobody knows which nodes that have answered are right.
pub(super) fn agree_on_terms<'a, L>(majority: usize, at_nodes: impl Iterator<Item = L>) -> bool
where
    L: IntoIterator<Item = AtNode<'a>>,
{
    let all: Vec<Vec<_>> = at_nodes
        .map(|leases| leases.into_iter().collect())
        .collect();
    let alike = |one: &&Vec<AtNode<'a>>, other: &Vec<AtNode<'a>>| {
        one.len() == other.len()
            && zip(*one, other).all(|(one, other)| are_alike(*one, *other, SAME_WITHIN))
    };
    all.iter()
        .any(|one| all.iter().filter(|other| alike(other, one)).count() >= majority)
}

/// Whether a node has a lease as was decided, apart from its token and its end.
pub(super) fn are_alike(
    (has, options): AtNode<'_>,
    (told, decided): AtNode<'_>,
    within: Duration,
) -> bool {
    let terms = |lease: &Lease| (lease.holder.hold_count, lease.ttl, lease.holder.mode);
    let [has_text, told_text] = [&has.holder, &told.holder];
    terms(has) == terms(told) && has_options((has_text, options), (told_text, decided), within)
}

/// By how much what is left of a limit may differ at nodes that have the same: they are asked, and were granted the lease, at
/// different moments.
const SAME_WITHIN: Duration = Duration::from_secs(1);

/// By how much it differs at a node that has it right. Less, so that a limit does not grow with each node that gets it back.
pub(super) const RIGHT_WITHIN: Duration = Duration::from_millis(100);

/// Whether a node has what was decided, besides the token, the mode, the TTL and the hold count. Else it was granted the lease by
/// a request that asked for something else.
pub(super) fn has_options(
    (has, options): (&Holder, HoldOptions),
    (told, decided): (&Holder, HoldOptions),
    within: Duration,
) -> bool {
    let are_close = |one: Duration, other| one.abs_diff(other) <= within;
    let has_ceiling = match (options.max_hold_left, decided.max_hold_left) {
        (Some(one), Some(other)) => are_close(one, other),
        (one, other) => one == other,
    };
    let [one, other] = [options, decided].map(|it| it.min_hold_left.unwrap_or_default());
    (&has.owner, &has.metadata, options.lock_delay)
        == (&told.owner, &told.metadata, decided.lock_delay)
        && has_ceiling
        && are_close(one, other)
        && (options.is_of_stream || !decided.is_of_stream)
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

/// The options of a lease: the strictest that a majority of nodes keeps, because a minority may have been granted it with others.
/// With the answers of fewer nodes, the strictest of all.
pub(super) fn options(majority: usize, reports: impl Iterator<Item = HoldOptions>) -> HoldOptions {
    let reports: Vec<_> = reports.collect();
    let minority = reports.len().saturating_sub(majority);
    let strictest = |of: fn(&HoldOptions) -> Option<Duration>, is_least: bool| {
        let mut all: Vec<_> = reports.iter().map(of).collect();
        match is_least {
            true => all.sort_unstable_by_key(|left| left.unwrap_or(Duration::MAX)),
            false => all.sort_unstable_by_key(|left| Reverse(*left)),
        }
        all.get(minority).copied().flatten()
    };
    HoldOptions {
        min_hold_left: strictest(|it| it.min_hold_left, false),
        max_hold_left: strictest(|it| it.max_hold_left, true),
        lock_delay: strictest(|it| it.lock_delay, false),
        is_of_stream: reports.iter().any(|it| it.is_of_stream),
    }
}

/// The owner and the metadata of a lease: those that a majority of nodes has, or else that one which was granted it first.
fn text(majority: usize, at_nodes: &[Lease]) -> Option<(Owner, Option<Metadata>)> {
    let texts = at_nodes.iter().map(|lease| &lease.holder);
    let texts = texts.map(|holder| (holder.owner.clone(), holder.metadata.clone()));
    let first = || {
        let first = merge::granted_first(at_nodes.iter().map(|lease| &lease.holder))?;
        Some((first.owner.clone(), first.metadata.clone()))
    };
    merge::agreed(majority, &texts.collect::<Vec<_>>()).or_else(first)
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
