//! Late responses, and failures that no fault explains.

use super::super::minority::Together;
use super::super::record::{Action, Answer, Effect, End, Micros, Outage, Refusal, Request, SECOND};
use super::queues::grace_end;
use super::{Evidence, Excused, Rule, SETTLING, Violation, shown, story};

/// The operation timeout, after which an outcome is reported as unknown.
const OPERATION: Micros = 2 * SECOND;

/// How long an operation may take on nodes that are well: each of its steps waits a tenth of a second for the slowest.
const OF_SLOWEST: Micros = SECOND / 2;

/// How long after an outage a request may still fail: the processes connect again, and then an operation may run out of
/// time.
const RECONNECTING: Micros = SECOND + OPERATION;

/// A lease with less left than this is not reported.
const LEFT_MIN: Micros = 1_000;

/// Failures of several nodes of a quorum, after which a majority may not answer.
const FAILING: Together = Together {
    at_least: 0,
    apart: SECOND,
};

/// Refusals that are normal without any fault.
const ORDINARY: [&str; 16] = [
    "lock_held",
    "lock_cooling",
    "wait_timeout",
    "limit_mismatch",
    "upgrade_unsupported",
    "claim_mismatch",
    "claim_ended",
    "lease_released",
    "lease_expired",
    "lease_lost",
    "lease_evicted",
    "token_unknown",
    "too_many_waiters",
    "store_unavailable",
    "store_full",
    "recovering",
];

pub(super) fn judge(evidence: &Evidence<'_>, found: &mut Vec<Violation>, excused: &mut Excused) {
    for request in &evidence.history.requests {
        late(evidence, request, found);
        for (at, answer) in &request.arrivals {
            if let Answer::Refused(refusal) = answer
                && is_wrong(evidence, request, *at, refusal)
            {
                if refusal.code == "store_unavailable" && is_too_short(evidence, request, *at) {
                    excused.failures += 1;
                    continue;
                }
                if refusal.code == "store_unavailable" && may_lack_a_node(evidence, request, *at) {
                    excused.failures_at_few_nodes += 1;
                    continue;
                }
                let reported = request
                    .claim
                    .map_or_else(|| shown(request), |claim| story(evidence, claim));
                let Refusal {
                    status,
                    code,
                    detail,
                    ..
                } = refusal;
                let what = format!("{status} {code} ({detail}): {reported}");
                found.push(Violation::new(Rule::WrongFailure, *at, what));
            }
        }
    }
}

/// A wait ends at its deadline. Pauses and outages of its process delay it by their own length and that of an operation
/// in flight.
fn late(evidence: &Evidence<'_>, request: &Request, found: &mut Vec<Violation>) {
    let is_answer = |answer: &Answer| matches!(answer, Answer::Granted { .. } | Answer::Refused(_));
    let answered = match request.action {
        Action::Hold { .. } => return,
        Action::Acquire { .. }
        | Action::Renew
        | Action::StepDown
        | Action::Release
        | Action::StepBack
        | Action::Evict => request
            .arrivals
            .iter()
            .find(|(_, answer)| is_answer(answer)),
    };
    let gave_up = request.end.filter(|(_, end)| *end == End::GaveUp);
    let Some(at) = answered.map(|(at, _)| *at).or(gave_up.map(|(at, _)| at)) else {
        return;
    };
    let mut outages = evidence.history.outages.iter();
    let is_struck = outages.any(|outage| {
        let until = Outage {
            until: outage.until + OPERATION,
            ..outage.clone()
        };
        until.strikes(request.process, request.sent, at)
    });
    // Requests without a wait may take as long as a store operation.
    let waits = request.deadline() > request.sent;
    let allowed = if waits { 0 } else { OPERATION };
    if !is_struck && at > request.deadline() + allowed + evidence.history.bounds.late {
        found.push(Violation::new(Rule::Late, at, shown(request)));
    }
}

