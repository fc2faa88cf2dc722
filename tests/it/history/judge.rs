//! The judge: pure rules over a recorded history. It knows only what HTTP clients saw, and when the faults were active.
//!
//! Each exemption is a constant with its reason, where it applies. Fences have no exemptions.

mod counts;
mod events;
mod exclusion;
mod fences;
mod leases;
mod life;
mod queues;
mod quorum;
mod resource;
mod trouble;

use std::collections::BTreeMap;

use super::record::{Action, Answer, History, Micros, Mode, Request, SECOND, View};
pub(super) use counts::{Counts, Excused};
use leases::{Grant, Lasting};

/// The longest time until a process is considered dead, polls its queues again and has its answer: the liveness timeout
/// of three seconds, one poll, and an operation in flight.
const SETTLING: Micros = 5 * SECOND;

/// Faults up to this long before a violation are reported with it.
const ABOUT: Micros = 12 * SECOND;

/// A guarantee whose violation clients can observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    /// Two conflicting leases never overlap, as their holders see it.
    Overlap,
    /// The holders of a shared lock never have more permits than its limit.
    Permits,
    /// All holders of a shared lock have the same limit.
    DifferingLimits,
    /// A lock is not granted before its `min_hold` or `lock_delay` is over.
    Cooling,
    /// A later grant of a lock has a larger fence.
    FenceOrder,
    /// No two grants of a lock share a fence.
    SharedFence,
    /// Waiters are granted in the order in which they certainly joined the queue.
    Fifo,
    /// A lease lasts as long as reported, unless its own claim ends it or it is evicted.
    EarlyLoss,
    /// An ended claim is not granted again within a minute, and no renewal creates a lease.
    Resurrection,
    /// Several locks are granted together or not at all.
    PartialGrant,
    /// When all clients have stopped, every lock becomes free.
    Orphan,
    /// A lock is not held for a claim that was refused, or whose stream was closed.
    UnownedHold,
    /// A free lock with a waiter is granted within two seconds.
    Ghost,
    /// A watcher gets an event for every grant, or a `reset`.
    LostEvent,
    /// A grant has time left when it is reported.
    DeadGrant,
    /// The response arrives before the end of the wait, or shortly after.
    Late,
    /// No response is a failure that no fault explains.
    WrongFailure,
    /// Nothing is granted while a majority of the nodes of a quorum is away.
    NoMajority,
    /// Locks are granted while only a minority is away.
    Standstill,
    /// The resource refuses nobody who holds the lock.
    RefusedHolder,
    /// The resource accepts nothing from a holder after it has accepted something from a later one.
    OutdatedUse,
    /// No accepted write of the resource replaces one that its writer has not read.
    LostUpdate,
    /// One order of the requests on a lock explains all their answers (`linear`).
    Linearizability,
    /// Whether there is such an order was found out.
    Undecided,
}

/// A broken guarantee, with the evidence.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) rule: Rule,
    pub(super) at: Micros,
    pub(super) what: String,
}

/// The history, indexed for the rules.
pub(super) struct Evidence<'a> {
    history: &'a History,
    /// The requests of each claim, in the order of sending.
    by_claim: Vec<Vec<usize>>,
    /// Every lease that was reported to a client.
    grants: Vec<Grant<'a>>,
    /// The grants of each lock.
    by_name: BTreeMap<&'a str, Vec<usize>>,
    claim_of: BTreeMap<&'a str, usize>,
}

/// A description of the faults that were active at this time or shortly before.
pub(super) fn about(history: &History, at: Micros) -> String {
    let seconds = |at: Micros| at as f64 / 1e6;
    let mut text = String::new();
    let from = at.saturating_sub(ABOUT);
    for outage in history
        .outages
        .iter()
        .filter(|outage| outage.overlaps(from, at + SECOND))
    {
        let process = outage
            .process
            .map_or_else(String::new, |process| format!(" at process {process}"));
        let (from, until) = (seconds(outage.from), seconds(outage.until));
        text += &format!(
            "\n    {}{process} from {from:.3} to {until:.3}",
            outage.fault
        );
    }
    let steps = history.clock_steps.iter();
    for step in steps.filter(|step| step.after > from && step.before < at + SECOND) {
        let (by, when) = (step.by as f64 / 1e6, seconds(step.before));
        text += &format!("\n    the clock steps by {by} s at {when:.3}");
    }
    text
}

