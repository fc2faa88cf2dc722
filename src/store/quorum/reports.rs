//! The notifications of the nodes, each passed on once: when a majority has reported it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::drift::Drift;
use crate::domain::{ClaimDigest, EventKind, Fence, LockEvent, LockName};
use crate::store::Listener;

/// How long reports of the same are counted together. A node that is later has missed it.
const COUNTED: Duration = Duration::from_secs(5);

/// A node whose report of a wake-up is later than this is taken to have missed it, and to mean the next one. If it was late
/// only, the next wake-up is passed on too early, and once more when another node reports it: a wake-up too many costs a
/// poll, and one that is missed costs the time until the next poll.
const LATE_WAKE_UPS_MAX: Duration = Duration::from_millis(100);

/// Counts reports.
#[derive(Debug)]
pub(super) struct Reports {
    nodes: usize,
    drift: Drift,
    listener: OnceLock<Arc<dyn Listener>>,
    counted: Mutex<ReportCounts>,
}

#[derive(Debug, Default)]
struct ReportCounts {
    reports: HashMap<Subject, ReportCount>,
    /// When to forget which, in this order.
    ages: VecDeque<(Instant, Subject)>,
    deliveries: Deliveries,
    /// The number of the last event that has no fencing token.
    last_number: u64,
}

/// What is reported. Every node reports it as often as it happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Reserved(LockName),
    Dequeued(LockName, ClaimDigest),
    Evicted(LockName),
    Released(LockName, ClaimDigest),
    Event(LockName, &'static str, Option<Fence>, String),
}

#[derive(Debug)]
struct ReportCount {
    /// How often each node has reported it.
    by_node: Vec<u64>,
    /// Which nodes may have reported late what was passed on, instead of the next one.
    may_be_late: Vec<bool>,
    /// Whether the last one was passed on because of such a node.
    may_be_early: bool,
    /// How often it was passed on, and when last.
    passed_on: u64,
    passed_on_at: Instant,
    last: Instant,
}

/// Which nodes deliver all their events.
#[derive(Debug, Default)]
struct Deliveries {
    /// The nodes that do not, or did not a moment ago: since when they do again.
    interrupted: HashMap<usize, Option<Instant>>,
    /// The nodes that have been asked for events, and do not deliver them yet.
    beginning: HashSet<usize>,
    /// Whether events may be missing because too few nodes delivered all of theirs at once.
    has_gap: bool,
}

/// A wait until a node delivers its events. If it is given up, somebody watches while too few nodes may deliver theirs.
struct DeliveryGuard<'a>(&'a Reports, usize);

impl Drop for DeliveryGuard<'_> {
    fn drop(&mut self) {
        let Self(reports, node) = self;
        let deliveries = &mut reports.lock().deliveries;
        if deliveries.beginning.contains(node) {
            deliveries.note_gap(reports.nodes);
        }
    }
}

/// The listener of one node.
#[derive(Debug)]
pub(super) struct NodeListener {
    pub(super) node: usize,
    pub(super) reports: Arc<Reports>,
}

impl Reports {
    pub(super) fn new(nodes: usize, drift: Drift) -> Self {
        Self {
            nodes,
            drift,
            listener: OnceLock::new(),
            counted: Mutex::default(),
        }
    }

    pub(super) fn set_listener(&self, listener: Arc<dyn Listener>) {
        self.listener.get_or_init(|| listener);
    }

    /// Has a node deliver its events. Until it does so, it is one of those that may be missing: it was perhaps down already
    /// when somebody began to watch.
    ///
    /// # Cancel safety
    /// The node is counted as missing until it reports that it delivers.
    pub(super) async fn begin_delivery(&self, node: usize, begins: impl Future<Output = ()>) {
        self.lock().deliveries.beginning.insert(node);
        // Cancellation safety: what a majority has not begun to deliver is a gap, once it does.
        let _guard = DeliveryGuard(self, node);
        begins.await;
        self.lock().deliveries.beginning.remove(&node);
    }

