//! What becomes of single claims: leases that are lost, that come back, that are told of too late, in parts, or to
//! nobody.

use std::collections::BTreeMap;

use super::super::record::{Action, Answer, End, Micros, Request, SECOND, View};
use super::{Evidence, Grant, Rule, SETTLING, Violation, shown, story};

/// For how long an ended claim is certainly remembered: the minute of the promise, less what a request takes.
const REMEMBERED: Micros = 55 * SECOND;

/// How long it may take until something is rolled back, when no fault is about.
const ROLLBACK: Micros = 2 * SECOND;

/// A request that was held back on its way comes three seconds late at the most.
const UNDER_WAY: Micros = 4 * SECOND;

/// How long after the last moment of a lease its renewal has to fail.
const OVER: Micros = SECOND / 5;

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
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
    twice(evidence, &grants, found);
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
            let mut told: Vec<_> = leases.iter().map(|lease| &lease.name).collect();
            let mut wanted: Vec<_> = request.names.iter().collect();
            told.sort_unstable();
            wanted.sort_unstable();
            if told != wanted {
                found.push(Violation::new(Rule::PartialGrant, *at, shown(request)));
            }
        }
    }
}

/// A claim that ended is not granted again, and a lease that is over cannot be renewed.
fn resurrected(evidence: &Evidence<'_>, claim: usize, found: &mut Vec<Violation>) {
    let is_exempt = |from: Micros, until: Micros| {
        // Who lost its data or jumped ahead by more than a minute remembers nothing; a lease whose clock went back is longer.
        evidence.has_loss(from, until) || evidence.has_clock_step(from, until, false)
    };
    let mut first_granted = Micros::MAX;
    let mut ended: Option<Micros> = None;
    let mut lasts_until: Option<Micros> = Some(0);
    for request in evidence.requests_of(claim) {
        if let Some(ended) = ended
            && request.is_granted()
            && request.sent > ended
            && request.ended().min(request.sent + SECOND) < ended + REMEMBERED
            && !is_exempt(
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
                    // What is told counts from before the store was asked; the store counts from when it did it.
                    let full = evidence.history.claims[claim].lease;
                    let told = leases.iter().map(|lease| lease.expires_in.max(full)).max();
                    let end = told.map(|told| at + told);
                    lasts_until = lasts_until.map(|until| until.max(end.unwrap_or(0)));
                }
                Answer::Freed
                    if request.action == Action::Release && first_granted < request.sent =>
                {
                    ended = Some(ended.unwrap_or(*at));
                }
                Answer::Refused(refusal) if refusal.is_end() => ended = Some(ended.unwrap_or(*at)),
                Answer::Freed | Answer::Refused(_) | Answer::Queued | Answer::Evicted(_) => {}
            }
        }
        // A lease that may have been renewed without anybody being told lasts for who knows how long.
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
) {
    for ((claim, _), grants) in grants {
        let mut grants = grants.clone();
        grants.sort_unstable_by_key(|grant| grant.told);
        for pair in grants.windows(2) {
            let (from, until) = (pair[0].asked, pair[1].told);
            let is_exempt =
                evidence.has_loss(from, until) || evidence.has_clock_step(from, until, true);
            if pair[1].asked < pair[0].latest_end + REMEMBERED && !is_exempt {
                let what = format!("two leases of one claim{}", story(evidence, *claim));
                found.push(Violation::new(Rule::Resurrection, until, what));
            }
        }
    }
}

/// Leases that certainly last are not refused to their claim. One refusal speaks for all locks of a request, so it is wrong
/// only if none of them may be lost.
fn refused_early(evidence: &Evidence<'_>, claim: usize, found: &mut Vec<Violation>) {
    for request in evidence.requests_of(claim) {
        let Some((at, refusal)) = request.refusal() else {
            continue;
        };
        // A stream goes by what it knows itself, and says so when it says so; any other request looks at the store.
        let is_stream = matches!(request.action, Action::Hold { .. }) && request.is_granted();
        let asked = if is_stream { at } else { request.sent };
        let lasts = |name: &String| {
            let grants = evidence.by_name.get(name.as_str()).into_iter().flatten();
            let own = grants.map(|grant| &evidence.grants[*grant]);
            let mut lasting = own
                .filter(|grant| grant.claim == claim)
                .flat_map(|grant| &grant.lasting);
            lasting.any(|lasting| {
                let told = &evidence.history.requests[lasting.request];
                lasting.from < asked
                    && at < lasting.until
                    && (!is_stream || std::ptr::eq(told, request))
                    && !evidence.has_loss(told.sent, at)
            })
        };
        if refusal.is_loss() && request.names.iter().all(lasts) {
            let what = format!("{}{}", request.names.join("+"), story(evidence, claim));
            found.push(Violation::new(Rule::EarlyLoss, at, what));
            return;
        }
    }
}

/// A lease that certainly lasts is seen by everybody.
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
                        && !view.holders.iter().any(|(_, fence)| *fence == grant.fence)
                        && !evidence
                            .has_loss(evidence.history.requests[lasting.request].sent, view.at)
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

/// Nobody holds for a claim that was refused for good, or whose only stream was closed.
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

/// From when on a lease that nobody owns should have been rolled back, whatever happened to the processes of its claim.
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
        // A process that was killed rolls nothing back: then the lease runs out.
        if outage.ends_process {
            return Micros::MAX / 2;
        }
        quiet = quiet.max(outage.until + SETTLING + ROLLBACK);
    }
    quiet
}

/// Whoever holds one of several locks before and after another one of them is looked at holds that one, too.
fn pairs(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    for three in evidence.history.views.windows(3) {
        let [before, meanwhile, after] = three else {
            continue;
        };
        if before.name != after.name || before.name == meanwhile.name {
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
            // A lease that had run out lives again on those of its locks that nobody has got since.
            let lately = before.sent.saturating_sub(terms.lease + SETTLING);
            let lives_again = evidence.has_clock_step(lately, after.at, false);
            if wants_both
                && still
                && !lives_again
                && !holds(meanwhile)
                && !evictions.any(|eviction| eviction.names[0] == meanwhile.name)
                && !evidence.has_loss(before.sent.saturating_sub(SETTLING), after.at)
            {
                let what = format!("{} without {}", before.name, meanwhile.name);
                let what = format!("{what}{}", story(evidence, *claim));
                found.push(Violation::new(Rule::PartialGrant, meanwhile.at, what));
            }
        }
    }
}
