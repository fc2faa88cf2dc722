//! Which leases a quorum may lose when one of its nodes loses its data: those that not all nodes have.
//!
//! A grant needs only a majority. The other nodes get the lease with its next renewal, but not while their process is
//! away, nor within a minute of having kept an earlier part of the same lease until it ran out there. A lease that was
//! renewed while all was well survives the failure of any one node.

use super::record::{Action, Answer, Effect, End, History, Micros, Outage, Request, SECOND, View};

/// How long a node may take to get a lease with a renewal, on a busy machine.
const RESTORING: Micros = SECOND / 2;

/// A rest of another claim, which is in the way at a node, ends with its TTL: at most as long as this after the fault that
/// left it there.
const REST: Micros = 5 * SECOND;

/// After this time a node that has not answered has no say in an operation.
const LATE: Micros = SECOND / 10;

/// How long after a grant is reported the last of the nodes that are well records its token.
const RECORDING: Micros = SECOND / 10;

/// After this time, what a request without a definite answer has begun is decided or undone.
const OPERATION: Micros = 2 * SECOND;

/// How long the failures of one node may be apart, while its address is tried again.
const AGAIN: Micros = SECOND / 5;

/// Failures of several nodes that no majority survives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    /// How long each of them lasts at least.
    pub(super) at_least: Micros,
    /// How far they may be apart.
    pub(super) apart: Micros,
}

/// Failures of several nodes that last as long as a reservation: another node passes over a claim that does not get the
/// lock from a majority within this time.
pub(super) const UNCLAIMED: Together = Together {
    at_least: 7 * SECOND / 10,
    apart: 0,
};

/// A time in which a node did not answer, or was slow.
struct Failure {
    node: usize,
    from: Micros,
    until: Micros,
}

impl History {
    /// Whether the lease that the claim requested at `asked` may be lost in this time, because of one node.
    pub(super) fn may_lose(
        &self,
        claim: usize,
        asked: Micros,
        (from, until): (Micros, Micros),
    ) -> bool {
        let mut losses = self.losses_of_nodes();
        losses.any(|loss| loss.overlaps(from, until) && !self.is_everywhere(claim, asked, loss))
    }

    /// The same of the answer to a request, while any node fails or is slow.
    pub(super) fn may_lack_a_node(
        &self,
        claim: usize,
        asked: Micros,
        (from, until): (Micros, Micros),
    ) -> bool {
        let mut failures = self.outages.iter().filter(|outage| outage.node.is_some());
        failures.any(|failure| {
            failure.overlaps(from, until) && !self.is_everywhere(claim, asked, failure)
        })
    }

    /// Whether too few nodes may have told watchers of a grant in this time: they did not hear one node, and a contender may
    /// have had another one.
    pub(super) fn may_be_heard_of_few(
        &self,
        claim: usize,
        (from, until): (Micros, Micros),
    ) -> bool {
        let mut failures = self.outages.iter().filter(|outage| outage.node.is_some());
        let mut own = self.requests.iter();
        failures.any(|failure| failure.overlaps(from, until))
            && own.any(|request| {
                request.claim == Some(claim)
                    && request.asks()
                    && !self.has_no_contender(claim, request)
            })
    }

    /// From when on it may be lost.
    pub(super) fn may_lose_from(&self, claim: usize, asked: Micros) -> Micros {
        let losses = self.losses_of_nodes();
        let losses = losses.filter(|loss| asked <= loss.until);
        let losses = losses.filter(|loss| !self.is_everywhere(claim, asked, loss));
        losses
            .map(|loss| loss.from.max(asked))
            .min()
            .unwrap_or(Micros::MAX)
    }

    /// Whether a quorum may tell the claim two fencing tokens by two of these requests, one of each: they were under way at
    /// two processes at once, or the second did not hear a node in time that has the first token.
    pub(super) fn may_have_two_fences(&self, ones: &[&Request], others: &[&Request]) -> bool {
        let are_apart = |one: &Request| others.iter().any(|other| self.are_apart(one, other));
        self.bounds.is_quorum && ones.iter().any(|one| are_apart(one))
    }

