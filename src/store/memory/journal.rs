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

    /// Whether notifications are delivered late at present, or were a moment ago.
    fn is_late(&self) -> bool;

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
            self.state.deliver_late(journal.is_late());
        }
        let StepResult {
            answer,
            notifications,
            changed,
        } = step(&mut self.state, now);
        // Else the journal would take what the step before has changed for another time.
        let has_effects = !changed.is_empty() || !notifications.is_empty();
        match &self.journal {
            Some(journal) if has_effects => journal.record(&self.state, now, notifications),
            Some(_) => {}
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::time::Instant;

    use super::super::{MemoryStore, wall_time};
    use super::*;
    use crate::domain::{Acquired, Attempt, Claim, LockName, QueueRequest, Token, Ttl};
    use crate::store::{LockStore as _, RESERVATION_EXTENSION, RESERVATION_TTL};

    const SECOND: Duration = Duration::from_secs(1);

    /// Takes everything, and delivers nothing.
    #[derive(Default)]
    struct HeldBack {
        is_late: AtomicBool,
    }

    #[async_trait]
    impl Journal for HeldBack {
        fn record(&self, _: &State, _: StoreTime, _: Vec<Notification>) {}

        fn is_full(&self) -> bool {
            false
        }

        fn is_late(&self) -> bool {
            self.is_late.load(Ordering::Relaxed)
        }

        async fn room(&self) -> bool {
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_not_passed_over_while_its_message_waits_for_the_disk() {
        let journal = Arc::new(HeldBack::default());
        let store = MemoryStore::journaled(State::new(100), wall_time(), Arc::clone(&journal) as _);
        let name = LockName::parse(b"a").expect("a name");
        let claim = || {
            Claim::plain(
                name.clone().into(),
                Token::random(),
                Ttl::from_store(SECOND * 60),
            )
        };
        let acquire = async |claim: &Claim, request: Option<&QueueRequest>| {
            let deadline = Instant::now() + SECOND;
            let acquired = store.acquire(claim, Attempt(1), request, deadline).await;
            acquired.expect("there is room")
        };
        let is_granted = |acquired: &Acquired| acquired.kind().is_some();
        let [holder, waiter] = [claim(), claim()];
        assert!(is_granted(&acquire(&holder, None).await));
        let request = QueueRequest {
            ticket: None,
            age: Duration::ZERO,
            wait: SECOND * 50,
            execute_within: SECOND,
            place_kept: SECOND,
            poll_interval: SECOND * 10,
            waiters_max: 10,
            wants_position: false,
            is_head: false,
            takes_over: true,
        };
        assert!(!is_granted(&acquire(&waiter, Some(&request)).await));
        let names = &holder.names;
        let deadline = Instant::now() + SECOND;
        let released = store.release(names, holder.token, None, deadline).await;
        assert_eq!(released.expect("it holds").len(), 1);
        journal.is_late.store(true, Ordering::Relaxed);
        for _ in 0..10 {
            tokio::time::advance(RESERVATION_TTL).await;
            assert!(!is_granted(&acquire(&claim(), None).await));
        }
        journal.is_late.store(false, Ordering::Relaxed);
        tokio::time::advance(RESERVATION_EXTENSION).await;
        assert!(is_granted(&acquire(&claim(), None).await));
    }
}
