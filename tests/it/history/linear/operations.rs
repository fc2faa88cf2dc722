//! From the record of a run to the operations on one lock, with the times between which each took effect.

use std::collections::BTreeMap;

use super::super::record::{Action, Answer, History, Micros, Mode, Request, SECOND, View};
use super::bounds::is_open;

/// How long the store certainly remembers a claim that has ended: a minute, less the duration of a request.
const TOMBSTONE_TTL_MIN: Micros = 55 * SECOND;

/// What happened on one lock.
#[derive(Debug)]
pub(super) struct LockHistory {
    pub(super) name: String,
    /// In the order of their fences.
    pub(super) leases: Vec<Lease>,
    pub(super) operations: Vec<Operation>,
}

/// A lease of which a client learned.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) claim: usize,
    pub(super) fence: u64,
    pub(super) mode: Mode,
    /// It was granted at this time or later.
    pub(super) asked: Micros,
    /// From this time on, something without an answer, or without an answer yet, may have ended it.
    pub(super) may_end_from: Micros,
    /// The same of a step down to a shared lease.
    pub(super) may_share_from: Micros,
    /// From this time on, the store may have forgotten it, or remember it after its end.
    unsure_from: Micros,
    /// Whether a client got it, rather than only saw it.
    pub(super) is_reported: bool,
    /// Whether its claim may have had an earlier lease.
    pub(super) may_repeat: bool,
}

/// An operation, which takes effect between the two times.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) step: Step,
    pub(super) sent: Micros,
    pub(super) at: Micros,
    pub(super) source: Source,
}

/// What shows an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The number of a request.
    Request(usize),
    /// The number of a view.
    View(usize),
}

/// What an operation does. Leases are numbered as in [`LockHistory::leases`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The lease begins. It has the earliest answer that shows it.
    Grant { lease: usize },
    /// The lease is held, and lasts until this time at least and at most.
    Report {
        lease: usize,
        until: Micros,
        latest: Micros,
        /// Whether nothing unknown can have extended the lease before the request.
        is_bounded: bool,
        /// Whether it is a shared one from now on.
        steps_down: bool,
    },
    /// The claim holds nothing any more.
    End { claim: usize },
    /// The claim holds nothing.
    NotHeld { claim: usize },
    /// These hold and no others.
    View { holders: Vec<usize> },
    /// These held and no others, and they hold nothing any more.
    Evict { holders: Vec<usize> },
}

impl Lease {
    /// Whether the store may answer at this time as if the lease were held, or as if it were not.
    pub(super) fn is_unsure(&self, at: Micros) -> bool {
        self.unsure_from <= at
    }
}

/// Everything about one lock.
pub(super) struct Part<'a> {
    pub(super) history: &'a History,
    name: &'a str,
    pub(super) requests: Vec<(usize, &'a Request)>,
}

/// What a client learned of one lease.
pub(super) struct Evidence {
    /// The first evidence, and where it is.
    at: Micros,
    source: Source,
    /// The requests by which its claim learned of it, in the order of the record.
    pub(super) reporting: Vec<usize>,
}

impl LockHistory {
    /// One for each lock.
    pub(super) fn of_each(history: &History) -> Vec<Self> {
        let mut parts: BTreeMap<&str, Part<'_>> = BTreeMap::new();
        for (number, request) in history.requests.iter().enumerate() {
            for name in &request.names {
                let part = parts.entry(name).or_insert_with(|| Part {
                    history,
                    name,
                    requests: Vec::new(),
                });
                part.requests.push((number, request));
            }
        }
        parts.values().map(Part::lock).collect()
    }
}

