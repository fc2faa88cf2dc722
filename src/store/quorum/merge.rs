//! One picture of several: what nodes report of holders, conflicts and locks, merged by claim. What a holder is told of its
//! own lease is in `lease`.
//!
//! A node may have a lease with a token of its own, until the decided one is recorded there. Its claim is what nodes know it
//! by. A lease counts if a majority may have it: as many nodes as a majority needs beside those that did not answer.

use std::collections::BTreeMap;

use super::drift::Drift;
use crate::domain::{
    ClaimDigest, Conflict, ConflictKind, Fence, HeadWaiter, HoldCount, Holder, Holders, LockName,
    LockState, LockView, Mode, NotHolder, Position, Queue,
};

/// What a node shows of a lease that does not depend on its clock, and whether the lease is exclusive.
type ShownLease = (ClaimDigest, Fence, HoldCount, bool);

/// How many of these nodes decide: no two majorities are without a common node.
pub(super) fn majority_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The largest value that at least `needed` of these reach; the smallest of fewer.
pub(super) fn reached_by<T: Ord>(needed: usize, values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_unstable_by(|a, b| b.cmp(a));
    values.truncate(needed.max(1));
    values.pop()
}

/// How many of `answers` answers stand for a majority, if nodes that did not answer may agree with them.
pub(super) fn needed(nodes: usize, answers: usize) -> usize {
    majority_of(nodes).saturating_sub(nodes - answers).max(1)
}

/// The holders that at least `needed` of these reports have.
pub(super) fn holders(drift: Drift, needed: usize, reports: &[&Holders]) -> Holders {
    let mut by_claim = by_claim(reports);
    by_claim.retain(|_, reports| reports.len() >= needed);
    let shown = shown(&by_claim);
    let contends = |holder: &Holder| shown.is_some_and(|shown| shown.excludes(holder));
    by_claim.retain(|_, reports| !contends(reports[0]));
    let totals = reports.iter().map(|holders| {
        let others = || holders.listed.iter().filter(|holder| !contends(holder));
        // What a node does not list is in the mode of what it lists.
        match others().count() {
            count if count < holders.listed.len() => count as u64,
            _ => holders.total,
        }
    });
    merged(drift, needed, reports, by_claim, totals)
}

/// The holders that were evicted. Claims that exclude each other are among them, if each had some nodes: all have ended.
pub(super) fn evicted(drift: Drift, needed: usize, reports: &[&Holders]) -> Holders {
    let mut by_claim = by_claim(reports);
    by_claim.retain(|_, reports| reports.len() >= needed);
    let totals = reports.iter().map(|holders| holders.total);
    merged(drift, needed, reports, by_claim, totals)
}

fn merged<'a>(
    drift: Drift,
    needed: usize,
    reports: &[&'a Holders],
    mut by_claim: BTreeMap<ClaimDigest, Vec<&'a Holder>>,
    totals: impl Iterator<Item = u64>,
) -> Holders {
    // In the order of the first report that has them.
    let order = reports.iter().flat_map(|holders| &holders.listed);
    let order = order.filter_map(|holder| by_claim.remove(&holder.claim));
    let listed = order.filter_map(|mut reports| {
        let fence = likeliest(reports.iter().map(|holder| holder.fence))?;
        let hold_count = likeliest(reports.iter().map(|holder| holder.hold_count))?;
        let mode = mode(needed, reports.iter().map(|holder| holder.mode));
        let first = granted_first(reports.iter().copied())?;
        reports.sort_by_key(|holder| std::cmp::Reverse(holder.expires_in));
        reports.truncate(needed);
        let holder = reports.pop().cloned()?;
        Some(drift.public(Holder {
            mode,
            fence,
            hold_count,
            owner: first.owner.clone(),
            metadata: first.metadata.clone(),
            ..holder
        }))
    });
    let listed: Vec<_> = listed.collect();
    let total = reached_by(needed, totals).unwrap_or_default();
    let total = total.max(listed.len() as u64);
    Holders { listed, total }
}

