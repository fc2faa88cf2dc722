//! A listener that records its notifications, so that a test can count them.

use std::sync::{Mutex, MutexGuard};

use leasehold::domain::{ClaimDigest, EventKind, LockEvent, LockName};
use leasehold::store::Listener;

/// Records all notifications of a store to one process.
#[derive(Debug, Default)]
pub(crate) struct RecordingListener {
    recorded: Mutex<Recorded>,
}

/// The notifications so far.
#[derive(Debug, Default)]
struct Recorded {
    reservations: Vec<LockName>,
    evictions: Vec<LockName>,
    dequeued: Vec<(LockName, ClaimDigest)>,
    releases: Vec<(LockName, ClaimDigest)>,
    events: Vec<LockEvent>,
    missed: usize,
    missed_events: usize,
    interruptions: usize,
}

impl RecordingListener {
    /// How often the lock was reserved for this process.
    pub(crate) fn reservations_of(&self, name: &LockName) -> usize {
        let recorded = self.recorded();
        recorded
            .reservations
            .iter()
            .filter(|reserved| *reserved == name)
            .count()
    }

    /// How often it was notified that the claim was taken out of the lock's queue elsewhere.
    pub(crate) fn dequeued_of(&self, name: &LockName, claim: ClaimDigest) -> usize {
        let recorded = self.recorded();
        let dequeued = recorded.dequeued.iter();
        let of_claim = dequeued.filter(|(of, by)| of == name && *by == claim);
        of_claim.count()
    }

    /// How often an eviction of the lock was notified.
    pub(crate) fn evictions_of(&self, name: &LockName) -> usize {
        let recorded = self.recorded();
        let evictions = recorded.evictions.iter();
        evictions.filter(|evicted| *evicted == name).count()
    }

    /// How often a release that may concern a stream of this claim was notified.
    pub(crate) fn releases_of(&self, name: &LockName, claim: ClaimDigest) -> usize {
        let recorded = self.recorded();
        let releases = recorded.releases.iter();
        let of_claim = releases.filter(|(of, by)| of == name && *by == claim);
        of_claim.count()
    }

    /// The events of the lock, in the order of their delivery.
    pub(crate) fn events_of(&self, name: &LockName) -> Vec<LockEvent> {
        let recorded = self.recorded();
        let events = recorded.events.iter().filter(|event| event.name == *name);
        events.cloned().collect()
    }

    /// The kinds of the lock's events.
    pub(crate) fn kinds_of(&self, name: &LockName) -> Vec<EventKind> {
        let events = self.events_of(name);
        events.into_iter().map(|event| event.kind).collect()
    }

    /// How often the store reported that reservations may have been lost.
    pub(crate) fn missed(&self) -> usize {
        self.recorded().missed
    }

    /// How often the store reported that events may be missing from then on.
    pub(crate) fn interruptions(&self) -> usize {
        self.recorded().interruptions
    }

    /// How often the store reported that events may have been lost.
    pub(crate) fn missed_events(&self) -> usize {
        self.recorded().missed_events
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded
            .lock()
            .expect("no code panics while holding it")
    }
}

impl Listener for RecordingListener {
    fn reserved(&self, name: &LockName) {
        self.recorded().reservations.push(name.clone());
    }

    fn dequeued(&self, name: &LockName, claim: ClaimDigest) {
        self.recorded().dequeued.push((name.clone(), claim));
    }

    fn evicted(&self, name: &LockName) {
        self.recorded().evictions.push(name.clone());
    }

    fn released(&self, name: &LockName, claim: ClaimDigest) {
        self.recorded().releases.push((name.clone(), claim));
    }

    fn event(&self, event: LockEvent) {
        self.recorded().events.push(event);
    }

    fn messages_lost(&self) {
        self.recorded().missed += 1;
    }

    fn events_lost(&self) {
        self.recorded().missed_events += 1;
    }

    fn events_interrupted(&self) {
        self.recorded().interruptions += 1;
    }
}
