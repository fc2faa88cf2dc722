//! What becomes of requests because of who sent them, or how often. Who that is was decided in `auth`.

use std::borrow::Cow;
use std::time::Duration;

use super::body::ProblemOutcome;
use super::{Code, Problem};

/// Why a request was refused because of who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum AccessRefusal {
    /// It had no valid key.
    Unauthorized,
    /// Its peer sent too many without a valid key.
    RateLimited,
    /// Its key does not allow what it wanted.
    Role,
    /// A page of another site made a browser send it.
    CrossSite,
    /// It was meant for a host that is not known here.
    UnknownHost,
}

impl AccessRefusal {
    /// Every reason, in the order of the variants.
    pub(in crate::http) const ALL: [Self; 5] = [
        Self::Unauthorized,
        Self::RateLimited,
        Self::Role,
        Self::CrossSite,
        Self::UnknownHost,
    ];

    /// Whether anybody can be refused so, key or no key, and as often as they like.
    pub(in crate::http) fn is_anybodys(self) -> bool {
        match self {
            Self::Unauthorized | Self::RateLimited | Self::CrossSite | Self::UnknownHost => true,
            Self::Role => false,
        }
    }

    /// The label in the metrics.
    pub(in crate::http) fn label(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::RateLimited => "rate_limited",
            Self::Role => "role",
            Self::CrossSite => "cross_site",
            Self::UnknownHost => "unknown_host",
        }
    }
}

impl Problem {
    /// There was no valid key.
    pub(in crate::http) fn unauthorized(detail: &'static str) -> Self {
        Self::new(Code::Unauthorized, detail).refused_for(AccessRefusal::Unauthorized)
    }

    /// There were too many requests without a valid key.
    pub(in crate::http) fn rate_limited(retry_after: Duration) -> Self {
        let detail = "too many requests without a valid API key came from this address; one with a valid key is still answered";
        let mut refusal = Self::new(Code::RateLimited, detail);
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        refusal
            .refused_for(AccessRefusal::RateLimited)
            .retry_after(retry_after)
    }

    /// Whoever it is may not do this.
    pub(in crate::http) fn forbidden(
        reason: AccessRefusal,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(Code::Forbidden, detail).refused_for(reason)
    }

    /// Why it was refused, if that is because of who sent it.
    pub(in crate::http) fn access_refusal(&self) -> Option<AccessRefusal> {
        self.0.access_refusal
    }

    fn refused_for(mut self, reason: AccessRefusal) -> Self {
        self.0.access_refusal = Some(reason);
        self
    }
}