/// Judges a history.
pub(super) fn judge(history: &History) -> (Vec<Violation>, Counts) {
    let evidence = Evidence::of(history);
    let mut counts = evidence.counts();
    let mut found = Vec::new();
    exclusion::judge(&evidence, &mut found, &mut counts);
    fences::judge(&evidence, &mut found);
    queues::judge(&evidence, &mut found, &mut counts);
    life::judge(&evidence, &mut found, &mut counts.excused);
    trouble::judge(&evidence, &mut found, &mut counts.excused);
    events::judge(&evidence, &mut found, &mut counts.excused);
    quorum::judge(&evidence, &mut found);
    resource::judge(&evidence, &mut found, &mut counts);
    for violation in &mut found {
        violation.what += &about(history, violation.at);
    }
    found.sort_by_key(|violation| (violation.rule, violation.at));
    (found, counts)
}

impl<'a> Evidence<'a> {
    fn of(history: &'a History) -> Self {
        let mut by_claim = vec![Vec::new(); history.claims.len()];
        for (index, request) in history.requests.iter().enumerate() {
            if let Some(claim) = request.claim {
                by_claim[claim].push(index);
            }
        }
        let owners = history.claims.iter().enumerate();
        let mut evidence = Self {
            history,
            by_claim,
            grants: Vec::new(),
            by_name: BTreeMap::new(),
            claim_of: owners
                .map(|(index, claim)| (claim.owner.as_str(), index))
                .collect(),
        };
        evidence.grants = leases::grants(&evidence);
        for (index, grant) in evidence.grants.iter().enumerate() {
            evidence.by_name.entry(grant.name).or_default().push(index);
        }
        evidence
    }

    /// The requests of a claim.
    fn requests_of(&self, claim: usize) -> impl DoubleEndedIterator<Item = &'a Request> {
        let requests = &self.history.requests;
        self.by_claim[claim].iter().map(|index| &requests[*index])
    }

    /// Whether Redis may have lost data in this time.
    fn has_loss(&self, from: Micros, until: Micros) -> bool {
        let mut outages = self.history.outages.iter();
        outages.any(|outage| outage.forgets() && outage.overlaps(from, until))
    }

    /// Whether leases that were reported may have been lost in this time: in a failover only if replicas do not confirm.
    fn has_lost_leases(&self, from: Micros, until: Micros) -> bool {
        let mut outages = self.history.outages.iter();
        outages.any(|outage| self.history.forgets_leases(outage) && outage.overlaps(from, until))
    }

    /// Whether a lease may have been lost in this time, to its holder alone or to all.
    fn may_lose(&self, grant: &Grant<'_>, from: Micros, until: Micros) -> bool {
        let asked = grant.requested;
        self.has_lost_leases(from, until)
            || self.history.may_lose(grant.claim, asked, (from, until))
    }

    /// Whether the clock of Redis was changed in this time; forward only, or in any direction.
    fn has_clock_step(&self, from: Micros, until: Micros, only_forward: bool) -> bool {
        let mut steps = self.history.clock_steps.iter();
        steps.any(|step| {
            step.before <= until && from <= step.after && (step.by > 0 || !only_forward)
        })
    }

    /// Whether a fault explains that the process did not do its work in this time. The effect of a fault lasts longer
    /// than the fault itself: see [`SETTLING`].
    fn is_struck(&self, process: usize, from: Micros, until: Micros) -> bool {
        let mut outages = self.history.outages.iter();
        outages.any(|outage| outage.strikes(process, from.saturating_sub(SETTLING), until))
    }

    fn counts(&self) -> Counts {
        let history = self.history;
        let requests = || history.requests.iter();
        let entries = || history.watches.iter().flat_map(|watch| &watch.entries);
        let is_event = |entry: &super::record::WatchEntry| {
            use super::record::WatchEntry::{Acquired, Other};
            matches!(entry, Acquired { .. } | Other)
        };
        let streams = |claim: usize| {
            let holds = self.requests_of(claim);
            let is_hold = |request: &&Request| {
                matches!(request.action, Action::Hold { .. }) && request.is_granted()
            };
            holds.filter(is_hold).count()
        };
        let streams: Vec<_> = (0..history.claims.len()).map(streams).collect();
        Counts {
            requests: history.requests.len(),
            grants: self.grants.len(),
            renewals: requests()
                .filter(|request| request.action == Action::Renew && request.is_granted())
                .count(),
            streams: streams.iter().sum(),
            take_overs: streams.iter().map(|count| count.saturating_sub(1)).sum(),
            events: entries().filter(|(_, entry)| is_event(entry)).count(),
            resets: entries()
                .filter(|(_, entry)| *entry == super::record::WatchEntry::Reset)
                .count(),
            views: history.views.len(),
            excused: self.doubtful(),
            ..Counts::default()
        }
    }

    /// The evictions and views of which the second judge does not believe everything.
    fn doubtful(&self) -> Excused {
        let history = self.history;
        let is_doubtful = |view: &&View| {
            let owners = view.holders.iter().map(|(owner, _)| owner.as_str());
            let mut claims = owners.filter_map(|owner| self.claim_of.get(owner));
            claims.any(|claim| history.is_doubtful(view, *claim))
        };
        let evictions = history.requests.iter();
        let evictions = evictions.filter(|request| request.action == Action::Evict);
        let is_unclear = |eviction: &&Request| {
            let of_lock = self.by_name.get(eviction.names[0].as_str());
            let mut grants = of_lock.into_iter().flatten().map(|it| &self.grants[*it]);
            grants.any(|grant| {
                history.may_end_unnamed(eviction, (grant.claim, grant.fence), grant.reported)
            })
        };
        Excused {
            evictions: evictions.filter(is_unclear).count(),
            views: history.views.iter().filter(is_doubtful).count(),
            ..Excused::default()
        }
    }
}

