//! The times that bound a lease, as far as requests and faults tell: when it can have ended, and when not yet.

use super::super::record::{Action, Answer, End, Micros, Outage, Request, SECOND};
use super::operations::{Evidence, Part};

/// An event of a stream was written at most this long before it arrived, if nothing kept it.
const EVENT_UNDER_WAY: Micros = SECOND / 4;

impl Part<'_> {
    /// From when a request of its claim may have ended the lease.
    pub(super) fn may_end(
        &self,
        number: usize,
        request: &Request,
        evidence: &Evidence,
    ) -> Option<Micros> {
        let requests = &self.history.requests;
        // A later request that the lease was reported to shows that this one has not ended it.
        let is_reported_after = |at: Micros| {
            let mut reporting = evidence.reporting.iter();
            reporting.any(|other| *other != number && requests[*other].sent > at)
        };
        match request.action {
            Action::Release | Action::StepBack => {
                let is_success = match request.last() {
                    Some(Answer::Freed) => true,
                    // Of several locks it releases those that its claim still holds.
                    Some(Answer::Refused(refusal)) => request.names.len() > 1 && refusal.is_loss(),
                    Some(Answer::Granted { .. } | Answer::Queued | Answer::Evicted(_)) | None => {
                        false
                    }
                };
                let answered = request.first_arrival().filter(|_| is_success);
                let is_too_early = answered.is_some_and(is_reported_after);
                let may_end = (is_success && !is_too_early) || is_open(request);
                may_end.then_some(request.sent)
            }
            Action::Hold { .. } if request.is_granted() => {
                // A stream cannot release a lease that a later request of its claim has taken over.
                if request.first_arrival().is_some_and(is_reported_after) {
                    return None;
                }
                let mut events = request.arrivals.iter();
                let is_report =
                    |event: &&(Micros, Answer)| matches!(event.1, Answer::Granted { .. });
                let last_report = events.rfind(is_report).map(|(at, _)| *at);
                match request.end {
                    Some((at, End::HungUp)) => Some(at),
                    // Its process may have noticed earlier than its client.
                    Some((_, End::GaveUp | End::Broken | End::Answered)) | None => last_report,
                }
            }
            // What was reported to nobody may be rolled back.
            Action::Acquire { .. } | Action::Hold { .. } => {
                evidence.reporting.is_empty().then_some(request.sent)
            }
            Action::Renew | Action::StepDown | Action::Evict => None,
        }
    }

    /// From when the store may have forgotten what it knew of a claim that asked at this time.
    pub(super) fn unsure_from(&self, claim: usize, asked: Micros) -> Micros {
        let losses = self.history.outages.iter();
        let losses = losses.filter(|outage| outage.forgets());
        let losses = losses.map(|outage| (outage.from, outage.until));
        let steps = self.history.clock_steps.iter();
        let steps = steps.map(|step| (step.before, step.after));
        let since = losses.chain(steps).filter(|(_, until)| asked <= *until);
        since
            .map(|(from, _)| from.max(asked))
            .chain([self.history.may_lose_from(claim, asked)])
            .min()
            .unwrap_or(Micros::MAX)
    }

    /// The earliest time at which this answer or event can have been written.
    pub(super) fn written(&self, request: &Request, index: usize) -> Micros {
        let (at, answer) = &request.arrivals[index];
        let Answer::Granted { waited, .. } = answer else {
            return request.sent;
        };
        let earlier = request.arrivals[..index].iter();
        let is_first = !earlier
            .clone()
            .any(|(_, answer)| matches!(answer, Answer::Granted { .. }));
        let is_event = matches!(request.action, Action::Hold { .. });
        match (is_event, is_first) {
            (false, _) => (request.sent + waited).min(*at),
            (true, true) => (request.sent + waited).min(at.saturating_sub(EVENT_UNDER_WAY)),
            (true, false) if self.is_delayed(request, *at) => request.sent,
            (true, false) => at.saturating_sub(EVENT_UNDER_WAY),
        }
    }

    /// Whether something kept the client of a stream, or its process, from an event that arrived at this time.
    fn is_delayed(&self, stream: &Request, at: Micros) -> bool {
        let strikes = |outage: &Outage| outage.strikes(stream.process, stream.sent, at);
        // The client waits for one response at a time.
        let waits = |other: &Request| {
            let answered = other.first_arrival().unwrap_or(Micros::MAX);
            let is_other = !std::ptr::eq(other, stream) && other.claim == stream.claim;
            is_other && other.sent < at && answered.saturating_add(EVENT_UNDER_WAY) > at
        };
        self.history.outages.iter().any(strikes)
            || self.requests.iter().any(|(_, other)| waits(other))
    }

    /// The earliest end of a lease that was requested at this time, by a clock that may have stepped forward.
    pub(super) fn end(&self, sent: Micros, reported: Micros) -> Micros {
        let mut end = reported;
        for step in self.history.clock_steps.iter().filter(|step| step.by > 0) {
            if sent <= step.after && step.before <= end {
                end = end.saturating_sub(step.by.unsigned_abs()).max(step.before);
            }
        }
        end
    }

    /// Whether everything that may have extended a lease of the claim before this time has a definite answer, and no
    /// fault has delayed it.
    pub(super) fn is_bounded(&self, claim: usize, asked: Micros, sent: Micros) -> bool {
        let mut requests = self.requests.iter();
        let has_open = requests.any(|(_, request)| {
            let extends =
                request.asks() || matches!(request.action, Action::Renew | Action::StepDown);
            let is_under_way = request
                .end
                .is_none_or(|(at, end)| end != End::Answered || at > sent);
            request.claim == Some(claim)
                && extends
                && request.sent < sent
                && (is_under_way || is_open(request))
        });
        let mut steps = self.history.clock_steps.iter();
        !has_open
            && !self
                .history
                .outages
                .iter()
                .any(|outage| outage.overlaps(asked, sent))
            && !steps.any(|step| step.before <= sent && asked <= step.after)
    }
}

/// Whether the request may have taken effect, although no answer says so.
pub(super) fn is_open(request: &Request) -> bool {
    match request.last() {
        None | Some(Answer::Queued) => true,
        Some(Answer::Refused(refusal)) => refusal.status >= 500 && !refusal.is_without_effect,
        Some(Answer::Granted { .. } | Answer::Freed | Answer::Evicted(_)) => false,
    }
}
