//! The notifications of a step, collected while it runs and delivered after it.

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use crate::domain::{ClaimDigest, EventKind, LockEvent, LockName, Owner, Token};
use crate::store::Listener;

/// Notifications that are not delivered yet.
#[derive(Default)]
pub(super) struct Notifications {
    pub(super) wants_events: bool,
    pending: Vec<Notification>,
    last_id: u64,
}

/// One notification.
pub(super) enum Notification {
    Reserved(LockName),
    Evicted(LockName),
    Released(LockName, ClaimDigest),
    Event(LockEvent),
}

impl Notification {
    pub(super) fn deliver(self, listener: &dyn Listener) {
        match self {
            Self::Reserved(name) => listener.reserved(&name),
            Self::Evicted(name) => listener.evicted(&name),
            Self::Released(name, claim) => listener.released(&name, claim),
            Self::Event(event) => listener.event(event),
        }
    }
}

impl Notifications {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.pending)
    }

    pub(super) fn reserved(&mut self, name: &LockName) {
        self.pending.push(Notification::Reserved(name.clone()));
    }

    pub(super) fn evicted(&mut self, name: &LockName) {
        self.pending.push(Notification::Evicted(name.clone()));
    }

    /// A request released a lease that a stream may hold.
    pub(super) fn released(&mut self, name: &LockName, token: Token) {
        let notification = Notification::Released(name.clone(), token.digest(name));
        self.pending.push(notification);
    }

    pub(super) fn event(
        &mut self,
        kind: EventKind,
        name: &LockName,
        record: &LeaseRecord,
        now: StoreTime,
    ) {
        let (at, continues) = match kind {
            EventKind::Acquired | EventKind::Renewed => (now.instant, true),
            // The expiry may have been noticed late.
            EventKind::Expired => (record.until, false),
            EventKind::Released | EventKind::Evicted | EventKind::Queued => (now.instant, false),
        };
        self.push(now, |id| LockEvent {
            id,
            kind,
            name: name.clone(),
            at: now.timestamp_of(at),
            fence: Some(record.fence),
            expires_at: continues.then(|| now.timestamp_of(record.until)),
            owner: record.owner().clone(),
        });
    }

    /// A claim was enqueued.
    pub(super) fn queued(&mut self, name: &LockName, owner: &Owner, now: StoreTime) {
        self.push(now, |id| LockEvent {
            id,
            kind: EventKind::Queued,
            name: name.clone(),
            at: now.timestamp(),
            fence: None,
            expires_at: None,
            owner: owner.clone(),
        });
    }

    fn push(&mut self, now: StoreTime, event: impl FnOnce(String) -> LockEvent) {
        if self.wants_events {
            // Like a fencing token: it grows even within one microsecond, and exceeds the ids of an earlier process.
            self.last_id = now.unix_us.max(self.last_id + 1);
            let event = event(self.last_id.to_string());
            self.pending.push(Notification::Event(event));
        }
    }
}
