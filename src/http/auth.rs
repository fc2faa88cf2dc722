//! Who may do what. This is the one place that decides it: a key has a role, a role allows actions, and without any key
//! only browsers are looked at. Where keys come from is the configuration's affair.
//!
//! Rules for some names only, and other proofs of identity than keys, would be members of [`Principal`].

mod browsers;
mod failures;
mod keys;

use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{Extensions, Method};

use super::app::App;
use super::layers::Requester;
use super::problem::{AccessRefusal, Problem};
use super::route::Route;
pub use browsers::KnownHosts;
pub use failures::Failures;
pub use keys::{KeyRing, Role};

/// Who may call.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everybody who reaches the address may do everything, but not by way of the browser of somebody else.
    Open(KnownHosts),
    /// Whoever presents a key may do what its role allows. No browser adds a key by itself, so that pages of other sites
    /// need no further check.
    Keys(KeyRing, Failures),
}

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Look at locks, events and metrics.
    Read,
    /// Acquire, renew and release.
    Change,
    /// Take a lock away from its holders.
    Evict,
}

/// Who sent a request, as far as it has proved it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Principal {
    role: Role,
}

impl Access {
    /// Everybody may do everything, under any host name.
    #[must_use]
    pub fn open() -> Self {
        Self::Open(KnownHosts::any())
    }

    /// Refuses what nobody without a key may send; keys are asked for later, by the routes that need one.
    pub(super) fn screen(&self, request: &Request, route: Option<Route>) -> Result<(), Problem> {
        match self {
            Self::Open(hosts) => browsers::screen(hosts, request, route),
            Self::Keys(..) => Ok(()),
        }
    }

    /// Whether the sender may evict, which only the fields of a request show that it wants to. Returns the sender's role.
    pub(super) fn permit_eviction(&self, extensions: &Extensions) -> Result<Option<Role>, Problem> {
        let Self::Keys(keys, _) = self else {
            return Ok(None);
        };
        match extensions.get::<Principal>() {
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
    /// Roles are steps: each may do what those below it may.
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

/// Lets a request pass whose key allows what its method does, and notes who sent it.
pub(super) fn admit(app: &App, mut request: Request) -> Result<Request, Problem> {
    let Access::Keys(keys, failures) = &app.settings().access else {
        return Ok(request);
    };
    let presented = request.headers().get(AUTHORIZATION);
    let presented = presented.and_then(|value| bearer(value.as_bytes()));
    let Some(role) = presented.and_then(|key| keys.role_of(key)) else {
        let detail = match presented {
            Some(_) => "the API key is not the right one",
            None => "this needs an API key; send it as \"Authorization: Bearer <key>\"",
        };
        let requester = Requester::find(request.extensions());
        return Err(failures.refuse(&requester, detail));
    };
    let principal = Principal { role };
    if !principal.may(Action::of(request.method())) {
        let detail = "this key may only read; acquiring, renewing and releasing need the api_key";
        return Err(Problem::forbidden(AccessRefusal::Role, detail));
    }
    request.extensions_mut().insert(principal);
    Ok(request)
}

/// What follows the scheme, whose name may be written in any case (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then_some(key.trim_ascii())
}
