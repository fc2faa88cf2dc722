//! Rules for single claims: leases that are lost, that come back, or that are reported too late, in part, or to no
//! client.

use std::collections::BTreeMap;

use super::super::record::{Action, Answer, End, Micros, Request, SECOND, View};
use super::{Evidence, Excused, Grant, Rule, SETTLING, Violation, shown, story};

/// How long a tombstone is certainly kept: the guaranteed minute, minus the duration of a request.
const TOMBSTONE_TTL_MIN: Micros = 55 * SECOND;

/// How long a rollback may take when no fault is active.
const ROLLBACK: Micros = 2 * SECOND;

/// Commands that are held back arrive at most three seconds late.
const UNDER_WAY: Micros = 4 * SECOND;

/// How long after the end of a lease its renewal must fail.
const OVER: Micros = SECOND / 5;

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>, excused: &mut Excused) {
    for claim in 0..evidence.by_claim.len() {
        dead_and_partial(evidence, claim, found);
        resurrected(evidence, claim, found);
        refused_early(evidence, claim, found);
    }
    let mut grants: BTreeMap<(usize, &str), Vec<&Grant<'_>>> = BTreeMap::new();
    for grant in &evidence.grants {
        let key = (grant.claim, grant.name);
        grants.entry(key).or_default().push(grant);
    }
    twice(evidence, &grants, found, excused);
    seen_without(evidence, found);
    for view in &evidence.history.views {
        for (owner, fence) in &view.holders {
            if let Some(claim) = evidence.claim_of.get(owner.as_str()) {
                unowned(evidence, view, *claim, *fence, found);
            }
        }
    }
    pairs(evidence, found);
    for name in &evidence.history.left_over {
        let ended = evidence.history.ended;
        found.push(Violation::new(Rule::Orphan, ended, name.clone()));
    }
}

fn dead_and_partial(evidence: &Evidence<'_>, claim: usize, found: &mut Vec<Violation>) {
    for request in evidence.requests_of(claim) {
        for (at, answer) in &request.arrivals {
            let Answer::Granted { leases, .. } = answer else {
                continue;
            };
            if leases.iter().any(|lease| lease.expires_in == 0) {
                found.push(Violation::new(Rule::DeadGrant, *at, shown(request)));
            }
            let mut reported: Vec<_> = leases.iter().map(|lease| &lease.name).collect();
            let mut wanted: Vec<_> = request.names.iter().collect();
            reported.sort_unstable();
            wanted.sort_unstable();
            if reported != wanted {
                found.push(Violation::new(Rule::PartialGrant, *at, shown(request)));
            }
        }
    }
}

/// An ended claim is not granted again, and an ended lease cannot be renewed.
fn resurrected(evidence: &Evidence<'_>, claim: usize, found: &mut Vec<Violation>) {
    let is_exempt = |from: Micros, until: Micros| {
        // A loss of leases or a long forward step leaves no tombstones; a backward step makes leases longer.
        evidence.has_lost_leases(from, until) || evidence.has_clock_step(from, until, false)
    };
    // Replicas do not confirm a release: after a failover, its lease may be back.
    let may_forget_ends =
        |from: Micros, until: Micros| evidence.has_loss(from, until) || is_exempt(from, until);
    let mut first_granted = Micros::MAX;
    let mut ended: Option<Micros> = None;
    let mut lasts_until: Option<Micros> = Some(0);
    for request in evidence.requests_of(claim) {
        if let Some(ended) = ended
            && request.is_granted()
            && request.sent > ended
            && request.ended().min(request.sent + SECOND) < ended + TOMBSTONE_TTL_MIN
            && !may_forget_ends(
                evidence
                    .requests_of(claim)
                    .next()
                    .map_or(0, |first| first.sent),
                request.sent,
            )
        {
            let what = format!(
                "ended by {:.3}{}",
                ended as f64 / 1e6,
                story(evidence, claim)
            );
            found.push(Violation::new(Rule::Resurrection, request.sent, what));
        }
        let is_renewal = matches!(request.action, Action::Renew | Action::StepDown);
        if let Some(over) = lasts_until
            && is_renewal
            && request.is_granted()
            && request.sent > over + OVER
            && !is_exempt(0, request.sent)
        {
            let what = format!("a renewal made it{}", story(evidence, claim));
            found.push(Violation::new(Rule::Resurrection, request.sent, what));
        }
        for (at, answer) in &request.arrivals {
            match answer {
                Answer::Granted { leases, .. } => {
                    first_granted = first_granted.min(*at);
                    // A report counts from before the store operation, the store from the operation itself.
                    let full = evidence.history.claims[claim].lease;
                    let reported = leases.iter().map(|lease| lease.expires_in.max(full)).max();
                    let end = reported.map(|reported| at + reported);
                    lasts_until = lasts_until.map(|until| until.max(end.unwrap_or(0)));
                }
                Answer::Freed
                    if request.action == Action::Release && first_granted < request.sent =>
                {
                    ended = Some(ended.unwrap_or(*at));
                }
                // A stream may report the end of a lease that it could not renew in time, by its own knowledge.
                Answer::Refused(refusal) if refusal.is_end() && !request.is_granted() => {
                    ended = Some(ended.unwrap_or(*at));
                }
                Answer::Freed | Answer::Refused(_) | Answer::Queued | Answer::Evicted(_) => {}
            }
        }
        // A lease that may have been renewed without a report lasts for an unknown time.
        let may_extend = request.asks() || is_renewal;
        let is_open = match request.last() {
            None | Some(Answer::Queued) => true,
            Some(Answer::Refused(refusal)) => refusal.status >= 500 && !refusal.is_without_effect,
            Some(Answer::Granted { .. }) => request.end.is_none_or(|(_, end)| end != End::Answered),
            Some(Answer::Freed | Answer::Evicted(_)) => false,
        };
        if may_extend && is_open {
            lasts_until = None;
        }
    }
}

