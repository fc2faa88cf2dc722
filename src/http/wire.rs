//! The types of response bodies. Other modules fill them in and choose the status.

mod grant;

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::domain::{HeadWaiter, LockEvent, LockState, LockView, Metadata, Position, Timestamp};
pub(super) use grant::{GrantView, GrantsView, HolderView, ModeView};

/// A JSON response. Its text ends with a newline, so that the prompt of a shell is on a line of its own.
pub(super) fn json(
    status: StatusCode,
    content_type: &'static str,
    body: &impl Serialize,
) -> Response {
    let mut text =
        serde_json::to_vec(body).expect("answers have string keys and no failing serializer");
    text.push(b'\n');
    let mut response = Response::new(Body::from(text));
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

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unix_ms = self.0.unix_ms().min(Self::UNIX_MS_MAX);
        let time: SystemTime = UNIX_EPOCH + Duration::from_millis(unix_ms);
        humantime::format_rfc3339_millis(time).fmt(f)
    }
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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

/// A lock, as every client may see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lock)]
pub(in crate::http) struct LockBody<'a> {
    /// The lock.
    name: &'a str,
    /// The state of the lock.
    state: StateView,
    /// The holders whose leases end first, without tokens: at most 100, and fewer if their metadata would make the
    /// response too large.
    #[schema(value_type = Vec<HolderView>)]
    holders: Vec<HolderView<'a>>,
    /// The number of holders.
    holders_total: u64,
    /// The number of claims that wait for the lock.
    queue_length: u64,
    /// The claim at the head of the queue; null if none waits.
    #[schema(value_type = Option<QueueHead>, required)]
    queue_head: Option<QueueHead<'a>>,
    /// How long the lock still stays closed; null unless it is cooling.
    #[schema(required)]
    free_in_ms: Option<u64>,
    /// Only with a quorum, of a single lock, and if there are any: the nodes that show it in another state than the
    /// majority, and have done so for a tenth of a second. A node that does not answer is not among them.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    disagreeing_nodes: &'a [String],
}

impl<'a> LockBody<'a> {
    pub(in crate::http) fn new(view: &'a LockView) -> Self {
        let (holders, free_in) = match &view.state {
            LockState::Free => (None, None),
            LockState::Held(holders) => (Some(holders), None),
            LockState::Cooling { free_in } => (None, Some(*free_in)),
        };
        let (holders, holders_total) = HolderView::listed(holders);
        Self {
            name: view.name.as_str(),
            state: StateView::of(&view.state),
            holders,
            holders_total,
            queue_length: view.queue.length,
            queue_head: view.queue.head.as_ref().map(QueueHead::new),
            free_in_ms: free_in.map(millis),
            disagreeing_nodes: &view.disagreeing_nodes,
        }
    }
}

/// The state of a lock.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = LockState)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum StateView {
    /// No claim holds it.
    Free,
    /// One or more claims hold it.
    Held,
    /// No claim holds it, but it stays closed for a while.
    Cooling,
}

impl StateView {
    pub(in crate::http) fn of(state: &LockState) -> Self {
        match state {
            LockState::Free => Self::Free,
            LockState::Held(_) => Self::Held,
            LockState::Cooling { .. } => Self::Cooling,
        }
    }

    /// The state as the body has it, for the header.
    pub(in crate::http) fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Cooling => "cooling",
        }
    }
}

/// A waiting claim, as every client may see it; without its token.
#[derive(Debug, Serialize, ToSchema)]
struct QueueHead<'a> {
    /// The owner text of the claim; it proves nothing.
    owner: &'a str,
    /// How it wants to hold the lock.
    mode: ModeView,
    /// The total number of permits that it asks for; null without a limit, and for an exclusive claim.
    #[schema(required, minimum = 1, maximum = 1_000_000)]
    limit: Option<u32>,
    /// How many permits it would take.
    #[schema(minimum = 1, maximum = 1_000_000)]
    permits: u32,
    /// When it began to wait, by the store's clock.
    #[schema(value_type = String, format = DateTime)]
    waiting_since: Rfc3339,
}

impl<'a> QueueHead<'a> {
    fn new(waiter: &'a HeadWaiter) -> Self {
        let (mode, share) = ModeView::of(waiter.mode);
        Self {
            owner: waiter.owner.as_str(),
            mode,
            limit: share.limit(),
            permits: share.permits(),
            waiting_since: Rfc3339(waiter.since),
        }
    }
}

/// One page of the locks that are held or waited for, in the order of names.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LockPage)]
pub(in crate::http) struct LockPage<'a> {
    /// The locks.
    #[schema(value_type = Vec<LockBody>)]
    pub(in crate::http) locks: Vec<LockBody<'a>>,
    /// The `page_token` of the next page; empty on the last one.
    pub(in crate::http) next_page_token: String,
}

/// The evicted holders.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Eviction)]
pub(in crate::http) struct EvictedBody<'a> {
    /// The former holders; empty if no claim held the lock. At most 100, and fewer if their metadata would make the
    /// response too large.
    #[schema(value_type = Vec<HolderView>)]
    pub(in crate::http) evicted: Vec<HolderView<'a>>,
    /// The number of evicted holders.
    pub(in crate::http) evicted_total: u64,
}
