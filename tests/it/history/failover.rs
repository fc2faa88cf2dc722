//! What a failover may lose, and what a former primary may report.
//!
//! A promoted replica may lack the last writes. If all replicas have to confirm what is reported, it has every lease that
//! a client knows of, but perhaps not its release, the places of waiters and the marks of claims that have ended.
//!
//! A former primary that still runs may answer processes that do not know yet that it was replaced. If no replica has to
//! confirm, what it reports is lost and may overlap what the new primary grants after the grace: that is no violation, but
//! is counted. If all have to, it reports no lease. It still shows its locks to those who look, since nobody confirms that:
//! a lease that it grants without being able to report it is shown, too, and lost. The others that it shows are right: the
//! new primary reports none before the former one follows it, and from then on that one shows nothing.

use super::record::{Answer, Effect, History, Micros, Outage, Request, View};

impl Outage {
    /// Whether the store may have forgotten something in it.
    pub(super) fn forgets(&self) -> bool {
        matches!(self.effect, Effect::Loss | Effect::Failover)
    }
}

impl History {
    /// Whether the store may have forgotten leases in this outage that were reported.
    pub(super) fn forgets_leases(&self, outage: &Outage) -> bool {
        match outage.effect {
            Effect::Loss => true,
            Effect::Failover => !self.bounds.is_confirmed,
            Effect::Away
            | Effect::FormerPrimary
            | Effect::Minority
            | Effect::MinorityLoss
            | Effect::Full
            | Effect::Slower
            | Effect::Stall => false,
        }
    }

    /// Whether a former primary may have shown this, and what it showed may be lost.
    pub(super) fn is_former_view(&self, view: &View) -> bool {
        let mut former = self.former_primaries();
        let is_unreported = |(_, fence): &(String, u64)| !self.is_reported(&view.name, *fence);
        former.any(|outage| outage.strikes(view.process, view.sent, view.at))
            && (!self.bounds.is_confirmed || view.holders.iter().any(is_unreported))
    }

    /// Whether a client was told of the lease with this fence.
    fn is_reported(&self, name: &str, fence: u64) -> bool {
        let arrivals = self.requests.iter().flat_map(|it| &it.arrivals);
        let mut answers = arrivals.map(|(_, answer)| answer);
        answers.any(|answer| match answer {
            Answer::Granted { leases, .. } => {
                let mut leases = leases.iter();
                leases.any(|lease| lease.name == name && lease.fence == fence)
            }
            Answer::Queued | Answer::Freed | Answer::Evicted(_) | Answer::Refused(_) => false,
        })
    }

    /// Whether an answer to the request that arrived at this time may have come from a former primary, and may be lost.
    pub(super) fn is_former_answer(&self, request: &Request, at: Micros) -> bool {
        let mut former = self.former_primaries();
        !self.bounds.is_confirmed
            && former.any(|outage| outage.strikes(request.process, request.sent, at))
    }

    fn former_primaries(&self) -> impl Iterator<Item = &Outage> {
        let outages = self.outages.iter();
        outages.filter(|outage| outage.effect == Effect::FormerPrimary)
    }

    /// Whether the claim may have been granted the lease with this fence by one.
    pub(super) fn is_former_grant(&self, claim: usize, fence: u64) -> bool {
        let own = self.requests.iter();
        let mut own = own.filter(|request| request.claim == Some(claim));
        own.any(|request| {
            let reports = |answer: &Answer| match answer {
                Answer::Granted { leases, .. } => leases.iter().any(|lease| lease.fence == fence),
                Answer::Queued | Answer::Freed | Answer::Evicted(_) | Answer::Refused(_) => false,
            };
            let mut arrivals = request.arrivals.iter();
            arrivals.any(|(at, answer)| reports(answer) && self.is_former_answer(request, *at))
        })
    }
}
