//! What a step has to tell, collected while it runs and told after it.

use super::clock::StoreTime;
use super::lease_record::LeaseRecord;
use crate::domain::{ClaimDigest, EventKind, LockEvent, LockName, Owner, Token};
use crate::store::Listener;

/// What is still to be told.
#[derive(Default)]
pub(super) struct Notifications {
    pub(super) wants_events: bool,
    waiting: Vec<Notification>,
    last_id: u64,
}

/// One thing that is told.
pub(super) enum Notification {
    Offered(LockName),
    Evicted(LockName),
    Released(LockName, ClaimDigest),
    Event(LockEvent),
}

impl Notification {
    pub(super) fn tell(self, listener: &dyn Listener) {
        match self {
            Self::Offered(name) => listener.reserved(&name),
            Self::Evicted(name) => listener.evicted(&name),
            Self::Released(name, claim) => listener.released(&name, claim),
            Self::Event(event) => listener.event(event),
        }
    }
}

impl Notifications {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn reserved(&mut self, name: &LockName) {
        self.waiting.push(Notification::Offered(name.clone()));
    }

    pub(super) fn evicted(&mut self, name: &LockName) {
        self.waiting.push(Notification::Evicted(name.clone()));
    }

    /// A lease that a stream may hold was released by a request.
    pub(super) fn released(&mut self, name: &LockName, token: Token) {
        let signal = Notification::Released(name.clone(), token.digest(name));
        self.waiting.push(signal);
    }

    /// Something happened to a lease.
    pub(super) fn event(
        &mut self,
        kind: EventKind,
        name: &LockName,
        hold: &LeaseRecord,
        now: StoreTime,
    ) {
        let (at, goes_on) = match kind {
            EventKind::Acquired | EventKind::Renewed => (now.instant, true),
            // It may have been noticed late.
            EventKind::Expired => (hold.until, false),
            EventKind::Released | EventKind::Evicted | EventKind::Queued => (now.instant, false),
        };
        self.push(now, |id| LockEvent {
            id,
            kind,
            name: name.clone(),
            at: now.timestamp_of(at),
            fence: Some(hold.fence),
            expires_at: goes_on.then(|| now.timestamp_of(hold.until)),
            owner: hold.owner().clone(),
        });
    }

    /// A claim has come to wait.
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
            // Like a fencing token: it grows within a microsecond, and past those of an earlier process.
            self.last_id = now.unix_us.max(self.last_id + 1);
            let event = event(self.last_id.to_string());
            self.waiting.push(Notification::Event(event));
        }
    }
}
