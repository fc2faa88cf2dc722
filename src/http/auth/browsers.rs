//! Protection of a service without keys against requests that a web page makes a browser send: none may show or change
//! locks.
//!
//! A page of another site cannot read our responses, but it can send requests that take effect, or make its own host
//! name resolve to our address and so count as the same site (DNS rebinding). Browsers send the origin site of a
//! request, and a service on a loopback address has few host names. Other clients are not affected: they send none of
//! these headers, and their users configure the host.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderName, Method};

use crate::http::problem::{AccessRefusal, Problem};
use crate::http::routes::Route;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// How many characters of an unknown host the response repeats.
const ECHO_MAX: usize = 64;

const CROSS_SITE: &str = "a browser sent this for a page of another site, and this service has no key that would stop such \
     requests; do not call it from a browser, or configure a key (LEASEHOLD_API_KEY_FILE)";

const CROSS_SITE_CERTIFICATE: &str = "a browser sent this for a page of another site, and added the client certificate by \
     itself; send an API key instead";

/// The address of the service that a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum ServedAddress {
    /// That for clients.
    Listen,
    /// That for probes and operators.
    AdminListen,
}

/// The host names that requests may use for the service.
#[derive(Clone, Debug)]
pub struct KnownHosts {
    names: Vec<String>,
    is_checked: bool,
    is_checked_at_admin: bool,
}

impl KnownHosts {
    /// Accepts any host name.
    #[must_use]
    pub fn any() -> Self {
        Self {
            names: Vec::new(),
            is_checked: false,
            is_checked_at_admin: false,
        }
    }

    /// Accepts only these names, `localhost`, and IP addresses, which DNS rebinding cannot fake. A service that other
    /// machines can reach cannot know all its names, so there any name is accepted if `names` is empty.
    #[must_use]
    pub fn new(listen: SocketAddr, names: Vec<String>) -> Self {
        let is_local = listen.ip().to_canonical().is_loopback();
        Self::of(is_local, names)
    }

    /// The same for a service that only this machine can reach if `is_local`, at both of its addresses.
    #[must_use]
    pub fn of(is_local: bool, names: Vec<String>) -> Self {
        let is_checked = is_local || !names.is_empty();
        Self {
            is_checked,
            is_checked_at_admin: is_checked,
            names,
        }
    }

    /// The same at `listen`, with an `admin_listen` that only this machine can reach if `is_local`.
    #[must_use]
    pub fn with_admin(self, is_local: bool) -> Self {
        Self {
            is_checked_at_admin: is_local || !self.names.is_empty(),
            ..self
        }
    }

    fn are_checked_at(&self, address: ServedAddress) -> bool {
        match address {
            ServedAddress::Listen => self.is_checked,
            ServedAddress::AdminListen => self.is_checked_at_admin,
        }
    }

