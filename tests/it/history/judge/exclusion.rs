//! Claims that held a lock at the same time, or got it while it was closed.

use std::collections::BTreeMap;

use super::super::record::{Action, Answer, Micros, Mode};
use super::{Counts, Evidence, Rule, Violation, conflicts, lasting, story};

/// A lease, in the time in which it certainly lasted.
#[derive(Clone, Copy)]
struct Holding {
    grant: usize,
    claim: usize,
    mode: Mode,
    from: Micros,
    until: Micros,
    /// Whether a former primary may have reported it.
    is_former: bool,
}

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>, counts: &mut Counts) {
    for (name, grants) in &evidence.by_name {
        let mut holdings: Vec<_> = lasting(evidence, grants)
            .into_iter()
            .map(|(grant, lasting)| Holding {
                grant,
                claim: evidence.grants[grant].claim,
                mode: lasting.mode,
                from: lasting.from,
                until: lasting.known_until,
                is_former: {
                    let request = &evidence.history.requests[lasting.request];
                    evidence.history.is_former_answer(request, lasting.from)
                },
            })
            .filter(|holding| holding.from < holding.until)
            .collect();
        holdings.sort_unstable_by_key(|holding| holding.from);
        let (mut with_former, before) = (Vec::new(), found.len());
        overlaps(evidence, name, &holdings, &mut with_former);
        holdings.retain(|holding| !holding.is_former);
        overlaps(evidence, name, &holdings, found);
        let permitted = with_former.len().saturating_sub(found.len() - before);
        counts.former_primary_overlaps += permitted;
        for grant in grants {
            cooling(evidence, *grant, grants, found);
        }
    }
}

fn overlaps(evidence: &Evidence<'_>, name: &str, holdings: &[Holding], found: &mut Vec<Violation>) {
    let mut current: Vec<Holding> = Vec::new();
    let mut reported = Vec::new();
    for holding in holdings {
        current.retain(|other| other.until > holding.from);
        let others = current.iter().filter(|other| other.claim != holding.claim);
        let wrong = others
            .clone()
            .find_map(|other| Some((wrong(*other, *holding)?, Some(other.claim))));
        let wrong = wrong.or_else(|| Some((too_many(others, *holding)?, None)));
        if let Some((rule, other)) = wrong
            && !reported.contains(&(rule, holding.claim))
        {
            reported.push((rule, holding.claim));
            let with = other.map_or_else(String::new, |other| story(evidence, other));
            let fence = evidence.grants[holding.grant].fence;
            let what = format!(
                "{name}, fence {fence}:{with}{}",
                story(evidence, holding.claim)
            );
            found.push(Violation::new(rule, holding.from, what));
        }
        current.push(*holding);
    }
}

/// The rule by which two claims may not hold at once.
fn wrong(one: Holding, other: Holding) -> Option<Rule> {
    if conflicts(one.mode, other.mode) {
        return Some(Rule::Overlap);
    }
    let limits = [one, other].map(|holding| limit(holding.mode));
    (limits[0] != limits[1]).then_some(Rule::DifferingLimits)
}

/// Whether one more holder exceeds the limit.
fn too_many<'a>(others: impl Iterator<Item = &'a Holding>, holding: Holding) -> Option<Rule> {
    let limit = u64::from(limit(holding.mode)?);
    let mut taken: BTreeMap<usize, u64> = BTreeMap::new();
    for holding in others.copied().chain([holding]) {
        if let Mode::Shared { permits, .. } = holding.mode {
            taken.insert(holding.claim, permits.into());
        }
    }
    (taken.values().sum::<u64>() > limit).then_some(Rule::Permits)
}

fn limit(mode: Mode) -> Option<u32> {
    match mode {
        Mode::Exclusive => None,
        Mode::Shared { limit, .. } => limit,
    }
}

/// No other claim gets a lock before the `min_hold` of a released lease or the `lock_delay` of an expired one is over.
/// This checks only leases that exclude each other: for shared ones, the permits stay taken instead.
fn cooling(evidence: &Evidence<'_>, index: usize, grants: &[usize], found: &mut Vec<Violation>) {
    let grant = &evidence.grants[index];
    let terms = &evidence.history.claims[grant.claim];
    let Some((closed_until, evicted_by)) = closed(evidence, index) else {
        return;
    };
    for other in grants {
        let other = &evidence.grants[*other];
        let others = &evidence.history.claims[other.claim];
        if other.claim == grant.claim
            || other.fence <= grant.fence
            || other.reported >= closed_until
            || other.requested < evicted_by
            || !conflicts(terms.mode, others.mode)
            // A clock step or a loss of leases may end the cool-down.
            || evidence.has_clock_step(grant.requested, other.reported, false)
            || evidence.has_lost_leases(grant.requested, other.reported)
        {
            continue;
        }
        let what = format!(
            "{}:{}{}",
            grant.name,
            story(evidence, grant.claim),
            story(evidence, other.claim)
        );
        found.push(Violation::new(Rule::Cooling, other.reported, what));
    }
}

/// Until when the lock of a lease is certainly closed, and from when this applies to others.
fn closed(evidence: &Evidence<'_>, index: usize) -> Option<(Micros, Micros)> {
    let grant = &evidence.grants[index];
    let terms = &evidence.history.claims[grant.claim];
    let steps_down = |mode: Mode| mode != terms.mode;
    if grant.lasting.iter().any(|lasting| steps_down(lasting.mode)) {
        return None;
    }
    let evictions = evidence
        .history
        .requests
        .iter()
        .filter(|request| request.action == Action::Evict && request.names[0] == grant.name);
    let mut evictions = evictions.filter(|request| request.ended() >= grant.requested);
    let mut requests = evidence.requests_of(grant.claim);
    let may_be_released = requests.any(|request| {
        request.action == Action::Release || matches!(request.action, Action::Hold { .. })
    });
    match evictions.next() {
        Some(eviction) if terms.lock_delay > 0 => match eviction.last() {
            Some(Answer::Evicted(fences)) if fences.contains(&grant.fence) => {
                let answered = eviction.first_arrival()?;
                Some((eviction.sent + terms.lock_delay, answered))
            }
            _ => None,
        },
        Some(_) => None,
        None if terms.min_hold > 0 && may_be_released => {
            Some((grant.requested + terms.min_hold, 0))
        }
        None if terms.lock_delay > 0 && !may_be_released => {
            let last = grant.lasting.iter().map(|lasting| lasting.until).max()?;
            Some((last + terms.lock_delay, 0))
        }
        None => None,
    }
}
