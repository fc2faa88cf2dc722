//! What a step does beside its answer: the notifications to deliver, and the rows that it changed.
//!
//! The store that runs the state machine delivers and writes them.

use super::ClaimKey;
use super::StoreTime;
use super::lease::LeaseRecord;
use crate::domain::{Bucket, ClaimDigest, EventKind, Fence, LockEvent, LockName, Owner};

/// A notification for [`Listener`](crate::store::Listener), which has a method for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The lock is reserved for the head waiter.
    Reserved(LockName),
    /// A request released a claim that waits.
    Dequeued(ClaimKey),
    /// Holders of the lock were evicted.
    Evicted(LockName),
    /// A request released a lease that a stream may hold.
    Released(ClaimKey),
    /// Something happened to a lock.
    Event(LockEvent),
}

/// The key of a row: the smallest part of the state that a durable store writes or deletes at once. Reservations are
/// not among them: they end with the process whose waiters they are for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    /// The owner and metadata of a claim, by their number.
    Text(u64),
    /// The locks of a claim that waits for several, by their number.
    Names(u64),
    /// A lease, with its options and the attempts that received it.
    Lease(ClaimKey),
    /// The ticket of a waiting claim, or of one whose place is kept.
    Ticket(ClaimKey),
    /// What the ended lease with this fencing token keeps taken until this time.
    Cooldown(LockName, StoreTime, Fence),
    /// The last lease of the lock, an exclusive one that expired.
    LastExpired(LockName),
    /// The tombstone of an ended claim.
    Tombstone(ClaimDigest),
    /// The last fencing token of the bucket, where it was ahead of the clock.
    Fence(Bucket),
}

/// The effects of the step in progress.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) wants_events: bool,
    /// Whether changed rows are listed, which a store that writes none does without.
    pub(super) lists_rows: bool,
    /// Whether notifications are delivered late at present.
    pub(super) is_late: bool,
    notifications: Vec<Notification>,
    rows: Vec<Row>,
    last_event_id: u64,
}

impl Effects {
    /// Begins a step.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    pub(super) fn take_notifications(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.notifications)
    }

    /// The rows that the step has changed; a row may be there twice.
    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// A row has changed, or has gone.
    pub(super) fn changed(&mut self, row: impl FnOnce() -> Row) {
        if self.lists_rows {
            self.rows.push(row());
        }
    }

    pub(super) fn lease_changed(&mut self, name: &LockName, claim: ClaimDigest) {
        self.changed(|| Row::Lease(ClaimKey::new(name, claim)));
    }

    pub(super) fn ticket_changed(&mut self, name: &LockName, claim: ClaimDigest) {
        self.changed(|| Row::Ticket(ClaimKey::new(name, claim)));
    }

    pub(super) fn cooldown_changed(&mut self, name: &LockName, until: StoreTime, fence: Fence) {
        self.changed(|| Row::Cooldown(name.clone(), until, fence));
    }

    pub(super) fn last_expired_changed(&mut self, name: &LockName) {
        self.changed(|| Row::LastExpired(name.clone()));
    }

    pub(super) fn reserved(&mut self, name: &LockName) {
        self.notifications
            .push(Notification::Reserved(name.clone()));
    }

    pub(super) fn evicted(&mut self, name: &LockName) {
        self.notifications.push(Notification::Evicted(name.clone()));
    }

    /// A request released a claim that waits.
    pub(super) fn dequeued(&mut self, key: &ClaimKey) {
        self.notifications.push(Notification::Dequeued(key.clone()));
    }

    /// A request released a lease that a stream may hold.
    pub(super) fn released(&mut self, key: &ClaimKey) {
        self.notifications.push(Notification::Released(key.clone()));
    }

    pub(super) fn event(
        &mut self,
        kind: EventKind,
        name: &LockName,
        record: &LeaseRecord,
        now: StoreTime,
    ) {
        let (at, continues) = match kind {
            EventKind::Acquired | EventKind::Renewed => (now, true),
            // The expiry may have been noticed late.
            EventKind::Expired => (record.until, false),
            EventKind::Released | EventKind::Evicted | EventKind::Queued => (now, false),
        };
        self.push(now, |id| LockEvent {
            id,
            kind,
            name: name.clone(),
            at: at.timestamp(),
            fence: Some(record.fence),
            expires_at: continues.then(|| record.until.timestamp()),
            owner: record.owner(),
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
            self.last_event_id = now.unix_us().max(self.last_event_id + 1);
            let event = event(self.last_event_id.to_string());
            self.notifications.push(Notification::Event(event));
        }
    }
}
