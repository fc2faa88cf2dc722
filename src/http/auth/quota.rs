//! The quotas of principals, enforced. A request is counted before its body is read, so a refusal costs little. Renewals
//! and releases are never refused here: a client that cannot send them loses a lock, or blocks it for others. They have
//! limits of their own, in [`admission`](crate::http::admission).
//!
//! Requests and waiters are counted by each process for itself, so a principal that uses three processes may have three
//! times as many. Locks that are held are counted by the store, for all processes: the service asks it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::Response;

use super::Principal;
use crate::config::Quota;
use crate::domain::{Bounds, Claim, InvalidField, LeaseQuota, LeasesOf, Metadata, Ttl};
use crate::http::app::App;
use crate::http::problem::Problem;
use crate::http::requester::Requester;
use crate::http::routes::Route;
use crate::limits::{BucketLevel, Budget, LeaseCount, Limit, RequestBucket};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The quota of a principal, and how much of it is used. All its credentials share it. It outlives other changes of the
/// keys file: otherwise each change would fill the bucket.
#[derive(Debug, Default)]
pub(super) struct PrincipalQuota {
    quota: Quota,
    requests: Option<Arc<RequestBucket>>,
    places: Option<Budget>,
    leases: Option<LeaseCount>,
}

impl PrincipalQuota {
    fn new(principal: &str, quota: &Quota) -> Self {
        let leases = quota.locks_max.map(|leases_max| LeaseQuota {
            of: LeasesOf::Principal(principal.into()),
            leases_max,
        });
        Self {
            requests: quota.requests.map(RequestBucket::new).map(Arc::new),
            places: quota.waiters_max.map(Budget::new),
            leases: leases.map(LeaseCount::new),
            quota: quota.clone(),
        }
    }

    /// Whether both permit the same.
    pub(super) fn has_same_quota_as(&self, other: &Self) -> bool {
        self.quota == other.quota
    }

    /// `known`, if it is of the same quota, else a new one. Parts that are equal in both stay in use: a longer TTL
    /// fills no bucket.
    pub(super) fn of(principal: &str, quota: &Quota, known: Option<&Arc<Self>>) -> Arc<Self> {
        match known {
            Some(known) if known.quota == *quota => Arc::clone(known),
            Some(known) => Arc::new(Self::new(principal, quota).with_counts_of(known)),
            None => Arc::new(Self::new(principal, quota)),
        }
    }

    fn with_counts_of(mut self, known: &Self) -> Self {
        if self.quota.requests == known.quota.requests {
            self.requests.clone_from(&known.requests);
        }
        if self.quota.waiters_max == known.quota.waiters_max {
            self.places.clone_from(&known.places);
        }
        if self.quota.locks_max == known.quota.locks_max {
            self.leases.clone_from(&known.leases);
        }
        self
    }
}

impl App {
    /// Counts a request, in the quota of its principal and then in that of all clients. Returns what is left of them, if it
    /// counts in any.
    pub(super) fn count_request(
        &self,
        principal: Option<&Principal>,
        request: &Request,
    ) -> Result<Option<RateLimit>, Problem> {
        if !counts(request.method()) {
            return Ok(None);
        }
        let mut left = RateLimit::default();
        if let Some((principal, bucket)) =
            principal.and_then(|it| Some((it, it.quota().requests.as_ref()?)))
        {
            left.of_principal = Some(bucket.take().map_err(|empty| {
                self.refusals().count(Limit::RequestRatePerPrincipal);
                Problem::too_many_requests(principal.name(), empty)
            })?);
        }
        if let Some(bucket) = self.requests().filter(|_| !is_scrape(request)) {
            left.of_all = Some(bucket.take().map_err(|empty| {
                self.refusals().count(Limit::RequestRate);
                Problem::too_many_requests_of_all(left, empty)
            })?);
        }
        Ok((!left.is_unlimited()).then_some(left))
    }

    /// Counts a request on a service without keys.
    pub(super) fn count_of_anybody(&self, mut request: Request) -> Result<Request, Problem> {
        let rate_limit = self.count_request(None, &request)?;
        if let Some(requester) = request.extensions_mut().get_mut::<Requester>() {
            requester.rate_limit = rate_limit;
        }
        Ok(request)
    }

