//! A listener that remembers what it was told, so that a law can ask how often.

use std::sync::{Mutex, MutexGuard};

use leasehold::domain::{ClaimDigest, EventKind, LockEvent, LockName};
use leasehold::store::Listener;

/// Hears everything that a store tells one process.
#[derive(Debug, Default)]
pub(crate) struct RecordingListener {
    heard: Mutex<Heard>,
}

/// What was heard so far.
#[derive(Debug, Default)]
struct Heard {
    offers: Vec<LockName>,
    evictions: Vec<LockName>,
    releases: Vec<(LockName, ClaimDigest)>,
    events: Vec<LockEvent>,
    missed: usize,
    missed_events: usize,
}

impl RecordingListener {
    /// How often the lock was offered.
    pub(crate) fn offers_of(&self, name: &LockName) -> usize {
        let heard = self.heard();
        heard
            .offers
            .iter()
            .filter(|offered| *offered == name)
            .count()
    }

    /// How often it was told that those who held the lock were evicted.
    pub(crate) fn evictions_of(&self, name: &LockName) -> usize {
        let heard = self.heard();
        let evictions = heard.evictions.iter();
        evictions.filter(|evicted| *evicted == name).count()
    }

    /// How often it was told that a request released what a stream of this claim may hold.
    pub(crate) fn releases_of(&self, name: &LockName, claim: ClaimDigest) -> usize {
        let heard = self.heard();
        let releases = heard.releases.iter();
        let of_claim = releases.filter(|(of, by)| of == name && *by == claim);
        of_claim.count()
    }

    /// What happened to the lock, in the order in which it was told.
    pub(crate) fn events_of(&self, name: &LockName) -> Vec<LockEvent> {
        let heard = self.heard();
        let events = heard.events.iter().filter(|event| event.name == *name);
        events.cloned().collect()
    }

    /// The kinds of what happened to the lock.
    pub(crate) fn kinds_of(&self, name: &LockName) -> Vec<EventKind> {
        let events = self.events_of(name);
        events.into_iter().map(|event| event.kind).collect()
    }

    /// How often offers may have been lost.
    pub(crate) fn missed(&self) -> usize {
        self.heard().missed
    }

    /// How often events may have been lost.
    pub(crate) fn missed_events(&self) -> usize {
        self.heard().missed_events
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().expect("nobody panics while holding it")
    }
}

impl Listener for RecordingListener {
    fn reserved(&self, name: &LockName) {
        self.heard().offers.push(name.clone());
    }

    fn evicted(&self, name: &LockName) {
        self.heard().evictions.push(name.clone());
    }

    fn released(&self, name: &LockName, claim: ClaimDigest) {
        self.heard().releases.push((name.clone(), claim));
    }

    fn event(&self, event: LockEvent) {
        self.heard().events.push(event);
    }

    fn messages_lost(&self) {
        self.heard().missed += 1;
    }

    fn events_lost(&self) {
        self.heard().missed_events += 1;
    }
}
