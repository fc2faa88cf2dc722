//! The order of waiters, and free locks that are not granted.

use std::collections::BTreeMap;

use super::super::minority::UNCLAIMED;
use super::super::record::{Action, Answer, Effect, End, Micros, Mode, SECOND, View};
use super::{Counts, Evidence, Grant, Rule, SETTLING, Violation, quorum, story};

/// A free lock is granted to a waiter within this time.
const GHOST: Micros = 2 * SECOND;

/// After this time, a claim that moves to another process has certainly arrived there, if no fault is active.
const ARRIVAL: Micros = SECOND;

/// How long a place may be missing in a store that has lost its data.
const FORGOTTEN: Micros = 3 * SECOND;

/// A wait that is about to end may have ended already on the process.
const NEARLY_OVER: Micros = SECOND / 2;

/// How long a refusal may be in flight: the claim may have left the queue that much earlier.
const REFUSAL_UNDER_WAY: Micros = 2 * SECOND;

/// A margin before the end of a kept place.
const PLACE_MARGIN: Micros = SECOND;

/// The grace after a loss is the longest lease that may be alive, and at least a poll interval and a second; then
/// follow two operations that may take long.
const GRACE_BESIDE: Micros = 8 * SECOND;

/// A claim that waited.
struct Waiter {
    claim: usize,
    /// It was certainly in the queue from this time on.
    queued: Micros,
    /// When its requests were connected, at which process, and from when it was certainly known there.
    attached: Vec<Attachment>,
    /// It may have left the queue at this time.
    left: Micros,
}

struct Attachment {
    process: usize,
    from: Micros,
    /// From this time on the process certainly knew of it.
    sure: Micros,
    until: Micros,
    /// When it was refused for another reason than the end of its wait.
    refused: Option<Micros>,
}

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>, counts: &mut Counts) {
    let mut views: BTreeMap<&str, Vec<&View>> = BTreeMap::new();
    for view in &evidence.history.views {
        views.entry(&view.name).or_default().push(view);
    }
    for (name, grants) in &evidence.by_name {
        let seen = views.get(name).map_or(&[][..], Vec::as_slice);
        let waiters = waiters(evidence, name, seen);
        counts.waiters += waiters.len();
        for grant in grants {
            let grant = &evidence.grants[*grant];
            if evidence.history.claims[grant.claim].is_fair {
                order(evidence, grant, grants, &waiters, found, counts);
            }
        }
    }
    for (name, seen) in &mut views {
        seen.sort_unstable_by_key(|view| view.at);
        ghosts(evidence, name, seen, found);
    }
}

/// The claims that were certainly in the queue of a lock.
fn waiters(evidence: &Evidence<'_>, name: &str, views: &[&View]) -> Vec<Waiter> {
    let mut heads: BTreeMap<usize, Micros> = BTreeMap::new();
    // While a node of a quorum is silent, a view may show a place that no majority has yet.
    let views = views.iter();
    for view in views.filter(|view| !evidence.history.may_show_few(view)) {
        let head = view
            .head
            .as_deref()
            .and_then(|head| evidence.claim_of.get(head));
        if let Some(claim) = head {
            let first = heads.entry(*claim).or_insert(view.at);
            *first = view.at.min(*first);
        }
    }
    let claims = evidence.history.claims.iter().enumerate();
    claims
        .filter(|(_, claim)| claim.is_fair && claim.names.iter().any(|own| own == name))
        .filter_map(|(claim, _)| waiter(evidence, claim, heads.get(&claim).copied()))
        .collect()
}

fn waiter(evidence: &Evidence<'_>, claim: usize, seen: Option<Micros>) -> Option<Waiter> {
    let mut queued = seen;
    let mut attached = Vec::new();
    let mut left = Micros::MAX;
    for request in evidence.requests_of(claim) {
        if request.action == Action::Release {
            left = left.min(request.sent);
        }
        if !request.asks() {
            continue;
        }
        let reported = request
            .arrivals
            .iter()
            .find_map(|(at, answer)| match answer {
                Answer::Queued => Some(*at),
                Answer::Refused(refusal) if refusal.has_place => Some(*at),
                _ => None,
            });
        queued = [queued, reported].into_iter().flatten().min();
        let refusal = request.refusal();
        attached.push(Attachment {
            process: request.process,
            from: request.sent,
            sure: reported.unwrap_or(Micros::MAX).min(request.sent + ARRIVAL),
            until: request
                .ended()
                .min(request.deadline().saturating_sub(NEARLY_OVER))
                .saturating_sub(
                    NEARLY_OVER
                        * u64::from(request.end.is_some_and(|(_, end)| end != End::Answered)),
                ),
            refused: refusal
                .filter(|(_, refusal)| !refusal.has_place)
                .map(|(at, _)| at),
        });
    }
    Some(Waiter {
        claim,
        queued: queued?,
        attached,
        left,
    })
}

