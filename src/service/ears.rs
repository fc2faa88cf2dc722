//! What a service hears from its store, and whom it concerns. Nothing here waits.

use std::sync::Arc;

use super::events::Events;
use super::held::HeldByStreams;
use super::queues::Queues;
use crate::domain::{ClaimDigest, LockEvent, LockName};
use crate::store::Listener;

/// The listener of one service. It knows no store, so store and service do not keep each other alive.
#[derive(Debug)]
pub(super) struct Ears {
    pub(super) queues: Arc<Queues>,
    pub(super) events: Arc<Events>,
    pub(super) held: Arc<HeldByStreams>,
}

impl Listener for Ears {
    fn offered(&self, name: &LockName) {
        self.queues.offered(name).after_the_answer();
    }

    fn evicted(&self, name: &LockName) {
        self.held.evicted(name);
    }

    fn released(&self, name: &LockName, claim: ClaimDigest) {
        self.held.released(name, claim);
    }

    fn event(&self, event: LockEvent) {
        self.events.happened(event);
    }

    fn missed(&self) {
        self.queues.missed();
    }

    fn missed_events(&self) {
        self.events.missed();
    }
}
