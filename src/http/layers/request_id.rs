//! The id of a request in responses and logs: that of the client if it is safe to repeat, else a new one.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

/// The header of the id, in requests and responses.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is accepted from a client, in bytes.
const BYTES_MAX: usize = 128;

/// A request id: 1 to 128 printable ASCII characters.
#[derive(Clone)]
pub(in crate::http) struct RequestId(HeaderValue);

impl RequestId {
    pub(in crate::http) fn of(headers: &HeaderMap) -> Self {
        match headers.get(HEADER) {
            Some(value) if is_fit(value.as_bytes()) => Self::copied(value.as_bytes()),
            _ => Self::new(),
        }
    }

    /// A version 7 UUID, so that ids sort by time.
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

/// Only printable ASCII, because the id is written into logs and responses unchanged.
fn is_fit(value: &[u8]) -> bool {
    (1..=BYTES_MAX).contains(&value.len()) && value.iter().all(|byte| (b' '..=b'~').contains(byte))
}