fn by_claim<'a>(reports: &[&'a Holders]) -> BTreeMap<ClaimDigest, Vec<&'a Holder>> {
    let mut by_claim: BTreeMap<ClaimDigest, Vec<&Holder>> = BTreeMap::new();
    for holder in reports.iter().flat_map(|holders| &holders.listed) {
        by_claim.entry(holder.claim).or_default().push(holder);
    }
    by_claim
}

/// The claim that a view shows in place of those that it excludes.
#[derive(Clone, Copy)]
struct Shown {
    claim: ClaimDigest,
    mode: Mode,
}

impl Shown {
    fn excludes(&self, holder: &Holder) -> bool {
        holder.claim != self.claim && exclude(self.mode, holder.mode)
    }
}

/// Of claims that exclude each other, the one that holds the lock. Such claims have some nodes each, and none may be known
/// to have a majority: it is the one that most nodes report, or of several the one that lasts longest, since what a process
/// left at a node when it ended is never renewed.
fn shown(by_claim: &BTreeMap<ClaimDigest, Vec<&Holder>>) -> Option<Shown> {
    let likeliest = by_claim.iter().max_by_key(|(_, reports)| {
        let expires_in = reports.iter().map(|holder| holder.expires_in).max();
        (reports.len(), expires_in)
    });
    likeliest.map(|(claim, reports)| Shown {
        claim: *claim,
        mode: reports[0].mode,
    })
}

/// Whether no two claims in these modes hold a lock at once.
fn exclude(one: Mode, other: Mode) -> bool {
    match (one, other) {
        (Mode::Shared(one), Mode::Shared(other)) => one.limit() != other.limit(),
        (Mode::Exclusive, _) | (_, Mode::Exclusive) => true,
    }
}

/// The fencing token or hold count that most reports of a lease have. Of several, it is the largest: what a renewal would
/// decide on.
pub(super) fn likeliest<T: Ord + Copy>(reports: impl Iterator<Item = T>) -> Option<T> {
    let reports: Vec<_> = reports.collect();
    let count = |value: &T| reports.iter().filter(|other| *other == value).count();
    reports
        .iter()
        .copied()
        .max_by_key(|value| (count(value), *value))
}

/// The report of the node that has had the lease for longest: what it shows of the grant is what the grant was asked with. A
/// node that a repeat of the request has reached first has the description that the repeat gave. Each node's clock is
/// compared with itself alone.
pub(super) fn granted_first<'a>(reports: impl Iterator<Item = &'a Holder>) -> Option<&'a Holder> {
    reports.max_by_key(|holder| holder.held_for())
}

/// How a claim holds a lock: alone if enough of these reports show that a majority has it so, and else shared if one of them
/// does. It became shared by a change that some nodes have missed, and none makes it exclusive again.
pub(super) fn mode(needed: usize, reports: impl Iterator<Item = Mode> + Clone) -> Mode {
    let mut shared = reports.clone().filter(|mode| *mode != Mode::Exclusive);
    let exclusive = reports.clone().count() - shared.clone().count();
    match exclusive >= needed && shared.clone().count() < needed {
        true => Mode::Exclusive,
        false => shared.next().unwrap_or(Mode::Exclusive),
    }
}

/// Whether these views leave open who holds the lock, or with which token: some have a claim with different tokens, or
/// claims that exclude each other, and there is a majority for none.
pub(super) fn is_unclear(majority: usize, views: &[&LockView]) -> bool {
    let by_claim = by_claim(&held(views));
    let mut of_claims = by_claim.values();
    let is_undecided = of_claims.any(|reports| {
        let fences: Vec<_> = reports.iter().map(|holder| holder.fence).collect();
        fences.iter().any(|fence| *fence != fences[0]) && agreed(majority, &fences).is_none()
    });
    let is_held = by_claim.values().any(|reports| reports.len() >= majority);
    let shown = shown(&by_claim);
    let mut claims = by_claim.values();
    let has_contenders =
        claims.any(|reports| shown.is_some_and(|shown| shown.excludes(reports[0])));
    is_undecided || !is_held && has_contenders
}