/// Whether the lease of a claim may have ended by then, or so nearly that it is not reported. A renewal makes it longer, if
/// its `max_hold` allows more and the answer does not take as long as the lease.
fn is_over(evidence: &Evidence<'_>, request: &Request, at: Micros) -> bool {
    let Some(claim) = request.claim else {
        return false;
    };
    let terms = &evidence.history.claims[claim];
    // On a quorum, too few nodes may have the lease for that.
    let is_longer = extends(request) && !terms.is_capped && !evidence.history.bounds.is_quorum;
    if is_longer && at + LEFT_MIN < request.sent + terms.lease {
        return false;
    }
    // The time of an answer counts from its request, that of an event from its arrival.
    let ends = evidence.requests_of(claim).flat_map(|reporting| {
        let is_stream = matches!(reporting.action, Action::Hold { .. });
        let arrivals = reporting.arrivals.iter();
        let arrivals = arrivals.filter(|(reported, _)| *reported < at);
        arrivals.filter_map(move |(reported, answer)| match answer {
            Answer::Granted { leases, waited, .. } => {
                let written = (reporting.sent + waited).min(*reported);
                let from = if is_stream { *reported } else { written };
                leases.iter().map(|lease| from + lease.expires_in).max()
            }
            Answer::Queued | Answer::Freed | Answer::Evicted(_) | Answer::Refused(_) => None,
        })
    });
    // What is left is counted from before the store was asked, as if it had answered then.
    let took = at.saturating_sub(request.deadline());
    ends.max().is_some_and(|end| end <= at + took + LEFT_MIN)
}

/// Whether the lease may have ended before it could be reported, which makes the outcome unknown. An earlier request of its
/// claim may have been granted it.
fn may_be_over(evidence: &Evidence<'_>, request: &Request, at: Micros) -> bool {
    let Some(claim) = request.claim else {
        return false;
    };
    let earlier = evidence.requests_of(claim);
    let earlier = earlier.filter(|earlier| earlier.asks() && earlier.sent <= request.sent);
    let asked = earlier.filter(|earlier| std::ptr::eq(*earlier, request) || is_open(earlier));
    let lease = evidence.history.claims[claim].lease;
    let mut asked = asked.filter(|asked| asked.sent + lease < at);
    // It may have been granted at the end of its wait. A later request learns that it has ended.
    asked.any(|asked| at <= asked.deadline() + lease + OPERATION)
}

/// Whether its wait is shorter than an operation may take, and has ended without an answer: a quorum waits a moment for
/// the slowest of its nodes, and longer if one of them fails, and a machine may stand still.
fn is_too_short(evidence: &Evidence<'_>, request: &Request, at: Micros) -> bool {
    let bounds = evidence.history.bounds;
    let mut outages = evidence.history.outages.iter();
    let waits = request.deadline() - request.sent;
    let may_take_long = bounds.is_quorum && waits <= OF_SLOWEST
        || outages.any(|outage| {
            let is_slow = outage.effect == Effect::Stall || outage.node.is_some();
            is_slow && outage.overlaps(request.sent, request.deadline())
        });
    waits > 0 && waits < bounds.late && at >= request.deadline() && may_take_long
}

/// Whether its client never learned what it was granted.
fn is_open(request: &Request) -> bool {
    matches!(request.last(), None | Some(Answer::Queued))
}

/// Whether it makes a lease longer.
fn extends(request: &Request) -> bool {
    matches!(request.action, Action::Renew | Action::StepDown)
}

/// Whether it is about a lease that its claim has or may have had.
fn needs_lease(request: &Request) -> bool {
    request.asks() || extends(request)
}

/// Whether its answer reports a lease.
fn reports_lease(request: &Request) -> bool {
    needs_lease(request) || request.action == Action::StepBack
}

