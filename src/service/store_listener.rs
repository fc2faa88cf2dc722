//! Passes the store's notifications to waiters, streams and watchers. Nothing here waits.

use std::sync::Arc;

use super::events::EventLog;
use super::held::HeldByStreams;
use super::local_waiters::LocalWaiters;
use crate::domain::{ClaimDigest, LockEvent, LockName};
use crate::store::Listener;

/// The listener of one service. It has no reference to the store, so that the two do not keep each other alive.
#[derive(Debug)]
pub(super) struct StoreListener {
    pub(super) queues: Arc<LocalWaiters>,
    pub(super) events: Arc<EventLog>,
    pub(super) held: Arc<HeldByStreams>,
}

impl Listener for StoreListener {
    fn reserved(&self, name: &LockName) {
        self.queues.reserved(name).defer();
    }

    fn dequeued(&self, name: &LockName, claim: ClaimDigest) {
        self.queues.recheck_claim(name, claim);
    }

    fn evicted(&self, name: &LockName) {
        self.held.evicted(name);
    }

    fn released(&self, name: &LockName, claim: ClaimDigest) {
        self.held.released(name, claim);
    }

    fn event(&self, event: LockEvent) {
        self.events.record(event);
    }

    fn messages_lost(&self) {
        self.queues.recheck_all();
    }

    fn events_lost(&self) {
        self.events.record_gap();
    }
}
