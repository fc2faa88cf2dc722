//! What a store reports of its own accord, to the service or to the store that has it as a node.

use std::fmt;

use crate::domain::{ClaimDigest, LockEvent, LockName};

/// Receives a store's notifications. Called in the middle of the store's own work, so implementations must not wait or
/// call the store.
pub trait Listener: Send + Sync + fmt::Debug {
    /// The lock is reserved for the first of this process's waiters.
    fn reserved(&self, name: &LockName);

    /// Another request took a claim that waits at this process out of the lock's queue. A request that waits for the
    /// claim here should poll: the claim waits or holds elsewhere now, or has ended.
    fn dequeued(&self, name: &LockName, claim: ClaimDigest);

    /// Some process evicted the lock's holders. Those that hold leases for clients should check what is left of them.
    fn evicted(&self, name: &LockName);

    /// A request on some process released a lease of this claim that a stream may hold. The stream should check what is
    /// left of it.
    fn released(&self, name: &LockName, claim: ClaimDigest);

    /// Something happened to a lock.
    fn event(&self, event: LockEvent);

    /// Reservation messages may have been lost.
    fn messages_lost(&self);

    /// Events may have been lost while this process wanted them. All events from now on are delivered.
    fn events_lost(&self);

    /// Events may be missing from now on, until [`Self::events_lost`]. Who receives the same events from several stores
    /// learns from this that the others are left alone.
    fn events_interrupted(&self) {}
}