    /// The bounds of a claim of this sender.
    pub(in crate::http) fn bounds(&self, requester: &Requester) -> Cow<'_, Bounds> {
        let bounds = &self.settings().bounds;
        match requester.quota().and_then(|quota| quota.ttl_max) {
            Some(ttl_max) => Cow::Owned(bounds.with_ttl_at_most(ttl_max)),
            None => Cow::Borrowed(bounds),
        }
    }

    /// Checks the `ttl` of a renewal, and cuts it to the quota. It is not refused: the quota may have become smaller since
    /// the lease was granted, and a client that cannot renew loses its lock.
    pub(in crate::http) fn renewal_ttl(
        &self,
        requester: &Requester,
        ttl: Duration,
    ) -> Result<Ttl, InvalidField> {
        self.settings().bounds.ttl(ttl)?;
        let bounds = self.bounds(requester);
        bounds.ttl(ttl.min(bounds.ttl_max))
    }
}

impl Requester {
    fn quota(&self) -> Option<&Quota> {
        Some(&self.principal.as_ref()?.quota().quota)
    }

    /// The places in queues that its principal may have; `None` if they are not limited.
    pub(in crate::http) fn places(&self) -> Option<&Budget> {
        self.principal.as_ref()?.quota().places.as_ref()
    }

    /// The count of the leases of its principal; `None` if they are not limited.
    pub(in crate::http) fn leases(&self) -> Option<&LeaseCount> {
        self.principal.as_ref()?.quota().leases.as_ref()
    }

    /// Checks the length of what the store would keep for a claim of this sender, and that it may have so many locks.
    pub(in crate::http) fn permit_size(&self, claim: &Claim) -> Result<(), Problem> {
        let Some((principal, quota)) = self.principal.as_ref().zip(self.quota()) else {
            return Ok(());
        };
        if let Some(bytes_max) = quota.name_bytes_max {
            let mut names = claim.names.iter();
            if let Some(name) = names.find(|name| name.as_str().len() > bytes_max) {
                return Err(Problem::name_over_quota(principal.name(), name, bytes_max));
            }
        }
        if let Some(locks_max) = quota.locks_max.filter(|max| claim.names.len() > *max) {
            let problem = format!(
                "{} locks are too many; the principal {} may hold at most {locks_max}",
                claim.names.len(),
                principal.name()
            );
            return Err(Problem::field("names", problem));
        }
        let metadata = claim.metadata.as_ref().map_or("", Metadata::as_json);
        match quota.metadata_bytes_max {
            Some(bytes_max) if metadata.len() > bytes_max => Err(Problem::field(
                "metadata",
                format!(
                    "{} bytes are too many; the principal {} may send at most {bytes_max}",
                    metadata.len(),
                    principal.name()
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether a request with this method takes from the quota of requests: all but renewals and releases. An eviction is a
/// release by its method, and needs a right of its own.
fn counts(method: &Method) -> bool {
    let is_release = *method == Method::DELETE || method.as_str() == "UNLOCK";
    !is_release && *method != Method::PUT
}

/// Whether it reads the metrics. Clients that use up the requests of all must not hide that from monitoring; the page
/// has a bound of its own.
fn is_scrape(request: &Request) -> bool {
    Route::of(request.uri().path()) == Some(Route::Metrics)
}

/// What is left of the quotas of requests, passed from the check of the key to the headers of the response.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::http) struct RateLimit {
    pub(in crate::http) of_principal: Option<BucketLevel>,
    pub(in crate::http) of_all: Option<BucketLevel>,
}

impl RateLimit {
    /// That of a request whose key has been checked.
    pub(in crate::http) fn of(request: &Request) -> Option<Self> {
        request.extensions().get::<Requester>()?.rate_limit
    }

    fn is_unlimited(self) -> bool {
        self.of_principal.is_none() && self.of_all.is_none()
    }

    /// Adds itself to the response for the outermost layer.
    pub(in crate::http) fn attach_to(self, response: &mut Response) {
        response.extensions_mut().insert(self);
    }

    /// Adds the headers of draft-ietf-httpapi-ratelimit-headers-10: the policies that are in force, and what is left of
    /// each.
    pub(in crate::http) fn write(self, headers: &mut HeaderMap) {
        let levels = [("requests", self.of_principal), ("all", self.of_all)];
        let (mut policies, mut limits) = (Vec::new(), Vec::new());
        for (name, level) in levels {
            let Some(level) = level else {
                continue;
            };
            let (burst, per_second) = (level.rate.burst.get(), level.rate.per_second.get());
            let window_seconds = burst.div_ceil(per_second);
            let full_in = level.full_in();
            let full_in_seconds = full_in.as_secs() + u64::from(full_in.subsec_nanos() > 0);
            let remaining = level.remaining;
            policies.push(format!("\"{name}\";q={burst};w={window_seconds}"));
            limits.push(format!("\"{name}\";r={remaining};t={full_in_seconds}"));
        }
        for (name, values) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, limits)] {
            let value = HeaderValue::try_from(values.join(", ")).expect("it is printable ASCII");
            headers.insert(name, value);
        }
    }
}
