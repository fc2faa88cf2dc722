//! The types of response bodies. Other modules fill them in and choose the status.

mod event;
mod grant;
mod lock;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::domain::{Metadata, Timestamp};
pub(super) use event::{LockEventBody, PositionView};
pub(super) use grant::{GrantView, GrantsView, HolderView, ModeView};
pub(super) use lock::{EvictedBody, LockBody, LockPage};

/// A JSON response.
pub(super) fn json(
    status: StatusCode,
    content_type: &'static str,
    body: &impl Serialize,
) -> Response {
    let body =
        serde_json::to_vec(body).expect("answers have string keys and no failing serializer");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Whole milliseconds, rounded down, so that the rest of a lease is never overstated.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 in UTC, with exactly three fractional digits.
#[derive(Debug)]
struct Rfc3339(Timestamp);

impl Rfc3339 {
    /// The end of the year 9999, the last that RFC 3339 can express.
    const UNIX_MS_MAX: u64 = 253_402_300_799_999;
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let unix_ms = self.0.unix_ms().min(Self::UNIX_MS_MAX);
        let time: SystemTime = UNIX_EPOCH + Duration::from_millis(unix_ms);
        serializer.collect_str(&humantime::format_rfc3339_millis(time))
    }
}

/// JSON from a client, byte for byte.
#[derive(Debug)]
struct RawJson<'a>(&'a Metadata);

impl Serialize for RawJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // It was validated when the client sent it. If the store has corrupted it, the rest of the response is still
        // sent.
        let raw: Option<&RawValue> = serde_json::from_str(self.0.as_json()).ok();
        raw.serialize(serializer)
    }
}