/// A claim has one lease of a lock, with one fence.
fn twice(
    evidence: &Evidence<'_>,
    grants: &BTreeMap<(usize, &str), Vec<&Grant<'_>>>,
    found: &mut Vec<Violation>,
    excused: &mut Excused,
) {
    for ((claim, _), grants) in grants {
        let mut grants = grants.clone();
        grants.sort_unstable_by_key(|grant| grant.reported);
        for pair in grants.windows(2) {
            let (from, until) = (pair[0].requested, pair[1].reported);
            let is_exempt = evidence.has_clock_step(from, until, true)
                || evidence.may_lose(pair[0], from, until);
            if pair[1].requested >= pair[0].latest_end + TOMBSTONE_TTL_MIN || is_exempt {
                continue;
            }
            let history = evidence.history;
            let [one, other] = [pair[0], pair[1]].map(|grant| {
                let reporting = grant.lasting.iter().map(|lasting| lasting.request);
                history.asks_for(*claim, reporting, grant.reported)
            });
            if history.may_have_two_fences(&one, &other) {
                excused.fences += 1;
                continue;
            }
            let what = format!("two leases of one claim{}", story(evidence, *claim));
            found.push(Violation::new(Rule::Resurrection, until, what));
        }
    }
}

/// A claim is not refused while its leases certainly last. A refusal covers all locks of a request, so it is wrong only
/// if none of them may be lost.
fn refused_early(evidence: &Evidence<'_>, claim: usize, found: &mut Vec<Violation>) {
    for request in evidence.requests_of(claim) {
        let Some((at, refusal)) = request.refusal() else {
            continue;
        };
        // A stream reports a loss by its own knowledge, at the time of the event; any other request asks the store.
        let is_stream = matches!(request.action, Action::Hold { .. }) && request.is_granted();
        let since = if is_stream { at } else { request.sent };
        let lasts = |name: &String| {
            let grants = evidence.by_name.get(name.as_str()).into_iter().flatten();
            let own = grants.map(|grant| &evidence.grants[*grant]);
            let own = own.filter(|grant| grant.claim == claim);
            let mut lasting =
                own.flat_map(|grant| grant.lasting.iter().map(move |lasting| (grant, lasting)));
            lasting.any(|(grant, lasting)| {
                let reported = &evidence.history.requests[lasting.request];
                lasting.from < since
                    && at < lasting.until
                    && (!is_stream || std::ptr::eq(reported, request))
                    && !evidence.may_lose(grant, reported.sent, at)
            })
        };
        if refusal.is_loss() && request.names.iter().all(lasts) {
            let what = format!("{}{}", request.names.join("+"), story(evidence, claim));
            found.push(Violation::new(Rule::EarlyLoss, at, what));
            return;
        }
    }
}

/// A lease that certainly lasts is in every view of the lock.
fn seen_without(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    for (name, grants) in &evidence.by_name {
        let mut views: Vec<_> = evidence.history.views.iter().collect();
        views.retain(|view| view.name == **name);
        views.sort_unstable_by_key(|view| view.sent);
        for grant in grants.iter().map(|index| &evidence.grants[*index]) {
            let missing = grant.lasting.iter().find_map(|lasting| {
                let first = views.partition_point(|view| view.sent < lasting.from);
                let during = views[first..].iter();
                let mut during = during.take_while(|view| view.sent < lasting.known_until);
                during.find(|view| {
                    view.at < lasting.known_until
                        && !evidence.history.is_former_view(view)
                        && !may_show(evidence, view, grant)
                        && !evidence.may_lose(
                            grant,
                            evidence.history.requests[lasting.request].sent,
                            view.at,
                        )
                })
            });
            if let Some(view) = missing {
                let what = format!(
                    "{name} is seen without it from {:.3} to {:.3}{}",
                    view.sent as f64 / 1e6,
                    view.at as f64 / 1e6,
                    story(evidence, grant.claim)
                );
                found.push(Violation::new(Rule::EarlyLoss, view.at, what));
            }
        }
    }
}

