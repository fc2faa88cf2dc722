//! Observes the grant and the release of a lock by a stream, as they happen. The client may read less of the stream.

use std::time::Duration;

use super::background::UnclaimedLease;
use crate::domain::{Fence, Granted, Lease};

/// Is told of the grant and the release of the lock of a stream.
pub trait HoldObserver: Send + Sync + 'static {
    /// The claim was newly granted. Its client may be gone already, and then the grant is rolled back.
    fn granted(&self, granted: &Granted, unclaimed: UnclaimedLease) -> UnclaimedLease;

    /// The store has released the lease because the stream has closed.
    fn released(&self, fence: Fence);
}

impl HoldObserver for () {
    fn granted(&self, _: &Granted, unclaimed: UnclaimedLease) -> UnclaimedLease {
        unclaimed
    }

    fn released(&self, _: Fence) {}
}

/// The lease that a stream has reported last.
#[derive(Clone, Copy)]
pub(super) struct StreamLease {
    pub(super) ttl: Duration,
    pub(super) fence: Fence,
}

impl From<&Lease> for StreamLease {
    fn from(lease: &Lease) -> Self {
        Self {
            ttl: lease.ttl.get(),
            fence: lease.holder.fence,
        }
    }
}
