//! Which leases a quorum may lose when one of its nodes loses its data: those that not all nodes have.
//!
//! A grant needs only a majority. The other nodes get the lease with its next renewal, but not while their process is
//! away, nor within a minute of having kept an earlier part of the same lease until it ran out there. A lease that was
//! renewed while all was well survives the failure of any one node.

use super::record::{Action, Answer, Effect, History, Micros, Outage, Request, SECOND};

/// How long a node may take to get a lease with a renewal, on a busy machine.
const RESTORING: Micros = SECOND / 2;

/// A rest of another claim, which is in the way at a node, ends with its TTL: at most as long as this after the fault that
/// left it there.
const REST: Micros = 5 * SECOND;

/// After this time a node that has not answered has no say in an operation.
const LATE: Micros = SECOND / 10;

/// How long after a failure a node may still be late.
const TOGETHER: Micros = SECOND;

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

    /// Whether a quorum may tell the claim two fencing tokens: it was requested at two processes at once, or the second
    /// request did not hear a node in time that has the first token.
    pub(super) fn may_have_two_fences(&self, claim: usize) -> bool {
        let asks = || {
            let own = self.requests.iter();
            own.filter(|request| request.claim == Some(claim) && request.asks())
        };
        let granted = |request: &Request| {
            let is_grant = |(_, answer): &&(_, Answer)| matches!(answer, Answer::Granted { .. });
            let granted = request.arrivals.iter().find(is_grant);
            granted.map_or(request.ended(), |(at, _)| *at)
        };
        let is_apart = |one: &Request, other: &Request| {
            let is_late = granted(other) - other.sent >= LATE;
            let is_beside = other.sent <= granted(one);
            one.process != other.process && one.sent <= other.sent && (is_beside || is_late)
        };
        self.bounds.is_quorum && asks().any(|one| asks().any(|other| is_apart(one, other)))
    }

    /// Whether more than one node failed or was slow at about the same time, which is no minority.
    pub(super) fn has_no_majority(&self, from: Micros, until: Micros) -> bool {
        let outages = || {
            let outages = self.outages.iter();
            outages.filter(|outage| outage.node.is_some() && outage.overlaps(from, until))
        };
        let is_together = |one: &Outage, other: &Outage| {
            one.node != other.node && one.overlaps(other.from, other.until + TOGETHER)
        };
        outages().any(|one| outages().any(|other| is_together(one, other)))
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
        let renews = |request: &&Request| {
            request.claim == Some(claim)
                && matches!(request.action, Action::Renew | Action::StepDown)
                && request.is_granted()
                && request
                    .first_arrival()
                    .is_some_and(|at| at + RESTORING < loss.from)
                && was_well(request.sent.saturating_sub(REST))
        };
        !ran_out_elsewhere && self.requests.iter().any(|request| renews(&request))
    }
}