/// Whether a view shows the lease; or, while a node of a quorum is silent, another token of it, or a rest in its place.
fn may_show(evidence: &Evidence<'_>, view: &View, grant: &Grant<'_>) -> bool {
    let history = evidence.history;
    view.holders.iter().any(|(owner, fence)| {
        let claim = evidence.claim_of.get(owner.as_str());
        let is_meant = |claim: &usize| match *claim == grant.claim {
            true => history.fence_meant(view, *claim, *fence) == grant.fence,
            false => history.is_doubtful(view, *claim),
        };
        *fence == grant.fence || claim.is_some_and(is_meant)
    })
}

/// A lock is not held for a claim that was finally refused, or whose only stream was closed.
fn unowned(
    evidence: &Evidence<'_>,
    view: &View,
    claim: usize,
    fence: u64,
    found: &mut Vec<Violation>,
) {
    let Some(last) = evidence.requests_of(claim).next_back() else {
        return;
    };
    let requests = || evidence.requests_of(claim);
    let Some(over) = requests()
        .map(Request::ended)
        .max()
        .filter(|over| *over < view.sent)
    else {
        return;
    };
    let is_stream = |request: &Request| matches!(request.action, Action::Hold { .. });
    let was_closed = requests().all(is_stream)
        && last.arrivals.last().is_some()
        && requests().all(|request| matches!(request.end, Some((_, End::HungUp))));
    let was_refused = last.asks()
        && last.refusal().is_some_and(|(_, refusal)| refusal.is_busy())
        && requests().all(|request| {
            !request.is_granted() && request.end.is_some_and(|(_, end)| end == End::Answered)
        });
    let margin = if was_refused { UNDER_WAY } else { 0 };
    if !(was_closed || was_refused) || view.sent < quiet_since(evidence, claim, over, view) + margin
    {
        return;
    }
    let is_known = found
        .iter()
        .any(|known| known.rule == Rule::UnownedHold && known.what.contains(&fence.to_string()));
    if !is_known {
        let what = format!(
            "{} is held with fence {fence} at {:.3}{}",
            view.name,
            view.sent as f64 / 1e6,
            story(evidence, claim)
        );
        found.push(Violation::new(Rule::UnownedHold, view.sent, what));
    }
}

/// When a lease without an owner must have been rolled back, whatever happened to the processes of its claim.
fn quiet_since(evidence: &Evidence<'_>, claim: usize, over: Micros, view: &View) -> Micros {
    let requests = || evidence.requests_of(claim);
    let first = requests().map(|request| request.sent).min().unwrap_or(0);
    if evidence.has_clock_step(first, view.at, false) {
        return Micros::MAX / 2;
    }
    let mut quiet = over + ROLLBACK;
    for outage in &evidence.history.outages {
        let mut processes = requests().map(|request| request.process);
        if !processes.any(|process| outage.strikes(process, first, view.at)) {
            continue;
        }
        // A killed process rolls nothing back: the lease expires instead.
        if outage.ends_process {
            return Micros::MAX / 2;
        }
        quiet = quiet.max(outage.until + SETTLING + ROLLBACK);
    }
    quiet
}

/// A claim on several locks that holds one of them before and after a view of another one must hold that one too.
fn pairs(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    for three in evidence.history.views.windows(3) {
        let [before, meanwhile, after] = three else {
            continue;
        };
        if before.name != after.name
            || before.name == meanwhile.name
            || three
                .iter()
                .any(|view| evidence.history.is_former_view(view))
        {
            continue;
        }
        for (owner, fence) in &before.holders {
            let Some(claim) = evidence.claim_of.get(owner.as_str()) else {
                continue;
            };
            let terms = &evidence.history.claims[*claim];
            let evictions = evidence.history.requests.iter();
            let mut evictions = evictions.filter(|request| request.action == Action::Evict);
            let wants_both = terms.names.contains(&meanwhile.name);
            let holds = |view: &View| view.holders.iter().any(|(other, _)| other == owner);
            let still = after.holders.contains(&(owner.clone(), *fence));
            // On several nodes, a part is seen until the request is answered.
            let mut requests = evidence.history.requests.iter();
            let is_under_way = evidence.history.bounds.is_partitioned
                && requests.any(|request| {
                    let answered = request.end.as_ref().map_or(Micros::MAX, |(at, _)| *at);
                    let is_of_claim = request.claim == Some(*claim);
                    is_of_claim && request.sent <= after.at && answered >= before.sent
                });
            // After a backward step, an expired lease lasts again on those of its locks that were not granted since.
            let lately = before.sent.saturating_sub(terms.lease + SETTLING);
            let lives_again = evidence.has_clock_step(lately, after.at, false);
            if wants_both
                && still
                && !lives_again
                && !is_under_way
                && !holds(meanwhile)
                && !evictions.any(|eviction| eviction.names[0] == meanwhile.name)
                && !evidence.has_lost_leases(before.sent.saturating_sub(SETTLING), after.at)
            {
                let what = format!("{} without {}", before.name, meanwhile.name);
                let what = format!("{what}{}", story(evidence, *claim));
                found.push(Violation::new(Rule::PartialGrant, meanwhile.at, what));
            }
        }
    }
}
