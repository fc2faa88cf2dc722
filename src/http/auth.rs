//! Who may come in: one API key for everybody, where one is configured. What the key opens is not decided here.

use std::fmt;

use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::problem::Problem;

/// The API key, of which only the SHA-256 is kept.
#[derive(Clone)]
pub struct ApiKey {
    digest: [u8; 32],
}

impl ApiKey {
    /// Remembers the key by its digest.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        Self {
            digest: Sha256::digest(key).into(),
        }
    }

    /// Digests are compared, and in constant time, so that the time of an answer tells nothing about the key, not
    /// even its length.
    fn is(&self, presented: &[u8]) -> bool {
        let presented: [u8; 32] = Sha256::digest(presented).into();
        self.digest.ct_eq(&presented).into()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Lets a request pass that carries the key.
pub(super) async fn admit(key: ApiKey, request: Request) -> Result<Request, Problem> {
    let presented = request.headers().get(AUTHORIZATION);
    match presented.and_then(|value| bearer(value.as_bytes())) {
        Some(presented) if key.is(presented) => Ok(request),
        Some(_) => Err(Problem::unauthorized("the API key is not the right one")),
        None => Err(Problem::unauthorized(
            "this needs an API key; send it as \"Authorization: Bearer <key>\"",
        )),
    }
}

/// What follows the scheme, whose name may be written in any case (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then_some(key.trim_ascii())
}
