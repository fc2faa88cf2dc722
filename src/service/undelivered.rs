//! A grant on its way to the client that asked for it.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use crate::domain::{Attempt, Claim};

/// Holds on to a new grant until it is delivered. Dropped before, it gives the grant back.
///
/// Only what this very request was granted or took over is given back: any other replay or re-entry belongs to a claim that
/// somebody has been told of before.
#[derive(Debug)]
pub struct Undelivered {
    grant: Option<(Arc<Inner>, Arc<Claim>, Attempt, Duration)>,
}

impl Undelivered {
    /// There is nothing to deliver that could be lost.
    pub(super) fn nothing() -> Self {
        Self { grant: None }
    }

    /// What this attempt was granted or took over, which lasts for `ttl`.
    pub(super) fn grant(
        inner: &Arc<Inner>,
        claim: &Arc<Claim>,
        attempt: Attempt,
        ttl: Duration,
    ) -> Self {
        Self {
            grant: Some((Arc::clone(inner), Arc::clone(claim), attempt, ttl)),
        }
    }

    /// The answer is on its way: the grant is the client's now.
    pub fn delivered(mut self) {
        self.grant = None;
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some((inner, claim, attempt, ttl)) = self.grant.take() {
            inner.metrics.undelivered();
            inner.withdraw_in_background(claim, attempt, ttl);
        }
    }
}
