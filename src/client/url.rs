//! The URL of a service: `http://`, a host, and perhaps a port and a path.

use std::fmt;

use hyper::Uri;
use hyper::header::HeaderValue;

/// Where a service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl(Uri);

impl ServiceUrl {
    /// Where a service listens unless it is configured otherwise.
    pub const DEFAULT: &str = "http://127.0.0.1:7625";

    /// Parses a URL.
    ///
    /// # Errors
    /// It is not a URL, has no host, has a query, or needs TLS.
    pub fn parse(text: &str) -> Result<Self, String> {
        let example = format!("write one like {}", Self::DEFAULT);
        let url = text
            .parse::<Uri>()
            .map_err(|error| format!("{error}; {example}"))?;
        match url.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(
                    "TLS is not supported; use http:// and a proxy on this machine that speaks TLS"
                        .to_owned(),
                );
            }
            _ => return Err(example),
        }
        if url.query().is_some() || url.host().is_none_or(str::is_empty) {
            return Err(example);
        }
        Ok(Self(url))
    }

    /// Host and port to connect to.
    #[must_use]
    pub fn address(&self) -> (&str, u16) {
        let host = self.0.host().unwrap_or_default();
        let host = host.trim_matches(['[', ']']);
        (host, self.0.port_u16().unwrap_or(80))
    }

    /// The value of the `Host` header, without what would be a password.
    pub(crate) fn host_header(&self) -> HeaderValue {
        let authority = self
            .0
            .authority()
            .map_or("", |authority| authority.as_str());
        let host = authority.rsplit('@').next().unwrap_or_default();
        HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static(""))
    }

    /// The target of a request: the path of this URL, followed by `path`.
    pub(crate) fn target(&self, path: &str) -> Uri {
        let base = self.0.path().trim_end_matches('/');
        format!("{base}{path}").parse().unwrap_or_default()
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.to_string().trim_end_matches('/'))
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
    }

    #[test]
    fn what_is_no_url_of_a_service_is_refused_with_an_example() {
        for text in ["", "localhost:7625", "ftp://a", "http://a?x=1", "/a"] {
            let problem = ServiceUrl::parse(text).expect_err(text);
            assert!(
                problem.contains("http://127.0.0.1:7625"),
                "{text}: {problem}"
            );
        }
        let problem = ServiceUrl::parse("https://a").expect_err("TLS");
        assert!(problem.contains("TLS is not supported"), "{problem}");
    }
}
