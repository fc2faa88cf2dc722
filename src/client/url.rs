//! The URL of a service: `http://` or `https://`, a host, and perhaps a port and a path; or `unix:` and the path of a socket
//! on this machine.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::Uri;
use hyper::header::HeaderValue;

/// Where a service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    /// Of a Unix socket, that in the `Host` header.
    uri: Uri,
    socket: Option<PathBuf>,
}

/// What the URL of a Unix socket begins with; its path follows.
const UNIX: &str = "unix:";

impl ServiceUrl {
    /// Where a service listens unless it is configured otherwise.
    pub const DEFAULT: &str = "http://127.0.0.1:7625";

    /// Parses a URL. Without a scheme it is `http`, and without a host this machine.
    ///
    /// # Errors
    /// It is not a URL of HTTP, has no host, has a query, or is the URL of the locks instead of that of the service.
    pub fn parse(text: &str) -> Result<Self, String> {
        let example = format!("write one like {}", Self::DEFAULT);
        if let Some(path) = text.strip_prefix(UNIX) {
            return match path.starts_with('/') {
                true => Ok(Self {
                    uri: Uri::from_static("http://localhost"),
                    socket: Some(path.into()),
                }),
                false => Err(
                    "write the absolute path of a socket, like unix:/run/leasehold/leasehold.sock"
                        .to_owned(),
                ),
            };
        }
        let complete = completed(text);
        if complete.contains('@') {
            return Err(format!(
                "a user and a password in it have no effect, and others could read them; the key of the service has \
                 settings of its own; {example}"
            ));
        }
        let url = complete
            .parse::<Uri>()
            .map_err(|error| format!("{error}; {example}"))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(example);
        }
        if url.query().is_some() || url.host().is_none_or(str::is_empty) {
            return Err(example);
        }
        // The parser lets pass what is no port, and then there is none.
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let host_and_port = authority.rsplit(['@', ']']).next().unwrap_or_default();
        match host_and_port.split_once(':') {
            Some((_, port)) if url.port_u16().is_none() => {
                Err(format!("\"{port}\" is not a port; {example}"))
            }
            _ => Self {
                uri: url,
                socket: None,
            }
            .without_locks(),
        }
    }

    /// Refuses the URL of the locks or of one lock, which is what people copy from a request: what follows `/locks/` is a
    /// name, so each command would use another lock than it names, and find it free.
    fn without_locks(self) -> Result<Self, String> {
        let path = self.uri.path();
        let mut segments = path.split('/');
        let Some(at) = segments.position(|segment| segment == "locks") else {
            return Ok(self);
        };
        let before: Vec<_> = path.split('/').take(at).collect();
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let authority = self.uri.authority().map_or("", |known| known.as_str());
        Err(format!(
            "this is the URL of the locks, and the URL of the service has no /locks; write {scheme}://{authority}{}",
            before.join("/")
        ))
    }

    /// The Unix socket to connect to, if it is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Host and port to connect to.
    #[must_use]
    pub fn address(&self) -> (&str, u16) {
        let host = self.uri.host().unwrap_or_default();
        let host = host.trim_matches(['[', ']']);
        let default = if self.is_encrypted() { 443 } else { 80 };
        (host, self.uri.port_u16().unwrap_or(default))
    }

    /// The path before that of each request, which a proxy may have; usually empty.
    #[must_use]
    pub fn path(&self) -> &str {
        self.uri.path().trim_end_matches('/')
    }

    /// Whether the connection uses TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// The value of the `Host` header.
    pub(crate) fn host_header(&self) -> HeaderValue {
        let authority = self.uri.authority();
        let host = authority.map_or("", |authority| authority.as_str());
        HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static(""))
    }

    /// The target of a request: the path of this URL, followed by `path`.
    pub(crate) fn target(&self, path: &str) -> Uri {
        format!("{}{path}", self.path()).parse().unwrap_or_default()
    }
}

/// The URL, with the scheme and the host that it may leave out.
pub(crate) fn completed(text: &str) -> String {
    match text.split_once(':') {
        Some(("", rest)) => format!("http://127.0.0.1:{rest}"),
        Some((_, rest)) if rest.starts_with(|first: char| first.is_ascii_digit()) => {
            format!("http://{text}")
        }
        _ => text.to_owned(),
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.socket {
            return write!(formatter, "{UNIX}{}", path.display());
        }
        formatter.write_str(self.uri.to_string().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_may_have_a_port_and_a_path() {
        let url = ServiceUrl::parse("http://locks.example:81/team").expect("valid");
        assert_eq!(url.address(), ("locks.example", 81));
        assert_eq!(url.target("/locks/a").to_string(), "/team/locks/a");
        assert_eq!(url.host_header(), "locks.example:81");
        let url = ServiceUrl::parse("http://[::1]").expect("valid");
        assert_eq!(url.address(), ("::1", 80));
        assert_eq!(url.target("/locks/a").to_string(), "/locks/a");
        assert_eq!(url.to_string(), "http://[::1]");
        let url = ServiceUrl::parse("https://locks.example").expect("valid");
        assert_eq!(url.address(), ("locks.example", 443));
    }

    #[test]
    fn a_url_may_be_the_path_of_a_unix_socket() {
        let url = ServiceUrl::parse("unix:/run/a.sock").expect("valid");
        assert_eq!(url.socket(), Some(Path::new("/run/a.sock")));
        assert_eq!(url.host_header(), "localhost");
        assert_eq!(url.target("/locks/a").to_string(), "/locks/a");
        assert_eq!(url.to_string(), "unix:/run/a.sock");
        assert!(!url.is_encrypted());
        let problem = ServiceUrl::parse("unix:a.sock").expect_err("relative");
        assert!(problem.contains("absolute path"), "{problem}");
    }

    #[test]
    fn a_url_without_a_scheme_is_http() {
        for (text, meant) in [
            ("localhost:7625", "http://localhost:7625"),
            (":7625", "http://127.0.0.1:7625"),
            ("locks:81/team", "http://locks:81/team"),
        ] {
            assert_eq!(ServiceUrl::parse(text).expect(text).to_string(), meant);
        }
    }

    #[test]
    fn the_url_of_the_locks_is_refused_with_that_of_the_service() {
        for (text, meant) in [
            ("http://127.0.0.1:7625/locks", "write http://127.0.0.1:7625"),
            (
                "http://127.0.0.1:7625/locks/",
                "write http://127.0.0.1:7625",
            ),
            ("http://a/team/locks/backup", "write http://a/team"),
            ("localhost:7625/locks", "write http://localhost:7625"),
        ] {
            let problem = ServiceUrl::parse(text).expect_err(text);
            assert!(problem.ends_with(meant), "{text}: {problem}");
        }
        ServiceUrl::parse("http://a/locksmith").expect("another path");
    }

    #[test]
    fn what_is_no_url_of_a_service_is_refused_with_an_example() {
        for text in [
            "",
            "ftp://a",
            "http://a?x=1",
            "/a",
            "a:1x",
            "http://a:99999",
        ] {
            let problem = ServiceUrl::parse(text).expect_err(text);
            assert!(
                problem.contains("http://127.0.0.1:7625"),
                "{text}: {problem}"
            );
        }
    }
}
