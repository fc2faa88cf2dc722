//! The notifications between a scripted store and its service.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use leasehold::domain::{ClaimDigest, LockEvent, LockName};
use leasehold::store::Listener;

/// Forwards the store's notifications, or loses them.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) are_lost: AtomicBool,
    pub(super) listener: Mutex<Option<Arc<dyn Listener>>>,
}

impl Messages {
    /// Notifies the listener of a message that may be lost.
    fn send(&self, notify: impl FnOnce(&dyn Listener)) {
        if !self.are_lost.load(Ordering::Relaxed) {
            self.deliver(notify);
        }
    }

    fn deliver(&self, notify: impl FnOnce(&dyn Listener)) {
        if let Some(listener) = &*self.listener.lock().unwrap() {
            notify(&**listener);
        }
    }
}

impl Listener for Messages {
    fn reserved(&self, name: &LockName) {
        self.send(|listener| listener.reserved(name));
    }

    fn dequeued(&self, name: &LockName, claim: ClaimDigest) {
        self.send(|listener| listener.dequeued(name, claim));
    }

    fn evicted(&self, name: &LockName) {
        self.send(|listener| listener.evicted(name));
    }

    fn released(&self, name: &LockName, claim: ClaimDigest) {
        self.send(|listener| listener.released(name, claim));
    }

    fn event(&self, event: LockEvent) {
        self.deliver(|listener| listener.event(event));
    }

    fn messages_lost(&self) {}

    fn events_lost(&self) {}
}
