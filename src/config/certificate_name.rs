//! A name in the certificate of a client: what the keys file has of it, and what a certificate has to have.

use std::fmt;
use std::sync::Arc;

/// How a DNS name begins in the keys file. A URI stands there as it is.
const DNS: &str = "dns:";
/// The longest name, in bytes: that of a SPIFFE id.
const BYTES_MAX: usize = 2_048;

/// A subject alternative name, by which a client with a certificate is known. Cloning is cheap.
///
/// A URI in a certificate may begin with `dns:`, and is not the DNS name for that: an authority may check the one and not
/// the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CertificateName {
    /// A URI.
    Uri(Arc<str>),
    /// A DNS name in lower case.
    Dns(Arc<str>),
}

impl CertificateName {
    /// The name of a URI in a certificate.
    #[must_use]
    pub fn of_uri(uri: &str) -> Self {
        Self::Uri(uri.into())
    }

    /// The name of a DNS name in a certificate. Letters of either case are the same there.
    #[must_use]
    pub fn of_dns(name: &str) -> Self {
        Self::Dns(name.to_ascii_lowercase().into())
    }

    /// Parses a name as it is written in the keys file.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let refused = |problem: &str| Err(format!("\"{text}\" {problem}"));
        if text.len() > BYTES_MAX {
            return Err(format!("a name is longer than {BYTES_MAX} bytes"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refused("has a character that no name in a certificate has");
        }
        if text.contains('*') {
            return refused("has a *, but names are compared as they are; list each name");
        }
        if let Some(name) = text.strip_prefix(DNS).filter(|name| !name.is_empty()) {
            return Ok(Self::of_dns(name));
        }
        match text.split_once("://") {
            Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() => {
                Ok(Self::of_uri(text))
            }
            _ => refused(
                "is not a name of a certificate; write a URI like \"spiffe://example.org/billing\", or \"dns:billing.example\"",
            ),
        }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => f.write_str(uri),
            Self::Dns(name) => write!(f, "{DNS}{name}"),
        }
    }
}
