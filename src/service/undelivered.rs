//! A grant on its way to the client that asked for it.

use super::acquire::Request;

/// Holds on to a new grant until it is delivered. Dropped before, it gives the grant back.
///
/// Only grants made by this very request are given back: a replay or a re-entry belongs to a claim that somebody has
/// been told of before.
#[derive(Debug)]
pub struct Undelivered {
    grant: Option<Box<Request>>,
}

impl Undelivered {
    /// There is nothing to deliver that could be lost.
    pub(super) fn nothing() -> Self {
        Self { grant: None }
    }

    /// What this request was granted.
    pub(super) fn grant(request: &Request) -> Self {
        Self {
            grant: Some(Box::new(request.clone())),
        }
    }

    /// The answer is on its way: the grant is the client's now.
    pub fn delivered(mut self) {
        self.grant = None;
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(request) = self.grant.take() {
            let Request {
                inner,
                claim,
                attempt,
                slot,
                ..
            } = *request;
            inner.metrics.undelivered();
            inner.withdraw_in_background(claim, attempt, slot);
        }
    }
}
