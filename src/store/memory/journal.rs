//! A step of the state, and what becomes of its effects beside its answer: the notifications are delivered, and a durable
//! store writes the rows. When the notifications are delivered and how the rows are written is not known here.

use std::sync::Arc;

use async_trait::async_trait;

use crate::store::Listener;
use crate::store::state::{Notification, State, StepResult, StoreTime};

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

/// What the lock of the [memory store](super) guards: the state, and the notifications of its steps that are not delivered
/// yet.
pub(super) struct LockedState {
    pub(super) state: State,
    pub(super) pending: Vec<Notification>,
    pub(super) journal: Option<Arc<dyn Journal>>,
}

impl LockedState {
    pub(super) fn step<T>(
        &mut self,
        now: StoreTime,
        step: impl FnOnce(&mut State, StoreTime) -> StepResult<'_, T>,
    ) -> T {
        if let Some(journal) = &self.journal {
            self.state.admit_claims(!journal.is_full());
        }
        let StepResult {
            answer,
            notifications,
            ..
        } = step(&mut self.state, now);
        match &self.journal {
            Some(journal) => journal.record(&self.state, now, notifications),
            None => self.pending.extend(notifications),
        }
        answer
    }
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
