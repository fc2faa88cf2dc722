//! The guard of a grant that is not delivered yet.

use std::time::Duration;

use super::acquire::Request;

/// Guards a new grant until it is delivered. Dropped before that, it rolls the grant back.
///
/// It rolls back only what this request was granted or took over: any other replay or re-entry belongs to a grant that
/// was delivered before.
#[derive(Debug)]
pub struct UnclaimedLease {
    grant: Option<Box<(Request, Duration)>>,
}

impl UnclaimedLease {
    /// Guards nothing.
    pub(super) fn nothing() -> Self {
        Self { grant: None }
    }

    /// Guards what this request was granted or took over, which lasts for `ttl`.
    pub(super) fn grant(request: &Request, ttl: Duration) -> Self {
        Self {
            grant: Some(Box::new((request.clone(), ttl))),
        }
    }

    /// The response is on its way: the grant is final.
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