impl Part<'_> {
    fn lock(&self) -> LockHistory {
        let evidence = self.evidence();
        let numbers: BTreeMap<(usize, u64), usize> = evidence
            .keys()
            .zip(0..)
            .map(|(key, number)| ((key.1, key.0), number))
            .collect();
        let mut operations = Vec::new();
        let mut leases = Vec::new();
        for (lease, ((fence, claim), evidence)) in evidence.iter().enumerate() {
            let new = self.lease(*claim, *fence, evidence);
            operations.push(Operation {
                step: Step::Grant { lease },
                sent: new.asked,
                at: evidence.at,
                source: evidence.source,
            });
            leases.push(new);
        }
        for (number, request) in &self.requests {
            self.of_request(*number, request, &numbers, &leases, &mut operations);
        }
        operations.extend(self.views().map(|(number, view, holders)| {
            let holders = holders
                .iter()
                .filter_map(|holder| numbers.get(holder).copied());
            Operation {
                step: Step::View {
                    holders: sorted(holders),
                },
                sent: view.sent,
                at: view.at,
                source: Source::View(number),
            }
        }));
        // Answers at the same time count in this order: grants come first.
        operations.sort_by(|one, other| one.step.cmp(&other.step));
        LockHistory {
            name: self.name.to_owned(),
            leases,
            operations,
        }
    }

    /// The views of the lock with their numbers, and the claims and fences of the holders that they show. Those that say
    /// nothing about a holder are left out.
    fn views(&self) -> impl Iterator<Item = (usize, &View, Vec<(usize, u64)>)> {
        let claims = self.history.claims.iter().enumerate();
        let owners = claims.map(|(claim, terms)| (terms.owner.as_str(), claim));
        let owners: BTreeMap<_, _> = owners.collect();
        let views = self.history.views.iter().enumerate();
        // A former primary may have answered some of them.
        let views =
            views.filter(|(_, view)| view.name == self.name && !self.history.is_former_view(view));
        views.filter_map(move |(number, view)| {
            let known = view.holders.iter().filter_map(|(owner, fence)| {
                let claim = *owners.get(owner.as_str())?;
                Some((claim, self.history.fence_meant(view, claim, *fence)))
            });
            let known: Vec<_> = known.collect();
            let mut claims = known.iter().map(|(claim, _)| *claim);
            let is_doubtful = claims.any(|claim| self.history.is_doubtful(view, claim));
            (!is_doubtful).then_some((number, view, known))
        })
    }

    /// The leases by fence and claim.
    fn evidence(&self) -> BTreeMap<(u64, usize), Evidence> {
        let mut all: BTreeMap<(u64, usize), Evidence> = BTreeMap::new();
        let mut add = |fence: u64, claim: usize, at: Micros, source: Source| {
            let evidence = all.entry((fence, claim)).or_insert(Evidence {
                at,
                source,
                reporting: Vec::new(),
            });
            if at < evidence.at {
                (evidence.at, evidence.source) = (at, source);
            }
            if let Source::Request(request) = source {
                evidence.reporting.push(request);
            }
        };
        for (number, request) in &self.requests {
            for (at, answer) in &request.arrivals {
                let (Some(claim), Answer::Granted { leases, .. }) = (request.claim, answer) else {
                    continue;
                };
                if self.history.is_former_answer(request, *at) {
                    continue;
                }
                for lease in leases.iter().filter(|lease| lease.name == self.name) {
                    add(lease.fence, claim, *at, Source::Request(*number));
                }
            }
        }
        for (number, view, holders) in self.views() {
            for (claim, fence) in holders {
                add(fence, claim, view.at, Source::View(number));
            }
        }
        all
    }

    fn lease(&self, claim: usize, fence: u64, evidence: &Evidence) -> Lease {
        let own = || {
            self.requests
                .iter()
                .filter(|(_, request)| request.claim == Some(claim))
        };
        let asked = own().filter(|(_, request)| request.asks());
        let asked = asked.map(|(_, request)| request.sent).min();
        // Views of a claim that never asked are evidence of nothing else: such a lease has no beginning.
        let asked = asked.unwrap_or(Micros::MAX);
        let unsure_from = self.unsure_from(claim, asked);
        let history = self.history;
        let asks = history.asks_for(claim, evidence.reporting.iter().copied(), evidence.at);
        let all_asks = history.asks_for(claim, std::iter::empty(), Micros::MAX);
        let ends = own().filter_map(|(number, request)| {
            // A holder that was told of a loss has stopped, whatever the store knows.
            let was_told = request
                .refusal()
                .is_some_and(|(at, refusal)| refusal.is_loss() && unsure_from <= at);
            let may_end = self.may_end(*number, request, evidence);
            may_end.or(was_told.then_some(request.sent))
        });
        // What a former primary did may be lost or not.
        let may_take_effect = |request: &Request| {
            let mut arrivals = request.arrivals.iter();
            is_open(request) || arrivals.any(|(at, _)| self.history.is_former_answer(request, *at))
        };
        let evictions = self.requests.iter().filter_map(|(_, request)| {
            let is_unnamed = history.may_end_unnamed(request, (claim, fence), evidence.at);
            let is_open = request.action == Action::Evict && may_take_effect(request);
            // It may have been a rest that was evicted, or the lease itself, shortly before its end.
            let is_named =
                matches!(request.last(), Some(Answer::Evicted(named)) if named.contains(&fence));
            let is_of_rest = is_named && history.may_be_of_rest(request, (claim, fence));
            (is_open || is_unnamed || is_of_rest).then_some(request.sent)
        });
        let shared = own()
            .filter(|(_, request)| request.action == Action::StepDown && may_take_effect(request));
        Lease {
            claim,
            fence,
            mode: self.history.claims[claim].mode,
            asked,
            may_end_from: ends.chain(evictions).min().unwrap_or(Micros::MAX),
            may_share_from: shared
                .map(|(_, request)| request.sent)
                .min()
                .unwrap_or(Micros::MAX),
            unsure_from,
            is_reported: !evidence.reporting.is_empty(),
            may_repeat: unsure_from <= evidence.at
                || history.may_have_two_fences(&asks, &all_asks)
                || evidence.at > asked.saturating_add(TOMBSTONE_TTL_MIN),
        }
    }

    fn of_request(
        &self,
        number: usize,
        request: &Request,
        numbers: &BTreeMap<(usize, u64), usize>,
        leases: &[Lease],
        operations: &mut Vec<Operation>,
    ) {
        let source = Source::Request(number);
        for (index, (at, answer)) in request.arrivals.iter().enumerate() {
            if self.history.is_former_answer(request, *at) {
                continue;
            }
            let step = match (request.claim, answer) {
                (
                    Some(claim),
                    Answer::Granted {
                        leases: reported, ..
                    },
                ) => {
                    let reported = reported.iter().find(|lease| lease.name == self.name);
                    reported.and_then(|reported| {
                        let lease = *numbers.get(&(claim, reported.fence))?;
                        let written = self.written(request, index);
                        let full = self.history.claims[claim].lease.max(reported.expires_in);
                        Some(Step::Report {
                            lease,
                            until: self.end(request.sent, written + reported.expires_in),
                            latest: at + full,
                            is_bounded: self.is_bounded(claim, leases[lease].asked, request.sent),
                            steps_down: request.action == Action::StepDown,
                        })
                    })
                }
                (Some(claim), Answer::Freed) => Some(Step::End { claim }),
                (Some(claim), Answer::Refused(refusal)) => {
                    let is_of_one = request.names.len() == 1;
                    // A stream reports a loss by its own knowledge, not by the store's.
                    let is_of_store = !request.is_granted();
                    let asked = self.requests.iter();
                    let asked = asked.filter(|(_, other)| other.claim == Some(claim));
                    let asked = asked.map(|(_, other)| other.sent).min().unwrap_or(0);
                    let is_sure = *at < self.unsure_from(claim, asked);
                    (is_of_one && is_of_store && is_sure && refusal.is_loss())
                        .then_some(Step::NotHeld { claim })
                }
                (None, Answer::Evicted(fences)) => {
                    let of_fence = |fence: &u64| {
                        let mut all = leases.iter();
                        all.position(|lease| lease.fence == *fence)
                    };
                    // A rest of a lease that has ended is no lease.
                    let is_rest = |lease: &usize| {
                        let Lease { claim, fence, .. } = leases[*lease];
                        self.history.may_be_of_rest(request, (claim, fence))
                    };
                    let named = fences.iter().filter_map(of_fence);
                    let holders = sorted(named.filter(|lease| !is_rest(lease)));
                    Some(match holders.is_empty() {
                        // It changes nothing, and may have come before a grant that it was still in progress at.
                        true => Step::View { holders },
                        false => Step::Evict { holders },
                    })
                }
                (_, Answer::Queued | Answer::Evicted(_)) | (None, _) => None,
            };
            operations.extend(step.map(|step| Operation {
                step,
                sent: request.sent,
                at: *at,
                source,
            }));
        }
    }
}

fn sorted(leases: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut leases: Vec<_> = leases.collect();
    leases.sort_unstable();
    leases
}