/// Whether it needs a lease that its claim has or may have got before, and too few nodes may have that: two have it at
/// first, and if one of those fails or is slow, the other is no majority.
fn may_lack_a_node(evidence: &Evidence<'_>, request: &Request, at: Micros) -> bool {
    if request.action == Action::Evict && evidence.history.bounds.is_quorum {
        // A lease that one of the others has may go on if a node that does not answer has it, too.
        let mut outages = evidence.history.outages.iter();
        return outages.any(|outage| outage.node.is_some() && outage.overlaps(request.sent, at));
    }
    let during = (request.sent.saturating_sub(RECONNECTING), at);
    let Some(claim) = request.claim.filter(|_| needs_lease(request)) else {
        return false;
    };
    let earlier = evidence.requests_of(claim);
    let earlier = earlier.filter(|earlier| earlier.asks() && earlier.sent < request.sent);
    let mut earlier = earlier.filter(|earlier| earlier.is_granted() || is_unclear(earlier));
    earlier.any(|asked| {
        let answered = (request.sent, at);
        evidence.history.may_lose(claim, asked.sent, during)
            || evidence
                .history
                .may_lack_a_node(claim, asked.sent, answered)
    })
}

/// Whether it may have been granted a lease that was not reported to it.
fn is_unclear(request: &Request) -> bool {
    let is_failure =
        |(_, refusal): (Micros, &Refusal)| refusal.status >= 500 && !refusal.is_without_effect;
    is_open(request) || request.refusal().is_some_and(is_failure)
}

fn is_wrong(evidence: &Evidence<'_>, request: &Request, at: Micros, refusal: &Refusal) -> bool {
    if !ORDINARY.contains(&refusal.code.as_str()) {
        return true;
    }
    let mut outages = evidence.history.outages.iter();
    match refusal.code.as_str() {
        "store_unavailable" => {
            let is_release = request.action == Action::Release;
            if request.asks() && may_be_over(evidence, request, at) {
                return false;
            }
            if reports_lease(request) && is_over(evidence, request, at) {
                return false;
            }
            // A grant while the processes notify each other of a clock step has an unknown outcome.
            let is_at_a_step =
                evidence.has_clock_step(request.sent.saturating_sub(SETTLING), at, false)
                    && !is_release;
            !is_at_a_step
                && !outages.any(|outage| match outage.effect {
                    Effect::Away | Effect::Loss | Effect::Failover => {
                        strikes_until(outage, outage.until + RECONNECTING, request, at)
                    }
                    // A release works when memory is full.
                    Effect::Full => !is_release && strikes_until(outage, outage.until, request, at),
                    Effect::Minority
                    | Effect::MinorityLoss
                    | Effect::FormerPrimary
                    | Effect::Slower
                    | Effect::Stall => false,
                })
                && !evidence
                    .history
                    .has_no_majority((request.sent.saturating_sub(RECONNECTING), at), FAILING)
        }
        "store_full" => {
            // Renewing and releasing need no room. An eviction does: its answer is kept in case it is sent again.
            let needs_room = request.asks() || request.action == Action::Evict;
            !needs_room
                || !outages.any(|outage| {
                    outage.effect == Effect::Full
                        && strikes_until(outage, outage.until, request, at)
                })
        }
        "recovering" => {
            let is_after_a_step = evidence.history.clock_steps.iter().any(|step| {
                step.before <= at && request.sent <= grace_end(evidence, step.before, step.after)
            });
            !is_after_a_step
                && !outages.any(|outage| match outage.effect {
                    Effect::Loss | Effect::Failover | Effect::Minority | Effect::MinorityLoss => {
                        let over = grace_end(evidence, outage.from, outage.until);
                        strikes_until(outage, over, request, at)
                    }
                    // Claims wait until all processes have had time to report their waiters, but for no lease.
                    Effect::Away => strikes_until(outage, outage.until + SETTLING, request, at),
                    Effect::FormerPrimary | Effect::Full | Effect::Slower | Effect::Stall => false,
                })
        }
        _ => false,
    }
}

fn strikes_until(outage: &Outage, until: Micros, request: &Request, at: Micros) -> bool {
    let longer = Outage {
        until,
        ..outage.clone()
    };
    longer.strikes(request.process, request.sent, at)
}
