//! The primitives by which threads share state, in the parts of the service whose interleavings are explored: the gates of
//! [`limits`](crate::limits), the waiters of the service, and the journal of the file store.
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