/// The conflicts of a claim, in the order of its locks, that at least `needed` of these reports have.
pub(super) fn conflicts(drift: Drift, needed: usize, reports: &[&[Conflict]]) -> Vec<Conflict> {
    let mut names: Vec<&LockName> = Vec::new();
    for conflict in reports.iter().copied().flatten() {
        if !names.contains(&&conflict.name) {
            names.push(&conflict.name);
        }
    }
    // The names of a claim are sorted.
    names.sort_unstable();
    let merged = names.into_iter().filter_map(|name| {
        let all = reports.iter().copied().flatten();
        let of_lock: Vec<_> = all.filter(|conflict| conflict.name == *name).collect();
        (of_lock.len() >= needed).then(|| conflict(drift, needed, name, &of_lock))
    });
    merged.collect()
}

fn conflict(drift: Drift, needed: usize, name: &LockName, reports: &[&Conflict]) -> Conflict {
    let held: Vec<&Holders> = reports
        .iter()
        .filter_map(|report| match &report.by {
            ConflictKind::Holders(holders) => Some(holders),
            ConflictKind::Cooling { .. } | ConflictKind::Waiters => None,
        })
        .collect();
    let cooling = reports.iter().filter_map(|report| match report.by {
        ConflictKind::Cooling { free_in } => Some(free_in),
        ConflictKind::Holders(_) | ConflictKind::Waiters => None,
    });
    let cooling: Vec<_> = cooling.collect();
    let waiters = reports.len() - held.len() - cooling.len();
    let by = match reached_by(needed, cooling.iter().copied()) {
        _ if held.len() >= cooling.len().max(waiters) => {
            ConflictKind::Holders(holders(drift, needed.min(held.len()), &held))
        }
        Some(free_in) if cooling.len() >= waiters => ConflictKind::Cooling { free_in },
        Some(_) | None => ConflictKind::Waiters,
    };
    let lengths = reports.iter().map(|report| report.queue_length);
    Conflict {
        name: name.clone(),
        by,
        queue_length: reached_by(needed, lengths).unwrap_or_default(),
    }
}

/// Whether at least `majority` of these reports name the same conflict: then it is not one between claims that each have a
/// few nodes.
pub(super) fn agree(majority: usize, reports: &[&[Conflict]]) -> bool {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for conflict in reports.iter().copied().flatten() {
        let listed: &[Holder] = match &conflict.by {
            ConflictKind::Holders(holders) => &holders.listed,
            ConflictKind::Cooling { .. } | ConflictKind::Waiters => &[],
        };
        let leases = listed.iter().map(|it| Some((it.claim, it.fence)));
        // What lists no holder is compared by its lock alone.
        for lease in leases.chain(listed.is_empty().then_some(None)) {
            *counts.entry((&conflict.name, lease)).or_default() += 1;
        }
    }
    counts.values().any(|count| *count >= majority)
}

/// The position that a majority of nodes has at least.
pub(super) fn position(
    needed: usize,
    positions: impl Iterator<Item = Position>,
) -> Option<Position> {
    let mut positions: Vec<_> = positions.collect();
    positions.sort_by_key(|position| std::cmp::Reverse(position.position));
    positions.truncate(needed.max(1));
    positions.pop()
}

/// Whether these nodes show the same lock: the same leases, as many waiters, and the same one at the head.
pub(super) fn are_alike(views: &[&LockView]) -> bool {
    views.windows(2).all(|pair| {
        let [one, other] = [pair[0], pair[1]];
        fingerprint(one) == fingerprint(other) && one.queue.head == other.queue.head
    })
}