    fn contains(&self, host: &str) -> bool {
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if !host.bytes().all(is_of_host) {
            return false;
        }
        let host = host.strip_suffix('.').unwrap_or(host);
        let address = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        address.unwrap_or(host).parse::<IpAddr>().is_ok()
            || is_localhost(host)
            || self
                .names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// Every name under `localhost` is the machine itself (RFC 6761, 6.3).
fn is_localhost(host: &str) -> bool {
    const LOCALHOST: &str = "localhost";
    let Some((below, last)) = host
        .len()
        .checked_sub(LOCALHOST.len())
        .and_then(|at| host.split_at_checked(at))
    else {
        return false;
    };
    last.eq_ignore_ascii_case(LOCALHOST) && (below.is_empty() || below.ends_with('.'))
}

/// Refuses requests for an unknown host, and cross-site requests. Pages and probes that show no lock may be read from
/// any site.
pub(super) fn screen(
    (hosts, address): (&KnownHosts, ServedAddress),
    request: &Request,
    route: Option<Route>,
) -> Result<(), Problem> {
    if hosts.are_checked_at(address)
        && let Some(unknown) =
            authorities(request).find(|authority| !hosts.contains(without_port(authority)))
    {
        return Err(unknown_host(unknown));
    }
    if !is_cross_site(request) {
        return Ok(());
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_read && route.is_some_and(Route::shows_no_lock) {
        return Ok(());
    }
    Err(Problem::forbidden(AccessRefusal::CrossSite, CROSS_SITE))
}

/// Refuses cross-site requests that are authenticated by a certificate, which browsers add by themselves. The certificate of
/// this service stops DNS rebinding.
pub(super) fn screen_certificate(request: &Request) -> Result<(), Problem> {
    match is_cross_site(request) {
        true => Err(Problem::forbidden(
            AccessRefusal::CrossSite,
            CROSS_SITE_CERTIFICATE,
        )),
        false => Ok(()),
    }
}

/// Whether a page of another site sent the request. Browsers without `Sec-Fetch-Site` send `Origin`, at least with
/// requests that may change something.
fn is_cross_site(request: &Request) -> bool {
    let headers = request.headers();
    if headers.contains_key(SEC_FETCH_SITE) {
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        return sites.any(|site| site != "same-origin" && site != "none");
    }
    headers.get_all(ORIGIN).iter().any(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let mut hosts = authorities(request).peekable();
        hosts.peek().is_none() || hosts.any(|host| !is_origin_of(origin, host))
    })
}

/// The hosts in the request: one, unless the client manipulates the headers.
fn authorities(request: &Request) -> impl Iterator<Item = &str> {
    let of_uri = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    let of_headers = request.headers().get_all(HOST).iter();
    // A host that is not ASCII is never known.
    let of_headers = of_headers.map(|host| host.to_str().unwrap_or("?"));
    of_uri.into_iter().chain(of_headers)
}

/// Whether the origin, such as `https://locks.example`, is the requested host. Only the origin has a scheme, so the
/// default port of that scheme is removed from both.
fn is_origin_of(origin: &str, host: &str) -> bool {
    let (authority, default_port) = match origin.split_once("://") {
        Some(("http", authority)) => (authority, ":80"),
        Some(("https", authority)) => (authority, ":443"),
        _ => return false,
    };
    let [authority, host] =
        [authority, host].map(|text| text.strip_suffix(default_port).unwrap_or(text));
    authority.eq_ignore_ascii_case(host)
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.is_empty() || port.parse::<u16>().is_ok() => host,
        _ => authority,
    }
}

fn unknown_host(host: &str) -> Problem {
    let host: String = host.chars().take(ECHO_MAX).collect();
    let detail = format!(
        "{host:?} is not a known host name of this service, so a web page may have made it up; use localhost or an IP \
         address, or add the name to server.hosts (LEASEHOLD_SERVER_HOSTS)"
    );
    Problem::forbidden(AccessRefusal::UnknownHost, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_listener_accepts_ip_addresses_localhost_and_configured_names() {
        let hosts = KnownHosts::new(
            ([127, 0, 0, 1], 7625).into(),
            vec!["locks.internal".to_owned()],
        );
        for known in [
            "127.0.0.1",
            "[::1]",
            "192.0.2.7",
            "localhost",
            "LOCALHOST",
            "a.localhost",
            "localhost.",
            "Locks.Internal",
        ] {
            assert!(hosts.contains(known), "{known}");
            assert!(
                hosts.contains(without_port(&format!("{known}:7625"))),
                "{known}"
            );
        }
        for unknown in [
            "evil.example",
            "127.0.0.1.evil.example",
            "evillocalhost",
            "localhost.evil.example",
            "xlocks.internal",
            "",
            "?",
            "127.1",
            "user@localhost",
            "evil.example#.localhost",
            "evil.example/.localhost",
            "éocalhost",
        ] {
            assert!(!hosts.contains(unknown), "{unknown}");
        }
        for unknown in ["127.0.0.1:1@evil.example", "[::1]:7625x", "localhost:http"] {
            assert!(!hosts.contains(without_port(unknown)), "{unknown}");
        }
    }

    #[test]
    fn an_origin_equals_the_host_with_or_without_the_default_port() {
        for (origin, host) in [
            ("http://localhost:7625", "localhost:7625"),
            ("http://locks", "locks:80"),
            ("https://locks.example", "Locks.example"),
            ("https://locks.example", "locks.example:443"),
            ("http://[::1]:7625", "[::1]:7625"),
        ] {
            assert!(is_origin_of(origin, host), "{origin} {host}");
        }
        for (origin, host) in [
            ("null", "null"),
            ("http://localhost:8080", "localhost:7625"),
            ("http://evil.example", "localhost:7625"),
            ("https://locks.example", "locks.example:80"),
            ("chrome-extension://locks", "locks"),
            ("", ""),
        ] {
            assert!(!is_origin_of(origin, host), "{origin} {host}");
        }
    }
}