/// Whether two claims may never hold the same lock at once, whatever the permits.
fn conflicts(one: Mode, other: Mode) -> bool {
    one == Mode::Exclusive || other == Mode::Exclusive
}

impl Violation {
    fn new(rule: Rule, at: Micros, what: String) -> Self {
        Self { rule, at, what }
    }
}

/// A description of a request and its outcome.
pub(super) fn shown(request: &Request) -> String {
    let seconds = |at: Micros| format!("{:.3}", at as f64 / 1e6);
    let mut text = format!(
        "{:?} of {} at process {}, sent {}",
        request.action,
        request.names.join("+"),
        request.process,
        seconds(request.sent)
    );
    let skipped = request.arrivals.len().saturating_sub(4);
    for (at, answer) in request.arrivals.iter().skip(skipped) {
        let answer = match answer {
            Answer::Refused(refusal) => format!("{} {}", refusal.status, refusal.code),
            Answer::Granted { leases, is_new, .. } => {
                let lease = |lease: &super::record::Lease| {
                    format!("{} for {}", lease.fence, seconds(lease.expires_in))
                };
                let leases: Vec<_> = leases.iter().map(lease).collect();
                format!("granted(new {is_new}) {}", leases.join(", "))
            }
            other @ (Answer::Queued | Answer::Freed | Answer::Evicted(_)) => format!("{other:?}"),
        };
        text += &format!("; {} {answer}", seconds(*at));
    }
    if let Some((at, end)) = request.end {
        text += &format!("; {end:?} {}", seconds(at));
    }
    text
}

/// A description of the requests of a claim.
fn story(evidence: &Evidence<'_>, claim: usize) -> String {
    let terms = &evidence.history.claims[claim];
    let mut text = format!(
        "\n    {} wants {} {:?} for {} ms{}{}{}",
        terms.owner,
        terms.names.join("+"),
        terms.mode,
        terms.lease / 1_000,
        if terms.is_fair { "" } else { " unfair" },
        if terms.min_hold > 0 { " min_hold" } else { "" },
        if terms.lock_delay > 0 {
            " lock_delay"
        } else {
            ""
        },
    );
    for request in evidence.requests_of(claim).take(12) {
        text += &format!("\n      {}", shown(request));
    }
    text
}

/// The times in which leases certainly lasted, by the number of the grant.
fn lasting<'a>(evidence: &'a Evidence<'_>, grants: &'a [usize]) -> Vec<(usize, &'a Lasting)> {
    let of_grant = |index: &usize| {
        let index = *index;
        let lasting = evidence.grants[index].lasting.iter();
        lasting.map(move |lasting| (index, lasting))
    };
    grants.iter().flat_map(of_grant).collect()
}
