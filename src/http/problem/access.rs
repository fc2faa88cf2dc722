//! Refusals because of the sender of a request, its request rate or its quota. `auth` decides who the sender is.

use std::borrow::Cow;
use std::time::Duration;

use super::body::ProblemOutcome;
use super::{Code, Problem};
use crate::domain::LockName;
use crate::http::auth::{RateLimit, TokenFault};
use crate::limits::BucketEmpty;

/// The quota of requests, as the keys file names it.
const REQUESTS_QUOTA: &str = "requests_per_second";

/// The same of all clients, as the configuration names it.
const REQUESTS_OF_ALL: &str = "server.requests_per_second";

/// When to retry if the keys of the issuer are not known.
const RETRY_ISSUER: Duration = Duration::from_secs(5);

/// The reason to refuse a request because of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum AccessRefusal {
    /// The request has no valid key.
    Unauthorized,
    /// Its token is not valid.
    InvalidToken,
    /// Its token cannot be verified without the keys of the issuer.
    IssuerUnavailable,
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
    pub(in crate::http) const ALL: [Self; 8] = [
        Self::Unauthorized,
        Self::InvalidToken,
        Self::IssuerUnavailable,
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
            Self::InvalidToken => "invalid_token",
            Self::IssuerUnavailable => "issuer_unavailable",
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

    /// The token of the request is refused.
    pub(in crate::http) fn token_refused(fault: TokenFault) -> Self {
        if fault == TokenFault::NoKeys {
            return Self::issuer_unavailable(fault.detail(), RETRY_ISSUER);
        }
        Self::invalid_token(fault.detail())
    }

    /// The token refers to a key that is not known, and its issuer may have it since the keys were read.
    pub(in crate::http) fn key_not_read_yet(retry_after: Duration) -> Self {
        let detail = "the token refers to a key that this service does not know, and the keys of the issuer have not been read since";
        Self::issuer_unavailable(detail, retry_after)
    }

    fn issuer_unavailable(detail: &'static str, retry_after: Duration) -> Self {
        let mut refusal = Self::new(Code::IssuerUnavailable, detail);
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        // No failure of the service, of which each has a line in the log: anybody can send what looks like a token.
        refusal
            .refused_for(AccessRefusal::IssuerUnavailable)
            .retry_after(retry_after)
    }

    /// The token of the request is not valid, or no longer.
    pub(in crate::http) fn invalid_token(detail: &'static str) -> Self {
        Self::new(Code::Unauthorized, detail).refused_for(AccessRefusal::InvalidToken)
    }

    /// How to authenticate, for a request that did not (RFC 6750, 3.1): with an error only if there was a token.
    pub(super) fn challenge(&self) -> &'static str {
        match self.0.access_refusal == Some(AccessRefusal::InvalidToken) {
            true => "Bearer error=\"invalid_token\"",
            false => "Bearer",
        }
    }

    /// The peer sent too many requests without a valid key.
    pub(in crate::http) fn rate_limited(retry_after: Duration) -> Self {
        let detail = "too many requests without a valid API key came from this address; requests with a valid key are not limited";
        Self::limited_for_failures(detail, retry_after)
    }

    /// The address sent too many requests without a valid key, and too many new tokens of such addresses are verified already.
    pub(in crate::http) fn tokens_limited(retry_after: Duration) -> Self {
        let detail = "too many requests without a valid API key came from this address, so only some of its new tokens are verified in \
                      each second; this one was not";
        Self::limited_for_failures(detail, retry_after)
    }

    fn limited_for_failures(detail: &'static str, retry_after: Duration) -> Self {
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

    /// The principal sends more requests than its quota permits.
    pub(in crate::http) fn too_many_requests(principal: &str, empty: BucketEmpty) -> Self {
        let detail = format!(
            "the principal {principal} has used up its requests: {} at once, and {} per second on this process; renewals and \
             releases do not count",
            empty.rate.burst, empty.rate.per_second
        );
        let mut refusal = Self::over_quota(REQUESTS_QUOTA, detail).retry_after(empty.retry_in);
        refusal.0.rate_limit = Some(RateLimit {
            of_principal: Some(empty.into()),
            of_all: None,
        });
        refusal
    }

    /// All clients together send more requests than this process is configured to answer. `left` is the rest of the quota of
    /// the principal.
    pub(in crate::http) fn too_many_requests_of_all(left: RateLimit, empty: BucketEmpty) -> Self {
        let detail = format!(
            "all clients together have used up the requests of this process: {} per second; renewals and releases do not count",
            empty.rate.per_second
        );
        let mut refusal = Self::over_quota(REQUESTS_OF_ALL, detail).retry_after(empty.retry_in);
        refusal.0.rate_limit = Some(RateLimit {
            of_all: Some(empty.into()),
            ..left
        });
        refusal
    }

    /// The quota of this name in the keys file, or in the configuration, is used up.
    pub(super) fn over_quota(quota: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        let mut refusal = Self::new(Code::QuotaExceeded, detail);
        refusal.0.extras.quota = Some(quota);
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        refusal
    }

    /// The name of a lock is longer than the principal may use.
    pub(in crate::http) fn name_over_quota(
        principal: &str,
        name: &LockName,
        bytes_max: usize,
    ) -> Self {
        let detail = format!(
            "{name} has {} bytes; the principal {principal} may use names of at most {bytes_max}",
            name.as_str().len()
        );
        Self::new(Code::InvalidName, detail)
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