    /// Nobody watches any more.
    pub(super) fn end_deliveries(&self) {
        self.lock().deliveries.beginning.clear();
    }

    fn lock(&self) -> MutexGuard<'_, ReportCounts> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a report, and passes it on if it is the one that makes a majority. That happens while the reports are locked,
    /// so that two do not overtake each other.
    fn report(&self, node: usize, subject: Subject, pass_on: impl FnOnce(&dyn Listener, u64)) {
        let mut counted = self.lock();
        let now = Instant::now();
        counted.forget_old(now);
        let nodes = self.nodes;
        let is_wake_up = subject.is_wake_up();
        let report = counted.reports.entry(subject.clone());
        let report = report.or_insert_with(|| ReportCount {
            by_node: vec![0; nodes],
            may_be_late: vec![false; nodes],
            may_be_early: false,
            passed_on: 0,
            passed_on_at: now,
            last: now,
        });
        let is_first = report.by_node.iter().all(|count| *count == 0);
        report.last = now;
        if is_wake_up {
            report.catch_up(node);
        }
        if !report.count(node) {
            if is_first {
                counted.ages.push_back((now, subject));
            }
            return;
        }
        counted.last_number += 1;
        let number = counted.last_number;
        if let Some(listener) = self.listener.get() {
            pass_on(listener.as_ref(), number);
        }
    }
}

impl Subject {
    /// Whether it only has somebody look, so that it may be passed on too often.
    fn is_wake_up(&self) -> bool {
        match self {
            Self::Reserved(_) | Self::Dequeued(..) | Self::Evicted(_) | Self::Released(..) => true,
            Self::Event(..) => false,
        }
    }
}

impl ReportCounts {
    fn forget_old(&mut self, now: Instant) {
        while let Some((since, _)) = self.ages.front()
            && now.duration_since(*since) > COUNTED
            && let Some((_, subject)) = self.ages.pop_front()
        {
            match self.reports.get(&subject).map(|report| report.last) {
                Some(last) if now.duration_since(last) <= COUNTED => {
                    self.ages.push_back((last, subject));
                }
                Some(_) | None => {
                    self.reports.remove(&subject);
                }
            }
        }
    }
}

impl Deliveries {
    /// A node does not deliver all its events from now on.
    fn interrupted(&mut self, node: usize, nodes: usize) {
        self.beginning.remove(&node);
        self.interrupted.insert(node, None);
        self.note_gap(nodes);
    }

    /// A node delivers all its events from now on. Returns whether watchers have to look again: events may be missing, and
    /// from now on a majority delivers all.
    fn resumed(&mut self, node: usize, nodes: usize) -> bool {
        self.beginning.remove(&node);
        self.interrupted.insert(node, Some(Instant::now()));
        self.note_gap(nodes);
        let silent = self.interrupted.values().filter(|since| since.is_none());
        let silent = silent.count() + self.beginning.len();
        silent <= minority(nodes) && std::mem::take(&mut self.has_gap)
    }

    /// That a node is silent is noticed a while later.
    fn note_gap(&mut self, nodes: usize) {
        self.interrupted
            .retain(|_, since| since.is_none_or(|since| since.elapsed() <= COUNTED));
        self.has_gap |= self.interrupted.len() + self.beginning.len() > minority(nodes);
    }
}

/// How many nodes may be missing.
fn minority(nodes: usize) -> usize {
    (nodes - 1) / 2
}

impl ReportCount {
    /// Has the next report of a node that has missed some count for what is reported now.
    fn catch_up(&mut self, node: usize) {
        let is_reported_again = self.by_node.iter().any(|count| *count > self.passed_on);
        let has_missed = self.passed_on_at.elapsed() > LATE_WAKE_UPS_MAX;
        let is_behind = self.by_node[node] < self.passed_on;
        self.may_be_late[node] |= is_behind && has_missed && !is_reported_again;
        if is_behind && (is_reported_again || has_missed) {
            self.by_node[node] = self.passed_on;
        }
    }

