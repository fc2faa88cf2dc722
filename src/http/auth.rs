//! Authorization, decided only here: a key or a client certificate belongs to a principal, and the rights of a principal
//! permit verbs on locks.
//! Without keys, only requests that a browser sent for another site are refused. The configuration provides the keys.
//!
//! Whether a key is valid, and whether its principal sends too many requests, is checked before the body of a request is read; what its principal may do, as soon as the
//! names of the locks are known, and before the store is asked.

mod browsers;
mod keys;
mod lasting;
mod quota;

use std::borrow::Cow;

use axum::extract::Request;
use axum::http::Method;
use axum::http::header::AUTHORIZATION;
use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::app::App;
use super::peers::PeerCounts;
use super::problem::{AccessRefusal, Problem};
use super::requester::Requester;
use super::routes::Route;
use crate::config::CertificateName;
use crate::domain::{LockName, NamePrefixes, Owner, Verb};
pub use browsers::KnownHosts;
pub(super) use keys::Principal;
pub use keys::{KeyRing, Role};
pub(super) use quota::RateLimit;

/// Who may call.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every client that can reach the address may do everything, except through another site's page in a browser.
    Open(KnownHosts),
    /// A client may do what the principal of its key or its certificate may do. Browsers never add a key by themselves, so
    /// pages of other sites need no further check; a certificate they do add.
    Keys(KeyRing, Failures),
}

impl Access {
    /// Every client may do everything, under any host name.
    #[must_use]
    pub fn open() -> Self {
        Self::Open(KnownHosts::any())
    }

    /// Refuses cross-site requests on a service without keys. Keys are checked later, by the routes that need one.
    pub(super) fn screen(&self, request: &Request, route: Option<Route>) -> Result<(), Problem> {
        match self {
            Self::Open(hosts) => browsers::screen(hosts, request, route),
            Self::Keys(..) => Ok(()),
        }
    }

    /// Whether the keys are those of their files; `None` without keys.
    #[must_use]
    pub fn keys_are_current(&self) -> Option<bool> {
        match self {
            Self::Open(_) => None,
            Self::Keys(keys, _) => Some(!keys.is_outdated()),
        }
    }
}

impl App {
    /// Checks that the sender may do this with all of these locks.
    pub(super) fn permit(
        &self,
        requester: &Requester,
        verb: Verb,
        names: &[LockName],
    ) -> Result<(), Problem> {
        let Some((keys, principal)) = self.principal_of(requester)? else {
            return Ok(());
        };
        let rights = principal.rights();
        let Some(name) = names.iter().find(|name| !rights.permit(verb, name)) else {
            return Ok(());
        };
        self.audit_refusal(requester, verb, Some(name));
        Err(refusal(keys, principal, verb, &format!(" on {name}")))
    }

    /// The locks that a listing or a stream of events has to be limited to, for names that begin with this text; `None` if
    /// the sender may see all of them.
    pub(super) fn listed(
        &self,
        requester: &Requester,
        beginning: &str,
    ) -> Result<Option<NamePrefixes>, Problem> {
        let Some((keys, principal)) = self.principal_of(requester)? else {
            return Ok(None);
        };
        let rights = principal.rights();
        if rights.list_every_lock() {
            return Ok(None);
        }
        if rights.listed().cover_some(beginning) {
            return Ok(Some(rights.listed().clone()));
        }
        let locks = match beginning {
            "" => String::new(),
            _ => format!(" on names that begin with {beginning}"),
        };
        self.audit_refusal(requester, Verb::List, None);
        Err(refusal(keys, principal, Verb::List, &locks))
    }

