//! What becomes of the effects of a step beside its answer: the notifications are delivered, and a durable store writes
//! the rows. How it writes them is not known here.

use async_trait::async_trait;

use crate::store::Listener;
use crate::store::state::{Notification, State, StoreTime};

/// Takes what each step changes, for a store that writes it before answers go out.
#[async_trait]
pub(in crate::store) trait Journal: Send + Sync {
    /// Takes the rows that the last step of the state changed, and its notifications, which the journal delivers. Called
    /// while the state is locked.
    fn record(&self, state: &State, now: StoreTime, notifications: Vec<Notification>);

    /// Waits until there is room for what a sweep changes, so that sweeps are no faster than the journal.
    async fn room(&self);
}

/// Calls the listener with each notification.
pub(in crate::store) fn deliver(notifications: Vec<Notification>, listener: &dyn Listener) {
    for notification in notifications {
        match notification {
            Notification::Reserved(name) => listener.reserved(&name),
            Notification::Dequeued(key) => listener.dequeued(&key.name, key.claim),
            Notification::Evicted(name) => listener.evicted(&name),
            Notification::Released(key) => listener.released(&key.name, key.claim),
            Notification::Event(event) => listener.event(event),
        }
    }
}