    /// Counts a report of a node. Returns whether a majority has reported the subject once more, or now certainly has.
    fn count(&mut self, node: usize) -> bool {
        self.by_node[node] += 1;
        let reported = self.by_node[node];
        let mut counts = self.by_node.clone();
        counts.sort_unstable();
        // As many nodes as a majority has count at least this.
        let of_majority = counts[counts.len().div_ceil(2) - 1];
        let is_more = of_majority > self.passed_on;
        let is_sure = self.may_be_early && reported == self.passed_on;
        if is_more {
            let mut by_node = self.by_node.iter().zip(&self.may_be_late);
            self.may_be_early =
                by_node.any(|(count, may_be_late)| *may_be_late && *count >= of_majority);
            self.passed_on = of_majority;
            self.passed_on_at = Instant::now();
            // A node that has missed some does not keep later ones from being counted.
            for count in &mut self.by_node {
                *count = (*count).max(of_majority - 1);
            }
        }
        self.may_be_early &= !is_sure;
        is_more || is_sure
    }
}

impl Listener for NodeListener {
    fn reserved(&self, name: &LockName) {
        let subject = Subject::Reserved(name.clone());
        self.reports
            .report(self.node, subject, |listener, _| listener.reserved(name));
    }

    fn dequeued(&self, name: &LockName, claim: ClaimDigest) {
        let subject = Subject::Dequeued(name.clone(), claim);
        self.reports.report(self.node, subject, |listener, _| {
            listener.dequeued(name, claim);
        });
    }

    fn evicted(&self, name: &LockName) {
        let subject = Subject::Evicted(name.clone());
        self.reports
            .report(self.node, subject, |listener, _| listener.evicted(name));
    }

    fn released(&self, name: &LockName, claim: ClaimDigest) {
        let subject = Subject::Released(name.clone(), claim);
        self.reports.report(self.node, subject, |listener, _| {
            listener.released(name, claim);
        });
    }

    fn event(&self, event: LockEvent) {
        let LockEvent {
            kind, name, fence, ..
        } = &event;
        let owner = match fence {
            // The token identifies the lease.
            Some(_) => String::new(),
            None => event.owner.as_str().to_owned(),
        };
        let subject = Subject::Event(name.clone(), kind.label(), *fence, owner);
        let drift = self.reports.drift;
        self.reports.report(self.node, subject, |listener, number| {
            listener.event(merged(event, number, drift));
        });
    }

    /// The waiters recheck, whichever node may have lost a reservation.
    fn messages_lost(&self) {
        if let Some(listener) = self.reports.listener.get() {
            listener.messages_lost();
        }
    }

    /// An event is lost only if too few nodes are left to report it.
    fn events_lost(&self) {
        let reports = &self.reports;
        let mut counted = reports.lock();
        let is_lost = counted.deliveries.resumed(self.node, reports.nodes);
        drop(counted);
        if let Some(listener) = reports.listener.get().filter(|_| is_lost) {
            listener.events_lost();
        }
    }

    fn events_interrupted(&self) {
        let reports = &self.reports;
        let mut counted = reports.lock();
        counted.deliveries.interrupted(self.node, reports.nodes);
    }
}

/// The event as watchers receive it. All processes give the same id to what happens to a lease once.
fn merged(event: LockEvent, number: u64, drift: Drift) -> LockEvent {
    let end = |until| drift.end_of_holder(event.at, until);
    let id = match (event.kind, event.fence) {
        (EventKind::Renewed | EventKind::Queued, _) | (_, None) => {
            format!("{}-{number}", event.at.unix_ms())
        }
        (
            EventKind::Acquired | EventKind::Released | EventKind::Expired | EventKind::Evicted,
            Some(fence),
        ) => {
            // The leases of a lock have different tokens. Those of two locks of a bucket may have the same one, decided by
            // different majorities.
            let lock = event.name.fingerprint();
            format!("{fence}-{lock:x}-{}", event.kind.label())
        }
    };
    LockEvent {
        id,
        expires_at: event.expires_at.map(end),
        ..event
    }
}
