//! Authorization, decided only here: a key, a token or a client certificate belongs to a principal, and the rights of a
//! principal permit verbs on locks. Without keys, only requests that a browser sent for another site are refused. The
//! configuration provides the keys.
//!
//! The key, and whether its principal sends too many requests, are checked before the body of a request is read. The
//! rights of the principal are checked as soon as the names of the locks are known, before the store is asked.

mod browsers;
mod failures;
mod keys;
mod lasting;
mod quota;
mod tokens;

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::http::header::AUTHORIZATION;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_util::future::{BoxFuture, Either, FutureExt as _, Ready, ready};
use tokio::time::Instant;

use super::app::App;
use super::locks::lock_name;
use super::problem::{AccessRefusal, Problem};
use super::requester::Requester;
use super::routes::Route;
use crate::config::{CertificateName, KeyHash};
use crate::domain::{LockName, NamePrefixes, Owner, Verb};
use crate::limits::Limit;
pub use browsers::KnownHosts;
pub(super) use browsers::ServedAddress;
pub use failures::Failures;
pub(super) use keys::Principal;
pub use keys::{KeyRing, Role};
pub(super) use quota::RateLimit;
pub(super) use tokens::TokenFault;
pub use tokens::{IssuerKeys, KeysState, TokenVerifier};

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

    /// Refuses cross-site requests on a service without keys, and requests with different keys on one with keys: a
    /// proxy in front may check another one. The key itself is checked later, by the routes that need one.
    pub(super) fn screen(
        &self,
        address: ServedAddress,
        request: &Request,
        route: Option<Route>,
    ) -> Result<(), Problem> {
        match self {
            Self::Open(hosts) => browsers::screen((hosts, address), request, route),
            Self::Keys(..) => {
                let mut keys = request.headers().get_all(AUTHORIZATION).iter();
                let first = keys.next();
                if keys.all(|key| Some(key) == first) {
                    return Ok(());
                }
                let problem = "two different keys are given; send one";
                Err(Problem::field("authorization", problem))
            }
        }
    }

    /// The keys of the issuer of tokens; `None` if no tokens are accepted.
    #[must_use]
    pub fn issuer_keys(&self) -> Option<&IssuerKeys> {
        match self {
            Self::Open(_) => None,
            Self::Keys(keys, _) => keys.tokens().map(TokenVerifier::keys),
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

/// Says what the sender may not do. `locks` are those that it asked for, so it learns nothing about other rules.
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
///
/// The answer is there at once, except for a token with a key that is just being read.
pub(super) fn admit(app: &App, request: Request) -> Admitted {
    let Access::Keys(keys, failures) = &app.settings().access else {
        return Either::Left(ready(app.count_of_anybody(request)));
    };
    let arrived = Instant::now();
    let found = sender(keys, failures, &request);
    let refreshed = match &found {
        Err(Unknown::Token(TokenFault::UnknownKey | TokenFault::NoKeys)) => {
            keys.tokens().and_then(TokenVerifier::refreshed)
        }
        Ok(_) | Err(_) => None,
    };
    let Some(refreshed) = refreshed else {
        return Either::Left(ready(decide(
            app,
            (keys, failures),
            request,
            found,
            arrived,
        )));
    };
    let (app, keys, failures) = (app.clone(), keys.clone(), failures.clone());
    let decided = async move {
        refreshed.await;
        let found = sender(&keys, &failures, &request);
        decide(&app, (&keys, &failures), request, found, arrived)
    };
    Either::Right(decided.boxed())
}

/// The request, or why it is refused.
pub(super) type Admitted =
    Either<Ready<Result<Request, Problem>>, BoxFuture<'static, Result<Request, Problem>>>;

fn decide(
    app: &App,
    (keys, failures): (&KeyRing, &Failures),
    request: Request,
    sender: Result<Principal, Unknown>,
    arrived: Instant,
) -> Result<Request, Problem> {
    let problem = match sender {
        Ok(principal) => return let_in(app, keys, request, principal),
        Err(Unknown::TooMany(retry_after)) => return Err(Problem::tokens_limited(retry_after)),
        Err(Unknown::Token(fault)) => {
            if fault == TokenFault::TooLong {
                app.refusals().count(Limit::TokenSize);
            }
            let problem = Problem::token_refused(fault);
            // Without current keys of the issuer, the client is not at fault.
            match (fault, unread_since(keys, arrived)) {
                (TokenFault::NoKeys, _) => return Err(problem),
                // It counts as a failure nevertheless: each request with an invented key waits for the issuer.
                (TokenFault::UnknownKey, Some(left)) => Problem::key_not_read_yet(left),
                (_, _) => problem,
            }
        }
        Err(Unknown::Other(detail)) => Problem::unauthorized(detail),
    };
    Err(failures.refuse(&Requester::of(request), problem))
}

/// When the keys of the issuer may be read again, if they were not since `arrived`.
fn unread_since(keys: &KeyRing, arrived: Instant) -> Option<Duration> {
    keys.tokens()?.keys().unread_since(arrived)
}

/// Why the sender is unknown.
enum Unknown {
    Token(TokenFault),
    Other(&'static str),
    /// Its signature is not even verified.
    TooMany(Duration),
}

/// The principal of the key, the token or the certificate of a request.
fn sender(keys: &KeyRing, failures: &Failures, request: &Request) -> Result<Principal, Unknown> {
    let Some(value) = request.headers().get(AUTHORIZATION) else {
        let Some(names) = certificate(request) else {
            let detail = "this needs an API key; send it as \"Authorization: Bearer <key>\"";
            return Err(Unknown::Other(detail));
        };
        let principal = keys.principal_of_certificate(names);
        return principal.ok_or(Unknown::Other(
            "no principal has a name of this client certificate, or several have; send an API key as \"Authorization: \
             Bearer <key>\"",
        ));
    };
    let presented = presented(value.as_bytes(), request.uri().path());
    let Some(presented) = presented else {
        let detail = "this needs an API key; send it as \"Authorization: Bearer <key>\"";
        return Err(Unknown::Other(detail));
    };
    if let Some(principal) = keys.principal_of(&presented) {
        return Ok(principal);
    }
    let Some(tokens) = keys.tokens().filter(|_| tokens::is_token(&presented)) else {
        return Err(Unknown::Other("the API key is not valid"));
    };
    tokens.check_length(&presented).map_err(Unknown::Token)?;
    let hash = KeyHash::of(&presented);
    let token = match tokens.known(&hash) {
        Some(token) => token,
        None => {
            // A signature costs far more to verify than to send. So the new tokens of addresses that have failed too often
            // are verified at a bounded rate; a token that was verified before is always answered, like a key.
            if failures.are_too_many(request) {
                tokens.take_check().map_err(Unknown::TooMany)?;
            }
            let verified = tokens.verify(&presented, hash);
            verified.map_err(|fault| match (fault, failures.over_in(request)) {
                // It does not wait for the issuer, but the keys are read for others at its address.
                (TokenFault::UnknownKey | TokenFault::NoKeys, Some(over_in)) => {
                    drop(tokens.refreshed());
                    Unknown::TooMany(over_in)
                }
                (_, _) => Unknown::Token(fault),
            })?
        }
    };
    let principal = keys.principal_of_token(token);
    principal.ok_or(Unknown::Token(TokenFault::Subject))
}

/// Lets a request of this principal in, if it may do anything at all with the method of the request.
fn let_in(
    app: &App,
    keys: &KeyRing,
    mut request: Request,
    principal: Principal,
) -> Result<Request, Problem> {
    if !request.headers().contains_key(AUTHORIZATION) {
        browsers::screen_certificate(&request)?;
    }
    let rate_limit = app.count_request(Some(&principal), &request)?;
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let may = |verb| principal.rights().permit_somewhere(verb);
    let is_refused = !is_read && !may(Verb::Acquire) && !may(Verb::Evict);
    let refused = is_refused.then(|| asked(&request));
    let problem = refused
        .as_ref()
        .map(|(verb, _)| refusal(keys, &principal, *verb, ""));
    if let Some(requester) = request.extensions_mut().get_mut::<Requester>() {
        requester.principal = Some(principal);
        requester.rate_limit = rate_limit;
        if let Some((verb, name)) = refused {
            app.audit_refusal(requester, verb, name.as_ref());
        }
    }
    problem.map_or(Ok(request), Err)
}

/// What a request that changes something is for, and the lock in its path: as far as its head says, because the body of a
/// sender that may change nothing is not read.
fn asked(request: &Request) -> (Verb, Option<LockName>) {
    let mut fields = request.uri().query().unwrap_or_default().split('&');
    let evicts = request.method() == Method::DELETE && fields.any(|field| field == "force=true");
    let verb = if evicts { Verb::Evict } else { Verb::Acquire };
    (verb, lock_name(request.uri().path()).ok())
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
