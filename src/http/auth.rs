//! Authorization, decided only here: a key has a role, and a role allows actions. Without keys, only requests that a
//! browser sent for another site are refused. The configuration provides the keys.
//!
//! Rules per lock name, or other proofs of identity than keys, would become members of [`Principal`].

mod browsers;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::Request;
use axum::http::Method;
use axum::http::header::AUTHORIZATION;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::app::App;
use super::peers::PeerCounts;
use super::problem::{AccessRefusal, Problem};
use super::requester::Requester;
use super::routes::Route;
use crate::config::API_KEY_CHARS_MAX;
pub use browsers::KnownHosts;

/// Who may call.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every client that can reach the address may do everything, except through another site's page in a browser.
    Open(KnownHosts),
    /// A client may do what the role of its key allows. Browsers never add a key by themselves, so pages of other sites
    /// need no further check.
    Keys(KeyRing, Failures),
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Read locks, events and metrics.
    Read,
    /// Acquire, renew and release.
    Change,
    /// Take a lock away from its holders.
    Evict,
}

/// The authenticated sender of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Principal {
    role: Role,
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

    /// Checks that the sender may evict, and returns its role. A separate check, because only the fields of a request
    /// show that it is an eviction.
    pub(super) fn permit_eviction(&self, requester: &Requester) -> Result<Option<Role>, Problem> {
        let Self::Keys(keys, _) = self else {
            return Ok(None);
        };
        match requester.principal {
            Some(principal) if principal.may(Action::Evict) => Ok(Some(principal.role)),
            _ if keys.has(Role::Admin) => Err(Problem::forbidden(
                AccessRefusal::Role,
                "taking a lock away from its holders needs the admin_key",
            )),
            _ => Err(Problem::forbidden(
                AccessRefusal::Role,
                "taking a lock away from its holders needs an admin key, and this service has none; configure admin_key_file \
                 (LEASEHOLD_ADMIN_KEY_FILE) or admin_key (LEASEHOLD_ADMIN_KEY)",
            )),
        }
    }
}

impl Principal {
    /// Roles are ordered: each may do everything that the lower ones may.
    fn may(self, action: Action) -> bool {
        let needed = match action {
            Action::Read => Role::Reader,
            Action::Change => Role::Client,
            Action::Evict => Role::Admin,
        };
        self.role >= needed
    }
}

impl Action {
    fn of(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD => Self::Read,
            _ => Self::Change,
        }
    }
}

/// Admits a request if its key allows its method, and adds the [`Principal`] to its requester.
pub(super) fn admit(app: &App, mut request: Request) -> Result<Request, Problem> {
    let Access::Keys(keys, failures) = &app.settings().access else {
        return Ok(request);
    };
    let value = request.headers().get(AUTHORIZATION);
    let presented = value.and_then(|value| presented(value.as_bytes(), request.uri().path()));
    let role = presented.as_deref().and_then(|key| keys.role_of(key));
    let Some(role) = role else {
        let detail = match presented {
            Some(_) => "the API key is not valid",
            None => "this needs an API key; send it as \"Authorization: Bearer <key>\"",
        };
        return Err(failures.refuse(&Requester::of(request), detail));
    };
    let principal = Principal { role };
    if !principal.may(Action::of(request.method())) {
        let detail = "this key may only read; acquiring, renewing and releasing need the api_key";
        return Err(Problem::forbidden(AccessRefusal::Role, detail));
    }
    if let Some(requester) = request.extensions_mut().get_mut::<Requester>() {
        requester.principal = Some(principal);
    }
    Ok(request)
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

/// What a key allows. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read locks, events and metrics.
    Reader,
    /// Acquire, renew and release.
    Client,
    /// Take locks away from their holders.
    Admin,
}

impl Role {
    /// The role in the log.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Client => "client",
            Self::Admin => "admin",
        }
    }
}

/// The valid keys. Clones share them.
#[derive(Clone)]
pub struct KeyRing(Arc<RwLock<Vec<KeyDigest>>>);

/// One key, of which only the SHA-256 is kept.
struct KeyDigest {
    role: Role,
    digest: [u8; 32],
}

impl KeyRing {
    /// Creates a ring with these keys.
    #[must_use]
    pub fn new<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = (Role, K)>) -> Self {
        Self(Arc::new(RwLock::new(digests(keys))))
    }

    /// Replaces all keys by these.
    pub fn replace<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = (Role, K)>) {
        let keys = digests(keys);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The role of a key, if it is valid. Compares all digests in constant time, so that response times reveal nothing
    /// about any key, not even its length.
    fn role_of(&self, presented: &[u8]) -> Option<Role> {
        // No key is this long, and hashing longer input would let any client cause work.
        if presented.len() > API_KEY_CHARS_MAX {
            return None;
        }
        let presented: [u8; 32] = Sha256::digest(presented).into();
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for key in keys.iter() {
            if bool::from(key.digest.ct_eq(&presented)) {
                found = Some(key.role);
            }
        }
        found
    }

    /// Whether any key has this role.
    fn has(&self, role: Role) -> bool {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().any(|key| key.role == role)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn digests<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = (Role, K)>) -> Vec<KeyDigest> {
    let keys = keys.into_iter().map(|(role, key)| KeyDigest {
        role,
        digest: Sha256::digest(key).into(),
    });
    keys.collect()
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