    /// The acquires of the claim by which it may have got a lease: those of the requests that it was reported to, or else
    /// all until it was seen.
    pub(super) fn asks_for(
        &self,
        claim: usize,
        reporting: impl Iterator<Item = usize>,
        seen: Micros,
    ) -> Vec<&Request> {
        let reporting = reporting.map(|number| &self.requests[number]);
        let asks: Vec<_> = reporting.filter(|request| request.asks()).collect();
        if !asks.is_empty() {
            return asks;
        }
        let own = self.requests.iter();
        let own = own.filter(|request| request.claim == Some(claim) && request.asks());
        own.filter(|request| request.sent <= seen).collect()
    }

    fn are_apart(&self, one: &Request, other: &Request) -> bool {
        let granted = |request: &Request| granted_at(request).unwrap_or(request.ended());
        let (first, second) = match one.sent <= other.sent {
            true => (one, other),
            false => (other, one),
        };
        let is_settled = match first.last() {
            None | Some(Answer::Queued) => false,
            Some(Answer::Refused(refusal)) => first.is_granted() || refusal.status < 500,
            Some(Answer::Granted { .. } | Answer::Freed | Answer::Evicted(_)) => true,
        };
        let lasting = if is_settled { RECORDING } else { OPERATION };
        let over = granted(first).saturating_add(lasting);
        let is_late = granted(second) - second.sent >= LATE;
        let is_released = || {
            self.requests.iter().any(|request| {
                request.claim == first.claim
                    && request.action == Action::Release
                    && request.sent > granted(first)
                    && request.ended() < second.sent
            })
        };
        first.process != second.process && (second.sent <= over || is_late) && !is_released()
    }

    /// Whether a view of a quorum says nothing about this holder: nodes show a claim before a majority has recorded its
    /// token, which may never be. Once a grant was reported, a majority has it. Before it asked, no node does. Or a rest of
    /// it is at the only nodes that answer.
    pub(super) fn is_doubtful(&self, view: &View, claim: usize) -> bool {
        let is_reported = || self.fences_told(view, claim).any(|(at, _)| at < view.sent);
        let mut own = self.requests.iter();
        let has_asked = own.any(|request| {
            request.claim == Some(claim) && request.asks() && request.sent <= view.at
        });
        self.bounds.is_quorum && has_asked && (!is_reported() || self.is_rest(view, claim))
    }

    /// Whether a claim that a view shows may be a rest of one that has ended, which a silent node would outvote. Nodes follow
    /// the end within a moment. An operation of another process may reach a node later, and lasts there as long as a lease.
    fn is_rest(&self, view: &View, claim: usize) -> bool {
        let own = || self.requests.iter().filter(|it| it.claim == Some(claim));
        let is_end = |it: &&Request| match it.action {
            Action::Release => it.last() == Some(&Answer::Freed),
            Action::Hold { .. } => matches!(it.end, Some((_, End::HungUp))),
            Action::Acquire { .. }
            | Action::Renew
            | Action::StepDown
            | Action::StepBack
            | Action::Evict => false,
        };
        let mut ends = own().filter(is_end);
        let may_last = |end: &Request| {
            let is_of_several = own().any(|other| other.process != end.process);
            let lease = if is_of_several {
                self.claims[claim].lease
            } else {
                0
            };
            let over = end.ended().saturating_add(OPERATION + lease);
            end.ended() <= view.at && view.sent <= over
        };
        self.has_silent_node(view) && ends.any(may_last)
    }

    /// The fencing token that a view of a quorum means: while a node is silent, it may show one that nobody is given.
    pub(super) fn fence_meant(&self, view: &View, claim: usize, shown: u64) -> u64 {
        let told = || self.fences_told(view, claim);
        if !self.bounds.is_quorum || told().any(|(_, fence)| fence == shown) {
            return shown;
        }
        match told().min() {
            Some((_, decided)) if self.has_silent_node(view) => decided,
            Some(_) | None => shown,
        }
    }

