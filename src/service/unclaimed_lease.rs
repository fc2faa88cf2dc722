//! A grant on its way to the client that asked for it.

use std::time::Duration;

use super::acquire::Request;

/// Holds on to a new grant until it is delivered. Dropped before, it gives the grant back.
///
/// Only what this very request was granted or took over is given back: any other replay or re-entry belongs to a claim that
/// somebody has been told of before.
#[derive(Debug)]
pub struct UnclaimedLease {
    grant: Option<Box<(Request, Duration)>>,
}

impl UnclaimedLease {
    /// There is nothing to deliver that could be lost.
    pub(super) fn nothing() -> Self {
        Self { grant: None }
    }

    /// What this request was granted or took over, which lasts for `ttl`.
    pub(super) fn grant(request: &Request, ttl: Duration) -> Self {
        Self {
            grant: Some(Box::new((request.clone(), ttl))),
        }
    }

    /// The answer is on its way: the grant is the client's now.
    pub fn delivered(mut self) {
        self.grant = None;
    }
}

impl Drop for UnclaimedLease {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            let (request, ttl) = *grant;
            request.inner.metrics.undelivered();
            request.withdraw_in_background(ttl);
        }
    }
}
