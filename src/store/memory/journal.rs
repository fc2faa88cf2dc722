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

    /// Whether there is room only for steps that need no more of it.
    fn is_full(&self) -> bool;

    /// Waits until there is room for what a sweep or an eviction changes, so that they are no faster than the journal.
    /// Returns false if there is none until the journal can write again.
    async fn room(&self) -> bool;
}

/// Waits for the [room](Journal::room) of the journal, if there is one.
pub(super) async fn has_room(journal: Option<&dyn Journal>) -> bool {
    match journal {
        Some(journal) => journal.room().await,
        None => true,
    }
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
