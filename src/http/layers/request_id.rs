//! The name of a request in answers and logs: the client's own where it is fit to be repeated, else a new one.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

/// The header that carries it both ways.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// The longest that is repeated, in bytes.
const BYTES_MAX: usize = 128;

/// A request id: 1 to 128 printable letters of ASCII.
#[derive(Clone)]
pub(in crate::http) struct RequestId(HeaderValue);

impl RequestId {
    pub(in crate::http) fn of(headers: &HeaderMap) -> Self {
        match headers.get(HEADER) {
            Some(value) if is_fit(value.as_bytes()) => Self::copied(value.as_bytes()),
            _ => Self::new(),
        }
    }

    /// A UUID of version 7, so that ids sort by time.
    fn new() -> Self {
        let mut buffer = Uuid::encode_buffer();
        let text = Uuid::now_v7().hyphenated().encode_lower(&mut buffer);
        Self::copied(text.as_bytes())
    }

    fn copied(text: &[u8]) -> Self {
        Self(HeaderValue::from_bytes(text).expect("it is printable ASCII"))
    }

    pub(in crate::http) fn as_str(&self) -> &str {
        self.0.to_str().expect("only printable ASCII is taken")
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl Default for RequestId {
    fn default() -> Self {
        Self::new()
    }
}

/// Whatever else a client sends would be written into logs and answers as it is.
fn is_fit(value: &[u8]) -> bool {
    (1..=BYTES_MAX).contains(&value.len()) && value.iter().all(|byte| (b' '..=b'~').contains(byte))
}
