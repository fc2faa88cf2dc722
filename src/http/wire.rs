//! The shapes of answers. Where they are filled in, and with which status they are sent, is elsewhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::domain::{Holder, Lease, LockName, LockState, LockView, Metadata, Timestamp, Token};

/// What the holder of a lock gets to know. It cannot be printed, because it shows its token.
#[derive(Serialize, ToSchema)]
pub(super) struct Grant<'a> {
    /// The lock.
    name: &'a str,
    /// Proves the claim. Keep it secret: whoever has it can renew and release.
    token: Uuid,
    /// The mode of the claim, and the public side of its lease.
    #[serde(flatten)]
    holder: HolderView<'a>,
    /// How long the lease lasts without renewal.
    ttl_ms: u64,
    /// How long the claim waited for the lock.
    waited_ms: u64,
    /// Whether this repeats the answer to an earlier request of the same claim.
    replayed: bool,
}

impl<'a> Grant<'a> {
    pub(super) fn new(name: &'a LockName, token: &Token, lease: &'a Lease, replayed: bool) -> Self {
        Self {
            name: name.as_str(),
            token: token.expose(),
            holder: HolderView::new(&lease.holder),
            ttl_ms: millis(lease.ttl.get()),
            waited_ms: 0,
            replayed,
        }
    }
}

/// A holder as everybody may see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Holder)]
pub(super) struct HolderView<'a> {
    /// Orders the grants of a lock: a later grant always has a larger one.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    fencing_token: u64,
    /// How the lock is held.
    mode: Mode,
    /// How many permits there are in all; null for an exclusive claim.
    #[schema(value_type = Option<u32>, required)]
    limit: (),
    /// How many permits the claim takes.
    permits: u32,
    /// Who holds, in the holder's own words; proves nothing.
    owner: &'a str,
    /// What else the holder wants others to see.
    #[schema(value_type = Option<Object>, required)]
    metadata: Option<RawJson<'a>>,
    /// How many times over it is held.
    #[schema(minimum = 1, maximum = 1000)]
    hold_count: u16,
    /// When the lock was granted, by the store's clock.
    #[schema(value_type = String, format = DateTime)]
    acquired_at: Moment,
    /// When the lease ends unless it is renewed, by the store's clock; for people to read.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Moment,
    /// How long the lease still lasts, counted from before this answer was sent. Go by this, not by `expires_at`.
    expires_in_ms: u64,
}

impl<'a> HolderView<'a> {
    pub(super) fn new(holder: &'a Holder) -> Self {
        Self {
            fencing_token: holder.fence.get(),
            mode: Mode::Exclusive,
            limit: (),
            permits: 1,
            owner: holder.owner.as_str(),
            metadata: holder.metadata.as_ref().map(RawJson),
            hold_count: holder.hold_count.get(),
            acquired_at: Moment(holder.acquired_at),
            expires_at: Moment(holder.expires_at),
            expires_in_ms: millis(holder.expires_in),
        }
    }

    pub(super) fn all(holders: &'a [Holder]) -> Vec<Self> {
        holders.iter().map(Self::new).collect()
    }
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// Alone.
    Exclusive,
}

/// A lock as everybody may see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lock)]
pub(super) struct LockBody<'a> {
    /// The lock.
    name: &'a str,
    /// What it is doing.
    state: State,
    /// Who holds it; never a token.
    #[schema(value_type = Vec<HolderView>)]
    holders: Vec<HolderView<'a>>,
    /// How many claims wait for it.
    queue_length: u64,
    /// How long it still stays closed while nobody holds it; null unless it is cooling.
    #[schema(required)]
    free_in_ms: Option<u64>,
}

impl<'a> LockBody<'a> {
    pub(super) fn new(view: &'a LockView) -> Self {
        let (state, holders, free_in) = match &view.state {
            LockState::Free => (State::Free, &[][..], None),
            LockState::Held(holders) => (State::Held, &holders[..], None),
            LockState::Cooling { free_in } => (State::Cooling, &[][..], Some(*free_in)),
        };
        Self {
            name: view.name.as_str(),
            state,
            holders: HolderView::all(holders),
            queue_length: 0,
            free_in_ms: free_in.map(millis),
        }
    }
}

/// What a lock is doing.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = LockState)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Nobody holds it.
    Free,
    /// Somebody holds it.
    Held,
    /// Nobody holds it, but it stays closed for a while.
    Cooling,
}

/// One page of the held locks, in the order of names.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LockPage)]
pub(super) struct LockPage<'a> {
    /// The locks.
    #[schema(value_type = Vec<LockBody>)]
    pub(super) locks: Vec<LockBody<'a>>,
    /// To be sent as `page_token` for the next page; empty on the last one.
    pub(super) next_page_token: String,
}

/// Who was evicted.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Evicted<'a> {
    /// The former holders; none if nobody held the lock.
    #[schema(value_type = Vec<HolderView>)]
    pub(super) evicted: Vec<HolderView<'a>>,
}

/// An answer of JSON.
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

/// Whole milliseconds, rounded down: what is left of a lease is never overstated.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 in UTC with exactly three digits of a second.
#[derive(Debug)]
struct Moment(Timestamp);

impl Moment {
    /// The end of the year 9999, which is as far as RFC 3339 reaches.
    const UNIX_MS_MAX: u64 = 253_402_300_799_999;
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let unix_ms = self.0.unix_ms().min(Self::UNIX_MS_MAX);
        let time: SystemTime = UNIX_EPOCH + Duration::from_millis(unix_ms);
        serializer.collect_str(&humantime::format_rfc3339_millis(time))
    }
}

/// JSON that a client wrote, byte for byte.
#[derive(Debug)]
struct RawJson<'a>(&'a Metadata);

impl Serialize for RawJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // It was checked when the client sent it. Should the store have spoilt it, the rest of the answer still counts.
        let raw: Option<&RawValue> = serde_json::from_str(self.0.as_json()).ok();
        raw.serialize(serializer)
    }
}