/// What does not depend on the clock of the node.
fn fingerprint(view: &LockView) -> (u8, Vec<ShownLease>, u64, u64) {
    let queue_length = view.queue.length;
    match &view.state {
        LockState::Free => (0, Vec::new(), 0, queue_length),
        LockState::Cooling { .. } => (1, Vec::new(), 0, queue_length),
        LockState::Held(holders) => {
            let listed = holders.listed.iter();
            let leases = listed.map(|it| {
                let is_exclusive = it.mode == Mode::Exclusive;
                (it.claim, it.fence, it.hold_count, is_exclusive)
            });
            let mut leases: Vec<_> = leases.collect();
            leases.sort_unstable();
            (2, leases, holders.total, queue_length)
        }
    }
}

/// The lock as a majority shows it.
pub(super) fn view(drift: Drift, needed: usize, name: &LockName, views: &[&LockView]) -> LockView {
    let (state, queue) = (state(drift, needed, views), queue(needed, views));
    LockView::new(name.clone(), state, queue)
}

fn held<'a>(views: &[&'a LockView]) -> Vec<&'a Holders> {
    let held = views.iter().filter_map(|view| match &view.state {
        LockState::Held(holders) => Some(holders),
        LockState::Free | LockState::Cooling { .. } => None,
    });
    held.collect()
}

fn state(drift: Drift, needed: usize, views: &[&LockView]) -> LockState {
    let held = held(views);
    if held.len() >= needed {
        let holders = holders(drift, needed, &held);
        // Nodes that list different holders are nodes that contenders share, unless there is no room to list them.
        if !holders.listed.is_empty() || held.iter().all(|holders| holders.listed.is_empty()) {
            return LockState::Held(holders);
        }
    }
    // A lock that some nodes keep closed and others hold is not open at a majority either.
    let closed = views.iter().filter_map(|view| match view.state {
        LockState::Cooling { free_in } => Some(free_in),
        LockState::Free | LockState::Held(_) => None,
    });
    let closed: Vec<_> = closed.collect();
    match closed.len() >= needed {
        true => LockState::Cooling {
            free_in: reached_by(needed, closed).unwrap_or_default(),
        },
        false => LockState::Free,
    }
}

fn queue(needed: usize, views: &[&LockView]) -> Queue {
    let lengths = views.iter().map(|view| view.queue.length);
    let mut heads: Vec<&HeadWaiter> = Vec::new();
    for view in views {
        heads.extend(&view.queue.head);
    }
    // The earliest that enough nodes have, since all of them order waiters alike.
    heads.sort_by_key(|head| head.since);
    let is_common = |head: &&&HeadWaiter| {
        let same = heads.iter().filter(|other| **other == **head);
        same.count() >= needed
    };
    Queue {
        length: reached_by(needed, lengths).unwrap_or_default(),
        head: heads.iter().find(is_common).map(|head| (*head).clone()),
    }
}

/// How much a reason says: a node that never had the lease knows none.
pub(super) fn rank(reason: &NotHolder) -> u8 {
    match reason {
        NotHolder::Unknown => 0,
        NotHolder::Expired => 1,
        NotHolder::Lost => 2,
        NotHolder::Released => 3,
        NotHolder::Evicted { .. } => 4,
    }
}

/// The value that at least `majority` of these are.
pub(super) fn agreed<T: PartialEq + Clone>(majority: usize, values: &[T]) -> Option<T> {
    let count = |value: &T| values.iter().filter(|other| *other == value).count();
    values
        .iter()
        .find(|value| count(value) >= majority)
        .cloned()
}

/// For each lock the largest of the tokens that nodes report.
pub(super) fn largest(reports: impl Iterator<Item = Vec<Fence>>) -> Vec<Fence> {
    let larger = |largest: Vec<Fence>, fences: Vec<Fence>| {
        let pairs = largest.into_iter().zip(fences);
        pairs.map(|(one, other)| one.max(other)).collect()
    };
    reports.reduce(larger).unwrap_or_default()
}
