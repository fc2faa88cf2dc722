//! How often each address has failed to authenticate, and how it is limited for that.

use std::time::Duration;

use axum::extract::Request;

use crate::http::peers::{Counted, PeerCounts};
use crate::http::problem::Problem;
use crate::http::requester::Requester;

/// The counts of failed authentications in this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Failures {
    per_minute_max: u32,
    counts: PeerCounts,
}

impl Failures {
    /// After `per_minute_max` failures of a peer in a minute, further ones get 429.
    #[must_use]
    pub fn new(per_minute_max: u32) -> Self {
        Self {
            per_minute_max,
            counts: PeerCounts::default(),
        }
    }

    /// Counts the failure and returns its problem, or that of too many. Trusted proxies are never limited, because they forward
    /// requests of many clients.
    pub(super) fn refuse(&self, requester: &Requester, problem: Problem) -> Problem {
        let counted = self.counts.count(requester.network());
        if requester.is_trusted_proxy() || counted.count <= self.per_minute_max {
            problem
        } else {
            Problem::rate_limited(counted.over_in)
        }
    }

    /// Whether the sender has failed too often, be it a trusted proxy or not.
    pub(super) fn are_too_many(&self, request: &Request) -> bool {
        self.too_many_of(request).is_some()
    }

    /// When a sender that has failed too often is no longer limited; `None` if it is not, as a trusted proxy never is.
    pub(super) fn over_in(&self, request: &Request) -> Option<Duration> {
        let requester = request.extensions().get::<Requester>()?;
        let is_limited = !requester.is_trusted_proxy();
        let counted = self.too_many_of(request).filter(|_| is_limited)?;
        Some(counted.over_in)
    }

    fn too_many_of(&self, request: &Request) -> Option<Counted> {
        let requester = request.extensions().get::<Requester>()?;
        let counted = self.counts.current(requester.network())?;
        (counted.count > self.per_minute_max).then_some(counted)
    }
}