    /// Checks that the sender may read the metrics.
    pub(super) fn permit_metrics(&self, requester: &Requester) -> Result<(), Problem> {
        match self.principal_of(requester)? {
            Some((keys, principal)) if !principal.rights().permit_everywhere(Verb::Metrics) => {
                self.audit_refusal(requester, Verb::Metrics, None);
                Err(refusal(keys, principal, Verb::Metrics, ""))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Who sent the request, with the keys; `None` on a service without keys, where everybody may do everything.
    fn principal_of<'a>(
        &'a self,
        requester: &'a Requester,
    ) -> Result<Option<(&'a KeyRing, &'a Principal)>, Problem> {
        match (&self.settings().access, &requester.principal) {
            (Access::Open(_), _) => Ok(None),
            (Access::Keys(keys, _), Some(principal)) => Ok(Some((keys, principal))),
            // A route that checks no key must not reach this.
            (Access::Keys(..), None) => Err(Problem::forbidden(
                AccessRefusal::Rule,
                "the sender of this request is not known",
            )),
        }
    }

    fn audit_refusal(&self, requester: &Requester, verb: Verb, name: Option<&LockName>) {
        if let Some(sender) = self.settings().audit.sender(requester) {
            sender.refused(verb, name);
        }
    }
}

impl Requester {
    /// The owner of a claim: what the client wrote, unless its principal may not choose.
    pub(super) fn owner(&self, written: Owner) -> Owner {
        let bound = self.principal.as_ref().and_then(Principal::owner);
        bound.map_or(written, Owner::clone)
    }
}

/// Says what the sender may not do. `locks` are those that it asked for: nothing is said about other rules.
fn refusal(keys: &KeyRing, principal: &Principal, verb: Verb, locks: &str) -> Problem {
    let Some(role) = principal.role() else {
        let (name, verb) = (principal.name(), verb.as_str());
        let detail = format!("the principal {name} has no rule with the verb {verb}{locks}");
        return Problem::forbidden(AccessRefusal::Rule, detail);
    };
    let detail = match verb {
        Verb::Evict if keys.has(Role::Admin) => {
            "taking a lock away from its holders needs the admin_key"
        }
        Verb::Evict => {
            "taking a lock away from its holders needs an admin key, and this service has none; configure admin_key_file \
             (LEASEHOLD_ADMIN_KEY_FILE) or admin_key (LEASEHOLD_ADMIN_KEY)"
        }
        Verb::Acquire => READS_ONLY,
        // Every role may read.
        Verb::Read | Verb::List | Verb::Metrics => role.label(),
    };
    Problem::forbidden(AccessRefusal::Role, detail)
}

const READS_ONLY: &str =
    "this key may only read; acquiring, renewing and releasing need the api_key";

/// Admits a request if its key is valid and its principal has not sent too many, and adds the [`Principal`] to its
/// requester. A key that changes nothing is refused here, before the body of a change is read.
pub(super) fn admit(app: &App, mut request: Request) -> Result<Request, Problem> {
    let Access::Keys(keys, failures) = &app.settings().access else {
        return Ok(request);
    };
    let value = request.headers().get(AUTHORIZATION);
    let presented = value.and_then(|value| presented(value.as_bytes(), request.uri().path()));
    let certificate = match value {
        Some(_) => None,
        None => certificate(&request),
    };
    let principal = match (&presented, certificate) {
        (Some(key), _) => keys.principal_of(key),
        (None, Some(names)) => keys.principal_of_certificate(names),
        (None, None) => None,
    };
    let Some(principal) = principal else {
        let detail = match (presented, certificate) {
            (Some(_), _) => "the API key is not valid",
            (None, Some(_)) => {
                "no principal has a name of this client certificate, or several have; send an API key as \"Authorization: \
                 Bearer <key>\""
            }
            (None, None) => "this needs an API key; send it as \"Authorization: Bearer <key>\"",
        };
        return Err(failures.refuse(&Requester::of(request), detail));
    };
    if certificate.is_some() {
        browsers::screen_certificate(&request)?;
    }
    let level = app.count_request(&principal, request.method())?;
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let may = |verb| principal.rights().permit_somewhere(verb);
    let is_refused = !is_read && !may(Verb::Acquire) && !may(Verb::Evict);
    let problem = is_refused.then(|| refusal(keys, &principal, Verb::Acquire, ""));
    if let Some(requester) = request.extensions_mut().get_mut::<Requester>() {
        requester.principal = Some(principal);
        requester.rate_limit = level.map(RateLimit);
        if is_refused {
            app.audit_refusal(requester, Verb::Acquire, None);
        }
    }
    problem.map_or(Ok(request), Err)
}

/// The names in the certificate of the client. They count only if the request has no `Authorization`: a client that sends a
/// key means the principal of the key, and must not become another one because the key is wrong.
fn certificate(request: &Request) -> Option<&[CertificateName]> {
    let requester = request.extensions().get::<Requester>()?;
    requester.peer.as_ref()?.certificate()
}

/// The key after the scheme, which is case-insensitive (RFC 9110, 11.1): with `Bearer` the key, with `Basic` a user and
/// the key as the password, for Terraform, which can send nothing else. Not for other routes, because browsers can be made
/// to send that by themselves.
fn presented<'a>(value: &'a [u8], path: &str) -> Option<Cow<'a, [u8]>> {
    let after = |scheme: &[u8]| {
        let (start, rest) = value.split_at_checked(scheme.len())?;
        start
            .eq_ignore_ascii_case(scheme)
            .then(|| rest.trim_ascii())
    };
    if let Some(key) = after(b"bearer ") {
        return Some(Cow::Borrowed(key));
    }
    let encoded = after(b"basic ").filter(|_| Route::of(path) == Some(Route::Terraform))?;
    let mut decoded = BASE64_STANDARD.decode(encoded).ok()?;
    let colon = decoded.iter().position(|&byte| byte == b':')?;
    Some(Cow::Owned(decoded.split_off(colon + 1)))
}

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
    fn refuse(&self, requester: &Requester, detail: &'static str) -> Problem {
        let counted = self.counts.count(requester.network());
        if requester.is_trusted_proxy() || counted.count <= self.per_minute_max {
            Problem::unauthorized(detail)
        } else {
            Problem::rate_limited(counted.over_in)
        }
    }
}