    /// Whether an eviction on a quorum may have ended this lease without naming it: it reports what nodes had, and reaches
    /// them one after the other. So it may meet a grant that is being decided. `shown` is when the lease was first reported
    /// to its claim or seen.
    pub(super) fn may_end_unnamed(
        &self,
        eviction: &Request,
        (claim, fence): (usize, u64),
        shown: Micros,
    ) -> bool {
        let Some(Answer::Evicted(named)) = eviction.last() else {
            return false;
        };
        let is_meant = |asked: &Request| {
            let is_of_lock = asked.names.iter().any(|name| eviction.names.contains(name));
            asked.claim == Some(claim) && asked.asks() && is_of_lock
        };
        let mut asked = self.requests.iter().filter(|asked| is_meant(asked));
        self.bounds.is_quorum
            && !named.contains(&fence)
            && eviction.sent <= shown
            && asked.any(|asked| asked.sent <= eviction.ended())
    }

    /// Whether what an eviction on a quorum names may be a rest of this lease, at the only node that has it while another one
    /// is silent: nodes get a lease later than the others, or by a renewal that was refused, and keep it for as long as one.
    pub(super) fn may_be_of_rest(&self, eviction: &Request, (claim, fence): (usize, u64)) -> bool {
        let mut outages = self.outages.iter().filter(|outage| outage.node.is_some());
        let is_silent = outages.any(|outage| outage.overlaps(eviction.sent, eviction.ended()));
        let own = self.requests.iter().filter(|it| it.claim == Some(claim));
        let arrivals = own.flat_map(|request| request.arrivals.iter().map(move |it| (request, it)));
        let ends = arrivals.filter_map(|(request, (_, answer))| match answer {
            Answer::Granted { leases, waited, .. } => {
                let mut leases = leases.iter();
                let lease = leases.find(|lease| lease.fence == fence)?;
                // It counts from the request at the earliest, or from the end of its wait.
                Some(request.sent + waited + lease.expires_in)
            }
            _ => None,
        });
        let lasts = self.claims[claim].lease + OPERATION;
        let is_over = |end: Micros| end <= eviction.ended() && eviction.sent <= end + lasts;
        self.bounds.is_quorum && is_silent && ends.max().is_some_and(is_over)
    }

