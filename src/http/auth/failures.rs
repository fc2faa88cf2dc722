//! Requests without a valid key: a peer that sends many is told to slow down. A valid key is never refused because of them,
//! since many clients may share one address.

use crate::http::layers::Requester;
use crate::http::peers::PeerCounts;
use crate::http::problem::Problem;

/// The failures of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Failures {
    per_minute_max: u32,
    counts: PeerCounts,
}

impl Failures {
    /// Answers 429 to failures of a peer beyond so many in a minute.
    #[must_use]
    pub fn new(per_minute_max: u32) -> Self {
        Self {
            per_minute_max,
            counts: PeerCounts::default(),
        }
    }

    /// Counts the failure and puts it into words. A trusted proxy sends those of many clients, none of which is to slow down
    /// because of another.
    pub(super) fn refuse(&self, requester: &Requester, detail: &'static str) -> Problem {
        let counted = self.counts.count(requester.ip());
        if requester.is_trusted_proxy() || counted.count <= self.per_minute_max {
            Problem::unauthorized(detail)
        } else {
            Problem::rate_limited(counted.over_in)
        }
    }
}
