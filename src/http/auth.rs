//! Authorization, decided only here: a key has a role, and a role allows actions. Without keys, only requests that a
//! browser sent for another site are refused. The configuration provides the keys.
//!
//! Rules per lock name, or other proofs of identity than keys, would become members of [`Principal`].

mod browsers;
mod keys;

use axum::extract::Request;
use axum::http::Method;
use axum::http::header::AUTHORIZATION;

use super::app::App;
use super::problem::{AccessRefusal, Problem};
use super::requester::Requester;
use super::routes::Route;
pub use browsers::KnownHosts;
pub use keys::{Failures, KeyRing, Role};

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
    let presented = request.headers().get(AUTHORIZATION);
    let presented = presented.and_then(|value| bearer(value.as_bytes()));
    let Some(role) = presented.and_then(|key| keys.role_of(key)) else {
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

/// The key after the scheme `Bearer`, which is case-insensitive (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then_some(key.trim_ascii())
}