    /// When the claim was told which tokens of the lock that a view is of.
    fn fences_told<'a>(
        &'a self,
        view: &'a View,
        claim: usize,
    ) -> impl Iterator<Item = (Micros, u64)> + 'a {
        let own = self.requests.iter();
        let own = own.filter(move |request| request.claim == Some(claim));
        let arrivals = own.flat_map(|request| &request.arrivals);
        arrivals.filter_map(|(at, answer)| match answer {
            Answer::Granted { leases, .. } => {
                let mut leases = leases.iter();
                let lease = leases.find(|lease| lease.name == view.name)?;
                Some((*at, lease.fence))
            }
            _ => None,
        })
    }

    /// Whether a view may show what only a minority of nodes has.
    pub(super) fn may_show_few(&self, view: &View) -> bool {
        self.bounds.is_quorum && self.has_silent_node(view)
    }

    /// Whether a node failed or was slow while the view was taken.
    fn has_silent_node(&self, view: &View) -> bool {
        let mut outages = self.outages.iter().filter(|outage| outage.node.is_some());
        outages.any(|outage| outage.overlaps(view.sent, view.at))
    }

    /// Whether more than one node failed together in this time, which is no minority.
    pub(super) fn has_no_majority(
        &self,
        (from, until): (Micros, Micros),
        together: Together,
    ) -> bool {
        let mut failures = self.failures(together.at_least);
        failures.retain(|failure| failure.from <= until && from <= failure.until);
        let are_together = |one: &Failure, other: &Failure| {
            one.node != other.node
                && one.from <= other.until + together.apart
                && other.from <= one.until + together.apart
        };
        let mut ones = failures.iter();
        ones.any(|one| failures.iter().any(|other| are_together(one, other)))
    }

    /// The failures of each node that last so long. What follows within a moment is the same failure.
    fn failures(&self, at_least: Micros) -> Vec<Failure> {
        let outages = self.outages.iter();
        let of_nodes = outages.filter_map(|outage| {
            Some(Failure {
                node: outage.node?,
                from: outage.from,
                until: outage.until,
            })
        });
        let mut of_nodes: Vec<_> = of_nodes.collect();
        of_nodes.sort_unstable_by_key(|failure| (failure.node, failure.from));
        let mut failures: Vec<Failure> = Vec::new();
        for next in of_nodes {
            match failures.last_mut() {
                Some(last) if last.node == next.node && next.from <= last.until + AGAIN => {
                    last.until = last.until.max(next.until);
                }
                _ => failures.push(next),
            }
        }
        failures.retain(|failure| failure.until - failure.from >= at_least);
        failures
    }

    fn losses_of_nodes(&self) -> impl Iterator<Item = &Outage> {
        let outages = self.outages.iter();
        outages.filter(|outage| outage.effect == Effect::MinorityLoss)
    }

    /// Whether all nodes had the lease when one of them failed.
    fn is_everywhere(&self, claim: usize, asked: Micros, loss: &Outage) -> bool {
        let lease = self.claims[claim].lease;
        let others = || {
            let outages = self.outages.iter();
            outages.filter(|outage| !(outage.node.is_some() && outage.node == loss.node))
        };
        let ran_out_elsewhere = others().any(|outage| {
            outage.node.is_some()
                && outage.overlaps(asked, loss.from)
                && outage.until - outage.from >= lease / 2
        });
        let was_well = |since: Micros| {
            let mut others = others().filter(|outage| !std::ptr::eq(*outage, loss));
            !others.any(|outage| outage.overlaps(since, loss.from))
        };
        let gets_everywhere = |request: &&Request| match request.action {
            Action::Renew | Action::StepDown => true,
            Action::Acquire { .. } | Action::Hold { .. } => {
                request.sent >= asked && self.has_no_contender(claim, request)
            }
            Action::Release | Action::StepBack | Action::Evict => false,
        };
        let has_got_there = |request: &&Request| {
            request.claim == Some(claim)
                && granted_at(request).is_some_and(|at| at + RESTORING < loss.from)
                && was_well(request.sent.saturating_sub(REST))
                && gets_everywhere(request)
        };
        !ran_out_elsewhere && self.requests.iter().any(|request| has_got_there(&request))
    }

    /// Whether no other claim can have had a node when this request of the claim was granted.
    fn has_no_contender(&self, claim: usize, granted: &Request) -> bool {
        let until = granted_at(granted).map_or(Micros::MAX, |at| at + RESTORING);
        let may_be_there = |other: &&Request| {
            let is_of_lock = other.names.iter().any(|name| granted.names.contains(name));
            let lease = other.claim.map_or(0, |other| self.claims[other].lease);
            let answered = other.arrivals.last().map_or(other.sent, |(at, _)| *at);
            let over = answered
                .max(other.deadline())
                .max(other.ended())
                .saturating_add(lease + REST);
            other.claim != Some(claim) && is_of_lock && other.sent <= until && granted.sent <= over
        };
        !self.requests.iter().any(|other| may_be_there(&other))
    }
}

/// When a request was first told of a lease.
fn granted_at(request: &Request) -> Option<Micros> {
    let is_grant = |(_, answer): &&(Micros, Answer)| matches!(answer, Answer::Granted { .. });
    let granted = request.arrivals.iter().find(is_grant);
    granted.map(|(at, _)| *at)
}