/// A later claim is not granted while an earlier one waits.
fn order(
    evidence: &Evidence<'_>,
    grant: &Grant<'_>,
    grants: &[usize],
    waiters: &[Waiter],
    found: &mut Vec<Violation>,
    counts: &mut Counts,
) {
    let mut asks = evidence
        .requests_of(grant.claim)
        .filter(|request| request.asks());
    let Some(came) = asks.next().map(|request| request.sent) else {
        return;
    };
    let from = begun(evidence, grant, grants);
    for waiter in waiters {
        if waiter.claim == grant.claim || waiter.queued >= came {
            continue;
        }
        let own = grants.iter().map(|index| &evidence.grants[*index]);
        let own = own.filter(|own| own.claim == waiter.claim);
        let granted = own.map(|own| own.fence).min();
        if granted.is_some_and(|fence| fence < grant.fence) {
            // The earlier one was still waiting when the later one arrived.
            let reported = evidence.requests_of(waiter.claim);
            let reported = reported.filter(|request| request.is_granted());
            let reported = reported
                .filter_map(|request| request.arrivals.last())
                .map(|(at, _)| *at);
            counts.ordered_pairs +=
                usize::from(reported.min().is_some_and(|reported| reported > came));
            continue;
        }
        if !was_there(evidence, waiter, from, grant.reported)
            || evidence.history.is_former_grant(grant.claim, grant.fence)
        {
            continue;
        }
        // A claim that nodes lack, because they failed when it came or later, has asked them again after a moment.
        let came_first = waiter.attached.iter().map(|one| one.from).min();
        let lately = from.saturating_sub(SETTLING).max(came_first.unwrap_or(0));
        let during = (lately, grant.reported);
        let is_together = quorum::are_together(evidence, waiter.claim, grant);
        if is_together || evidence.history.has_no_majority(during, UNCLAIMED) {
            counts.excused.orders += 1;
            continue;
        }
        let stories = [waiter.claim, grant.claim].map(|claim| story(evidence, claim));
        let what = format!(
            "{}: the first was queued by {:.3}, the second was granted {} between {:.3} and {:.3}:{}",
            grant.name,
            waiter.queued as f64 / 1e6,
            grant.fence,
            from as f64 / 1e6,
            grant.reported as f64 / 1e6,
            stories.concat()
        );
        found.push(Violation::new(Rule::Fifo, grant.reported, what));
    }
}

/// The earliest beginning of the lease: not before it was requested, nor before the release of an exclusive one with a
/// smaller fence.
fn begun(evidence: &Evidence<'_>, grant: &Grant<'_>, grants: &[usize]) -> Micros {
    let earlier = grants.iter().map(|index| &evidence.grants[*index]);
    let earlier =
        earlier.filter(|earlier| earlier.fence < grant.fence && earlier.reported < grant.reported);
    let ends = earlier.flat_map(|earlier| {
        let exclusive = earlier.lasting.iter();
        let exclusive = exclusive.filter(|lasting| lasting.mode == Mode::Exclusive);
        let ends = exclusive.map(|lasting| lasting.known_until.min(grant.reported));
        ends.chain([earlier.requested])
    });
    ends.max().unwrap_or(0).max(grant.requested)
}

/// Whether a waiter was certainly in the queue all this time, with a request connected to a working process.
fn was_there(evidence: &Evidence<'_>, waiter: &Waiter, from: Micros, until: Micros) -> bool {
    if waiter.left <= until {
        return false;
    }
    let is_refused = |refused: Micros| refused >= from && refused <= until + REFUSAL_UNDER_WAY;
    if waiter
        .attached
        .iter()
        .filter_map(|one| one.refused)
        .any(is_refused)
    {
        return false;
    }
    // A client that has repeated its request on another process waits only with the last one.
    let covers = |one: &&Attachment| {
        let was_superseded = |later: &Attachment| {
            later.process != one.process && one.from < later.from && later.from <= until
        };
        one.sure <= from
            && until < one.until
            && !own_outage(evidence, one.process, from, until)
            && !waiter.attached.iter().any(was_superseded)
    };
    waiter.attached.iter().any(|one| covers(&one)) && kept_its_place(evidence, waiter, from)
}

/// Whether a fault affected this process and not all of them. A fault that affects all is no exemption: the order of
/// waiters survives any outage of the store.
fn own_outage(evidence: &Evidence<'_>, process: usize, from: Micros, until: Micros) -> bool {
    let mut outages = evidence.history.outages.iter();
    outages.any(|outage| {
        outage.process == Some(process)
            && !matches!(
                outage.effect,
                Effect::Minority | Effect::MinorityLoss | Effect::Slower | Effect::Stall
            )
            && outage.overlaps(from.saturating_sub(SETTLING), until)
    })
}

