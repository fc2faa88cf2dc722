//! The primitives by which threads share state, in the parts of the service whose interleavings are explored: the gates of
//! [`limits`](crate::limits), the waiters of the service, the journal of the file store, and the turns at the nodes of a
//! quorum.
//!
//! Other parts that threads share have nothing to explore: the counts of leases, the reports of the nodes of a quorum and
//! the names of its attempts are one mutex each, and nobody waits for a change of them.
//!
//! They are those of the standard library and of tokio. In unit tests they are the same with a point before each use at
//! which another thread may go on, so that a test can run in many orders of its threads (`explored`).

#[cfg(test)]
pub(crate) mod explored;

#[cfg(test)]
pub(crate) use explored::{Mutex, MutexGuard, Notify, Semaphore};
#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(test))]
pub(crate) use tokio::sync::{Notify, Semaphore};
