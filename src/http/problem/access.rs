//! Refusals because of the sender of a request or its request rate. `auth` decides who the sender is.

use std::borrow::Cow;
use std::time::Duration;

use super::body::ProblemOutcome;
use super::{Code, Problem};

/// The reason to refuse a request because of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum AccessRefusal {
    /// The request has no valid key.
    Unauthorized,
    /// Its peer sent too many requests without a valid key.
    RateLimited,
    /// The role of its key does not allow the operation.
    Role,
    /// No rule of its principal permits the operation on these locks.
    Rule,
    /// A browser sent it for a page of another site.
    CrossSite,
    /// It is for an unknown host name.
    UnknownHost,
}

impl AccessRefusal {
    /// Every reason, in the order of the variants.
    pub(in crate::http) const ALL: [Self; 6] = [
        Self::Unauthorized,
        Self::RateLimited,
        Self::Role,
        Self::Rule,
        Self::CrossSite,
        Self::UnknownHost,
    ];

    /// The label in the metrics.
    pub(in crate::http) fn label(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::RateLimited => "rate_limited",
            Self::Role => "role",
            Self::Rule => "rule",
            Self::CrossSite => "cross_site",
            Self::UnknownHost => "unknown_host",
        }
    }
}

impl Problem {
    /// The request has no valid key.
    pub(in crate::http) fn unauthorized(detail: &'static str) -> Self {
        Self::new(Code::Unauthorized, detail).refused_for(AccessRefusal::Unauthorized)
    }

    /// The peer sent too many requests without a valid key.
    pub(in crate::http) fn rate_limited(retry_after: Duration) -> Self {
        let detail = "too many requests without a valid API key came from this address; requests with a valid key are not limited";
        let mut refusal = Self::new(Code::RateLimited, detail);
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        refusal
            .refused_for(AccessRefusal::RateLimited)
            .retry_after(retry_after)
    }

    /// The sender may not do this.
    pub(in crate::http) fn forbidden(
        reason: AccessRefusal,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(Code::Forbidden, detail).refused_for(reason)
    }

    /// The reason, if it was refused because of its sender.
    pub(in crate::http) fn access_refusal(&self) -> Option<AccessRefusal> {
        self.0.access_refusal
    }

    fn refused_for(mut self, reason: AccessRefusal) -> Self {
        self.0.access_refusal = Some(reason);
        self
    }
}
