//! Rate limit for requests without a valid key. It never refuses a valid key, since many clients may share one address.

use crate::http::peers::PeerCounts;
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

    /// Counts the failure and returns the problem for it. Trusted proxies are never limited, because they forward
    /// requests of many clients.
    pub(super) fn refuse(&self, requester: &Requester, detail: &'static str) -> Problem {
        let counted = self.counts.count(requester.ip());
        if requester.is_trusted_proxy() || counted.count <= self.per_minute_max {
            Problem::unauthorized(detail)
        } else {
            Problem::rate_limited(counted.over_in)
        }
    }
}
