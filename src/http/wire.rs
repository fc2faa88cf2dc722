//! The types of response bodies. Other modules fill them in and choose the status.

mod grant;
mod lock;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::domain::{LockEvent, Metadata, Position, Timestamp};
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

/// A public event of a lock; it never contains a token.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LockEvent)]
pub(in crate::http) struct LockEventBody<'a> {
    /// The lock.
    name: &'a str,
    /// The fencing token of the lease that this is about; null if there is no lease.
    #[schema(required)]
    fencing_token: Option<u64>,
    /// The owner text of the claim; it proves nothing.
    owner: &'a str,
    /// When it happened, by the store's clock.
    #[schema(value_type = String, format = DateTime)]
    at: Rfc3339,
    /// When the lease ends unless it is renewed, by the store's clock; null if no lease continues.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    expires_at: Option<Rfc3339>,
}

impl<'a> LockEventBody<'a> {
    pub(in crate::http) fn new(event: &'a LockEvent) -> Self {
        Self {
            name: event.name.as_str(),
            fencing_token: event.fence.map(|fence| fence.get()),
            owner: event.owner.as_str(),
            at: Rfc3339(event.at),
            expires_at: event.expires_at.map(Rfc3339),
        }
    }
}

/// The position of a waiting claim.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueuePosition)]
pub(in crate::http) struct PositionView {
    /// The position; 1 is the head of the queue.
    position: u64,
    /// The length of the queue.
    queue_length: u64,
}

impl From<Position> for PositionView {
    fn from(position: Position) -> Self {
        Self {
            position: position.position,
            queue_length: position.queue_length,
        }
    }
}
