//! Which leases there were, and in which time each of them certainly lasted, as its holder could know.
//!
//! A report of a lease speaks for the time from its arrival until what it said is over, counted from the request or
//! from what is known of the time of writing. It is shortened by everything that may have ended the lease: a release, an
//! eviction, a stream that was closed, a clock of Redis that jumped forward.

use std::collections::BTreeMap;

use super::super::record::{Action, Answer, End, Micros, Mode, Request};
use super::Evidence;

/// A stream is written to by a process that had to be scheduled, and read by one that had to be, too. Nobody counts a
/// lease from the arrival of an event without allowing for that.
const EVENT_UNDER_WAY: Micros = 50_000;

/// A broken stream is noticed by its client a moment after the process may have noticed it.
const BREAK_NOTICED: Micros = 50_000;

/// A lease that somebody was told of.
#[derive(Clone, Debug)]
pub(super) struct Grant<'a> {
    pub(super) claim: usize,
    pub(super) name: &'a str,
    pub(super) fence: u64,
    /// The lease did not begin before.
    pub(super) asked: Micros,
    /// The lease had begun by then.
    pub(super) told: Micros,
    /// It did not last longer, by what anybody was told: a report that was late says less than what the store knows.
    pub(super) latest_end: Micros,
    /// The times in which it certainly lasted.
    pub(super) lasting: Vec<Lasting>,
}

/// A time in which a lease certainly lasted, by one report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lasting {
    /// The number of the request that was told.
    pub(super) request: usize,
    pub(super) mode: Mode,
    pub(super) from: Micros,
    /// Until then nothing could have ended it.
    pub(super) until: Micros,
    /// The same, or when its holder was told that it is lost.
    pub(super) known_until: Micros,
}

/// One report: what was said in one arrival about one lock.
struct Report<'a> {
    request: usize,
    name: &'a str,
    fence: u64,
    is_new: bool,
    at: Micros,
    /// Counted from here, the lease lasts so long.
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

/// Whether the client waited for another answer just then, and read its stream only afterwards.
fn was_busy(evidence: &Evidence<'_>, claim: usize, index: usize, at: Micros) -> bool {
    evidence.by_claim[claim].iter().any(|other| {
        let request = &evidence.history.requests[*other];
        let answered = request.first_arrival().unwrap_or(Micros::MAX);
        *other != index && request.sent < at && answered + EVENT_UNDER_WAY > at
    })
}

/// When an event of a stream was written, at the earliest: just now, or after the event before it if the process stood
/// still meanwhile.
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
        asked: made_by.map_or(first_ask, |report| requests[report.request].sent),
        told: reports.iter().map(|report| report.at).min().unwrap_or(0),
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
    let asked = &evidence.history.requests[report.request];
    let (mode, stepped_down) = mode(evidence, claim, asked);
    let mut until = end(evidence, report, asked.sent).min(stepped_down);
    let mut known_until = Micros::MAX;
    let own = evidence.requests_of(claim);
    let own = own.filter(|request| request.names.iter().any(|name| name == report.name));
    for other in own {
        until = until.min(ending(other, asked));
        if let Some((at, refusal)) = other.refusal()
            && refusal.is_loss()
            && at >= asked.sent
        {
            known_until = known_until.min(at);
        }
    }
    for eviction in evictions {
        until = until.min(ending(eviction, asked));
    }
    Lasting {
        request: report.request,
        mode,
        from: report.at,
        until,
        known_until: known_until.min(until),
    }
}

/// How the lease was held by this report, and when it may have stepped down from holding alone.
fn mode(evidence: &Evidence<'_>, claim: usize, asked: &Request) -> (Mode, Micros) {
    const READ: Mode = Mode::Shared {
        limit: None,
        permits: 1,
    };
    let mode = evidence.history.claims[claim].mode;
    let mut requests = evidence.requests_of(claim);
    let down =
        requests.find(|request| request.action == Action::StepDown && request.refusal().is_none());
    match down {
        Some(down) if asked.sent >= down.sent => (READ, Micros::MAX),
        Some(down) => (mode, down.sent),
        None => (mode, Micros::MAX),
    }
}

/// When a request may have ended the lease that another one was told of; never, if it cannot have.
fn ending(other: &Request, asked: &Request) -> Micros {
    let is_without_effect = match other.last() {
        Some(Answer::Refused(refusal)) => refusal.is_without_effect,
        _ => false,
    };
    match other.action {
        Action::Release | Action::Evict => {
            // It has had its effect by the time of its answer, if that is definite.
            let is_definite = match other.last() {
                Some(Answer::Refused(refusal)) => refusal.status < 500,
                Some(_) => true,
                None => false,
            };
            let done = other.first_arrival().filter(|_| is_definite);
            if is_without_effect || asked.sent > done.unwrap_or(Micros::MAX) {
                return Micros::MAX;
            }
            other.sent
        }
        Action::Hold { .. } => {
            // A stream that something of the same claim took over cannot give the lease back any more.
            let is_same = std::ptr::eq(other, asked);
            let was_taken_over = other.first_arrival().is_some_and(|at| at < asked.sent);
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
/// The clock of Redis is the one by which leases end: what a jump forward takes from them is physics, and documented. It
/// takes exactly its own length, and only from leases that were granted before it.
fn end(evidence: &Evidence<'_>, report: &Report<'_>, sent: Micros) -> Micros {
    let signed = |at: Micros| i64::try_from(at).unwrap_or(i64::MAX / 4);
    let by_itself = signed(report.base) + signed(report.expires_in);
    // A step forward counts from when it may have been, one back from when it was.
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
