//! The leases, and the time in which each of them certainly lasted, as its holder could know.
//!
//! A report of a lease covers the time from its arrival to the reported end, counted from the request or from the
//! earliest possible time of writing. It is cut short by everything that may have ended the lease: a release, an
//! eviction, a closed stream, a forward step of the Redis clock.

use std::collections::BTreeMap;

use super::super::record::{Action, Answer, End, Micros, Mode, Request};
use super::Evidence;

/// Writing and reading an event both include scheduling delays. The end of a lease that is counted from the arrival of
/// an event must allow for that.
const EVENT_UNDER_WAY: Micros = 50_000;

/// The process may detect a broken stream this long before the client does.
const BREAK_NOTICED: Micros = 50_000;

/// A lease that was reported to a client.
#[derive(Clone, Debug)]
pub(super) struct Grant<'a> {
    pub(super) claim: usize,
    pub(super) name: &'a str,
    pub(super) fence: u64,
    /// The lease did not begin before this.
    pub(super) requested: Micros,
    /// The lease had begun by then.
    pub(super) reported: Micros,
    /// The lease did not last longer than this, by all reports. A late report understates what the store knows.
    pub(super) latest_end: Micros,
    /// The times in which it certainly lasted.
    pub(super) lasting: Vec<Lasting>,
}

/// A time in which a lease certainly lasted, by one report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lasting {
    /// The number of the request with the report.
    pub(super) request: usize,
    pub(super) mode: Mode,
    pub(super) from: Micros,
    /// Nothing could have ended the lease before this.
    pub(super) until: Micros,
    /// The same, or when its holder learned that it is lost.
    pub(super) known_until: Micros,
}

/// One report: the part of one arrival about one lock.
struct Report<'a> {
    request: usize,
    name: &'a str,
    fence: u64,
    is_new: bool,
    at: Micros,
    /// The time from which the reported rest of the lease is counted.
    base: Micros,
    expires_in: Micros,
}

/// Every grant, in the order of claims.
pub(super) fn grants<'a>(evidence: &Evidence<'a>) -> Vec<Grant<'a>> {
    let mut evictions: BTreeMap<&str, Vec<&Request>> = BTreeMap::new();
    for request in &evidence.history.requests {
        if request.action == Action::Evict {
            let of_name = evictions.entry(&request.names[0]).or_default();
            of_name.push(request);
        }
    }
    let mut all = Vec::new();
    for claim in 0..evidence.by_claim.len() {
        let mut leases: BTreeMap<(&str, u64), Vec<Report<'_>>> = BTreeMap::new();
        for report in reports(evidence, claim) {
            let key = (report.name, report.fence);
            leases.entry(key).or_default().push(report);
        }
        for ((name, _), reports) in leases {
            let evictions = evictions.get(name).map_or(&[][..], Vec::as_slice);
            all.push(grant(evidence, claim, &reports, evictions));
        }
    }
    all
}

fn reports<'a>(evidence: &Evidence<'a>, claim: usize) -> Vec<Report<'a>> {
    let mut reports = Vec::new();
    for index in &evidence.by_claim[claim] {
        let request = &evidence.history.requests[*index];
        let mut before = request.sent;
        let mut is_first = true;
        for (at, answer) in &request.arrivals {
            if let Answer::Granted {
                leases,
                is_new,
                waited,
            } = answer
            {
                let base = match (is_first, &request.action) {
                    (true, Action::Hold { .. }) => {
                        (request.sent + waited).min(at.saturating_sub(EVENT_UNDER_WAY))
                    }
                    (true, _) => request.sent + waited,
                    (false, _) if was_busy(evidence, claim, *index, *at) => request.sent,
                    (false, _) => written(evidence, request, before, *at),
                };
                reports.extend(leases.iter().map(|lease| Report {
                    request: *index,
                    name: &lease.name,
                    fence: lease.fence,
                    is_new: *is_new,
                    at: *at,
                    base: base.min(*at),
                    expires_in: lease.expires_in,
                }));
                is_first = false;
            }
            before = *at;
        }
    }
    reports
}

/// Whether the client was waiting for another response at this time, and read its stream only afterwards.
fn was_busy(evidence: &Evidence<'_>, claim: usize, index: usize, at: Micros) -> bool {
    evidence.by_claim[claim].iter().any(|other| {
        let request = &evidence.history.requests[*other];
        let answered = request.first_arrival().unwrap_or(Micros::MAX);
        *other != index && request.sent < at && answered.saturating_add(EVENT_UNDER_WAY) > at
    })
}

/// The earliest time at which an event of a stream was written: just before its arrival, or after the previous event if
/// the process was paused meanwhile.
fn written(evidence: &Evidence<'_>, request: &Request, before: Micros, at: Micros) -> Micros {
    let mut outages = evidence.history.outages.iter();
    let stood_still = outages.any(|outage| outage.strikes(request.process, before, at));
    let written = at.saturating_sub(EVENT_UNDER_WAY);
    if stood_still { before } else { written }
}