/// Whether it was never disconnected for long enough, since it was queued, to lose its place.
fn kept_its_place(evidence: &Evidence<'_>, waiter: &Waiter, until: Micros) -> bool {
    let kept = evidence
        .history
        .bounds
        .place_kept
        .saturating_sub(PLACE_MARGIN);
    let mut there_until = waiter.queued;
    let mut process = waiter.attached.first().map(|first| first.process);
    for one in &waiter.attached {
        if one.from > until {
            break;
        }
        // The process that it left may not have reported to the store yet that it dropped the place.
        let moved = process.replace(one.process) != Some(one.process);
        let lately = (one.from.saturating_sub(FORGOTTEN), one.from + ARRIVAL);
        let is_forgotten = evidence.has_loss(lately.0, lately.1)
            || evidence.has_clock_step(lately.0, lately.1, true);
        if moved && is_forgotten {
            return false;
        }
        if one.from > there_until {
            // A place without a connected request can be lost with the store, or with the process that keeps it.
            let away = (there_until, one.from);
            let mut outages = evidence.history.outages.iter();
            let is_struck = outages.any(|outage| {
                !matches!(
                    outage.effect,
                    Effect::FormerPrimary
                        | Effect::Minority
                        | Effect::MinorityLoss
                        | Effect::Slower
                        | Effect::Stall
                ) && outage.overlaps(away.0.saturating_sub(SETTLING), away.1 + SETTLING)
            });
            if away.1 - away.0 > kept || is_struck || evidence.has_clock_step(away.0, away.1, false)
            {
                return false;
            }
        }
        // A process that was killed or cut off in this time has lost the claim, or could not report it.
        there_until = there_until.max(one.until);
    }
    true
}

/// Runs of views in which a lock is free and has waiters, and is not granted.
fn ghosts(evidence: &Evidence<'_>, name: &str, views: &[&View], found: &mut Vec<Violation>) {
    let grants = evidence.by_name.get(name).map_or(&[][..], Vec::as_slice);
    let mut since: Option<&View> = None;
    let mut is_reported = false;
    for view in views {
        let waits = view.is_free && view.queue_length > 0 && head_is_there(evidence, view);
        let granted = since.is_some_and(|first| {
            let mut grants = grants.iter().map(|index| &evidence.grants[*index]);
            grants.any(|grant| {
                grant.reported >= first.sent
                    && grant.requested <= view.at
                    && grant.reported <= view.at + SECOND
            })
        });
        if !waits || granted || is_excused(evidence, view) {
            since = None;
            is_reported = false;
            continue;
        }
        let first = *since.get_or_insert(view);
        if view.sent > first.at + GHOST && !is_reported && has_waiter(evidence, name, first, view) {
            is_reported = true;
            let head = view.head.as_deref().unwrap_or_default();
            let reported = evidence
                .claim_of
                .get(head)
                .map(|claim| story(evidence, *claim));
            let what = format!(
                "{name} is free from {:.3} to {:.3}, {} wait, the first is {head}:{}",
                first.at as f64 / 1e6,
                view.sent as f64 / 1e6,
                view.queue_length,
                reported.unwrap_or_default()
            );
            found.push(Violation::new(Rule::Ghost, view.sent, what));
        }
    }
}

/// A claim on several locks may reserve a free one while it waits for another.
fn head_is_there(evidence: &Evidence<'_>, view: &View) -> bool {
    let head = view
        .head
        .as_deref()
        .and_then(|head| evidence.claim_of.get(head));
    head.is_some_and(|claim| evidence.history.claims[*claim].names.len() == 1)
}

/// Whether a claim that could have been granted the lock waited all the time.
fn has_waiter(evidence: &Evidence<'_>, name: &str, first: &View, last: &View) -> bool {
    let mut requests = evidence.history.requests.iter();
    requests.any(|request| {
        request.asks()
            && request.names == [name]
            && request.sent + ARRIVAL < first.at
            && request.ended().min(request.deadline()) > last.at + NEARLY_OVER
            && !evidence.is_struck(request.process, first.at, last.at)
    })
}

/// While a store is unavailable or in its grace, nothing is granted, as it should be.
fn is_excused(evidence: &Evidence<'_>, view: &View) -> bool {
    let outages = &evidence.history.outages;
    let is_near = |from: Micros, until: Micros| from <= view.at && view.sent <= until;
    outages.iter().any(|outage| {
        let settled = match outage.effect {
            Effect::Loss | Effect::Failover => grace_end(evidence, outage.from, outage.until),
            Effect::Away | Effect::Minority | Effect::MinorityLoss => outage.until + SETTLING,
            Effect::Full | Effect::Stall => outage.until + GHOST,
            // Waiters poll, whatever messages are lost.
            Effect::Slower | Effect::FormerPrimary => outage.from,
        };
        is_near(outage.from, settled)
    }) || evidence.history.clock_steps.iter().any(|step| {
        // A forward step has ended leases early, which leads to a grace as after a loss.
        let settled = match step.by > 0 {
            true => grace_end(evidence, step.before, step.after),
            false => step.after + SETTLING,
        };
        is_near(step.before, settled)
    })
}

/// The latest end of the grace after a loss of data: every reported lease has ended.
pub(super) fn grace_end(evidence: &Evidence<'_>, from: Micros, until: Micros) -> Micros {
    let grants = evidence.grants.iter();
    let reported = grants.filter(|grant| grant.reported <= until);
    let ends = reported.clone().map(|grant| grant.latest_end);
    let longest = ends.max().unwrap_or(from);
    let ttl = reported.map(|grant| grant.latest_end - grant.reported.min(grant.latest_end));
    let ttl = ttl.max().unwrap_or(0);
    longest.max(until + ttl) + GRACE_BESIDE
}
