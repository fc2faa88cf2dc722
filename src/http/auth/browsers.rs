//! What a web page may make a browser send to a service that asks nobody for a key: nothing that shows or changes locks.
//!
//! A page of another site cannot read our answers, but it can send requests that take effect, or have its own name resolve
//! to our address and then count as the same site (DNS rebinding). Browsers say which site a request comes from, and a
//! service that only its own machine can reach is known by few names. Other clients are not affected: what they send has
//! none of these headers, and they are told their host by people.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderName, Method};

use crate::http::problem::{AccessRefusal, Problem};
use crate::http::route::Route;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// How much of an unknown host is repeated in the answer, in letters.
const ECHO_MAX: usize = 64;

const CROSS_SITE: &str = "a page of another site made a browser send this, and this service asks for no key that would \
     keep such a page out; call it from elsewhere than a browser, or configure a key (LEASEHOLD_API_KEY_FILE)";

/// Under which host names the service is asked.
#[derive(Clone, Debug)]
pub struct KnownHosts {
    names: Vec<String>,
    is_checked: bool,
}

impl KnownHosts {
    /// Any name will do.
    #[must_use]
    pub fn any() -> Self {
        Self {
            names: Vec::new(),
            is_checked: false,
        }
    }

    /// Only these names, `localhost`, and addresses, which no name resolves to by surprise. A service that other machines
    /// reach has names that it cannot know, so there any will do unless some are given.
    #[must_use]
    pub fn new(listen: SocketAddr, names: Vec<String>) -> Self {
        Self {
            is_checked: listen.ip().to_canonical().is_loopback() || !names.is_empty(),
            names,
        }
    }

    fn contains(&self, host: &str) -> bool {
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

/// Every name below `localhost` is the machine itself (RFC 6761, 6.3).
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

/// Refuses a request for a host that is not ours, and one of another site's page. The pages and probes that show no lock
/// may be looked at from anywhere.
pub(super) fn screen(
    hosts: &KnownHosts,
    request: &Request,
    route: Option<Route>,
) -> Result<(), Problem> {
    if hosts.is_checked
        && let Some(unknown) =
            authorities(request).find(|asked| !hosts.contains(without_port(asked)))
    {
        return Err(unknown_host(unknown));
    }
    if !is_cross_site(request) {
        return Ok(());
    }
    let only_looks = matches!(*request.method(), Method::GET | Method::HEAD);
    if only_looks && route.is_some_and(Route::shows_no_lock) {
        return Ok(());
    }
    Err(Problem::forbidden(AccessRefusal::CrossSite, CROSS_SITE))
}

/// Browsers that do not say which site a request comes from say its origin, at least where it may change something.
fn is_cross_site(request: &Request) -> bool {
    let headers = request.headers();
    if headers.contains_key(SEC_FETCH_SITE) {
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        return sites.any(|site| site != "same-origin" && site != "none");
    }
    headers.get_all(ORIGIN).iter().any(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let mut asked = authorities(request).peekable();
        asked.peek().is_none() || asked.any(|asked| !is_origin_of(origin, asked))
    })
}

/// The hosts that the request names: one, unless somebody plays tricks.
fn authorities(request: &Request) -> impl Iterator<Item = &str> {
    let of_uri = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    let of_headers = request.headers().get_all(HOST).iter();
    // What is not ASCII is no host that is known.
    let of_headers = of_headers.map(|host| host.to_str().unwrap_or("?"));
    of_uri.into_iter().chain(of_headers)
}

/// Whether the origin, as in `https://locks.example`, is the host that was asked. Only the origin has a scheme, so the
/// port that goes without saying is left out of both.
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
        Some((host, port)) if !port.contains(']') => host,
        _ => authority,
    }
}

fn unknown_host(host: &str) -> Problem {
    let host: String = host.chars().take(ECHO_MAX).collect();
    let detail = format!(
        "{host:?} is no name that this service is known by, so a web page may have made it up; ask for localhost or an IP \
         address, or add the name to server.hosts (LEASEHOLD_SERVER_HOSTS)"
    );
    Problem::forbidden(AccessRefusal::UnknownHost, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_listener_is_known_by_addresses_by_localhost_and_by_what_is_configured() {
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
            "éocalhost",
        ] {
            assert!(!hosts.contains(unknown), "{unknown}");
        }
    }

    #[test]
    fn an_origin_is_the_host_with_or_without_the_port_that_goes_without_saying() {
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