fn grant<'a>(
    evidence: &Evidence<'a>,
    claim: usize,
    reports: &[Report<'a>],
    evictions: &[&Request],
) -> Grant<'a> {
    let requests = &evidence.history.requests;
    let made_by = reports.iter().find(|report| report.is_new);
    let first_ask = evidence.requests_of(claim).find(|request| request.asks());
    let first_ask = first_ask.map_or(0, |request| request.sent);
    let first = &reports[0];
    Grant {
        claim,
        name: first.name,
        fence: first.fence,
        requested: made_by.map_or(first_ask, |report| requests[report.request].sent),
        reported: reports.iter().map(|report| report.at).min().unwrap_or(0),
        latest_end: reports
            .iter()
            .map(|report| report.at + report.expires_in.max(evidence.history.claims[claim].lease))
            .max()
            .unwrap_or(0),
        lasting: reports
            .iter()
            .map(|report| lasting(evidence, claim, report, evictions))
            .collect(),
    }
}

fn lasting(
    evidence: &Evidence<'_>,
    claim: usize,
    report: &Report<'_>,
    evictions: &[&Request],
) -> Lasting {
    let reporting = &evidence.history.requests[report.request];
    let (mode, stepped_down) = mode(evidence, claim, reporting);
    let mut until = end(evidence, report, reporting.sent).min(stepped_down);
    let mut known_until = Micros::MAX;
    let own = evidence.requests_of(claim);
    let own = own.filter(|request| request.names.iter().any(|name| name == report.name));
    for other in own {
        until = until.min(ending(other, reporting));
        if let Some((at, refusal)) = other.refusal()
            && refusal.is_loss()
            && at >= reporting.sent
        {
            known_until = known_until.min(at);
        }
    }
    for eviction in evictions {
        until = until.min(ending(eviction, reporting));
    }
    Lasting {
        request: report.request,
        mode,
        from: report.at,
        until,
        known_until: known_until.min(until),
    }
}

/// The mode of the lease by this report, and when it may have been downgraded from exclusive.
fn mode(evidence: &Evidence<'_>, claim: usize, reporting: &Request) -> (Mode, Micros) {
    const READ: Mode = Mode::Shared {
        limit: None,
        permits: 1,
    };
    let mode = evidence.history.claims[claim].mode;
    let mut requests = evidence.requests_of(claim);
    let down =
        requests.find(|request| request.action == Action::StepDown && request.refusal().is_none());
    match down {
        Some(down) if reporting.sent >= down.sent => (READ, Micros::MAX),
        Some(down) => (mode, down.sent),
        None => (mode, Micros::MAX),
    }
}

/// When a request may have ended the lease that another one reported; never, if it cannot have.
fn ending(other: &Request, reporting: &Request) -> Micros {
    let is_without_effect = match other.last() {
        Some(Answer::Refused(refusal)) => refusal.is_without_effect,
        _ => false,
    };
    match other.action {
        Action::Release | Action::Evict => {
            // If its answer is definite, it took effect before that.
            let is_definite = match other.last() {
                Some(Answer::Refused(refusal)) => refusal.status < 500,
                Some(_) => true,
                None => false,
            };
            let done = other.first_arrival().filter(|_| is_definite);
            if is_without_effect || reporting.sent > done.unwrap_or(Micros::MAX) {
                return Micros::MAX;
            }
            other.sent
        }
        Action::Hold { .. } => {
            // A stream cannot release a lease that a later request of the same claim has taken over.
            let is_same = std::ptr::eq(other, reporting);
            let was_taken_over = other.first_arrival().is_some_and(|at| at < reporting.sent);
            let was_refused = other.refusal().is_some() && !other.is_granted();
            if !is_same && (was_taken_over || was_refused) {
                return Micros::MAX;
            }
            match other.end {
                Some((at, End::HungUp | End::GaveUp)) => at,
                Some((at, End::Broken)) => at.saturating_sub(BREAK_NOTICED),
                Some((_, End::Answered)) | None => Micros::MAX,
            }
        }
        Action::Acquire { .. } | Action::Renew | Action::StepDown | Action::StepBack => Micros::MAX,
    }
}

/// When the lease of a report ends by its own time.
///
/// Leases end by the Redis clock, so a forward step shortens them, as documented: by exactly its own length, and only
/// leases that were granted before it.
fn end(evidence: &Evidence<'_>, report: &Report<'_>, sent: Micros) -> Micros {
    let signed = |at: Micros| i64::try_from(at).unwrap_or(i64::MAX / 4);
    let by_itself = signed(report.base) + signed(report.expires_in);
    // A forward step counts from its earliest possible time, a backward step from its latest.
    let mut steps: Vec<(i64, i64)> = evidence
        .history
        .clock_steps
        .iter()
        .map(|step| {
            (
                signed(if step.by > 0 { step.before } else { step.after }),
                step.by,
            )
        })
        .collect();
    steps.sort_unstable();
    let (mut offset, mut granted_at_offset, mut end) = (0, i64::MAX, None);
    let mut later = Vec::new();
    for (at, by) in steps {
        if at <= signed(sent) {
            offset += by;
        } else {
            later.push((at, by));
        }
    }
    granted_at_offset = granted_at_offset.min(offset);
    let mut during = offset;
    for (at, by) in &later {
        if *at <= signed(report.at) {
            during += by;
            granted_at_offset = granted_at_offset.min(during);
        }
    }
    let mut began = 0;
    for (at, by) in later.iter().copied().chain([(i64::MAX, 0)]) {
        let over = by_itself + granted_at_offset - offset;
        if end.is_none() && over.max(began) < at {
            end = Some(over.max(began));
        }
        began = at;
        offset += by;
    }
    let end = end.unwrap_or(by_itself).min(by_itself);
    Micros::try_from(end).unwrap_or(0)
}
