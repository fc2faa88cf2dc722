//! Who sent a request: its id in responses and logs, its peer, and what its key allows. The handlers get
//! nothing else from the connection and from the processing before them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

use super::auth::{Principal, RateLimit};
use crate::limits::{Limit, PeerLimits};
use crate::server::{Peer, PeerAddress};

/// The sender of a request, in the extensions of the request.
#[derive(Clone, Default)]
pub(super) struct Requester {
    pub(super) request_id: RequestId,
    /// A client, or the proxy in front of it; `None` in tests without a connection.
    pub(super) peer: Option<Peer>,
    /// Known once its key has been checked; `None` on a service without keys.
    pub(super) principal: Option<Principal>,
    /// What is left of the quota of requests of the principal, if it has one and this request counts.
    pub(super) rate_limit: Option<RateLimit>,
}

impl Requester {
    /// Replaces the peer in the extensions of the request by the requester.
    pub(super) fn enter(request: &mut Request) -> Self {
        let requester = Self {
            request_id: RequestId::of(request.headers()),
            peer: request.extensions_mut().remove(),
            principal: None,
            rate_limit: None,
        };
        request.extensions_mut().insert(requester.clone());
        requester
    }

    /// The requester of a request of which nothing else is needed. The rest is dropped, because a head may have 64 KiB,
    /// and the response may take long.
    pub(super) fn of(request: Request) -> Self {
        Self::take(request.into_parts().0.extensions)
    }

    pub(super) fn take(mut extensions: Extensions) -> Self {
        extensions.remove().unwrap_or_default()
    }

    /// Where the peer is, for the log.
    pub(super) fn address(&self) -> Option<PeerAddress> {
        self.peer.as_ref().map(Peer::address)
    }

    /// The address under which the peer is counted.
    pub(super) fn network(&self) -> IpAddr {
        let peer = self.peer.as_ref();
        peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), Peer::network)
    }

    /// Whether the peer forwards requests of many clients, so that per-peer limits do not apply to it.
    pub(super) fn is_trusted_proxy(&self) -> bool {
        self.peer.as_ref().is_some_and(Peer::is_trusted_proxy)
    }

    /// The limits of the peer, if they apply to it.
    pub(super) fn limits(&self) -> Option<&Arc<PeerLimits>> {
        self.peer.as_ref().and_then(Peer::limits)
    }

    /// The same for what an address has by itself.
    pub(super) fn limits_of_address(&self) -> Option<&Arc<PeerLimits>> {
        self.peer.as_ref().and_then(Peer::limits_of_address)
    }

    /// The limit on requests that this one exceeds.
    pub(super) fn over_limit(&self) -> Option<Limit> {
        self.peer.as_ref().and_then(Peer::over_limit)
    }
}

/// The header of the id, in requests and responses.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is accepted from a client, in bytes.
const BYTES_MAX: usize = 128;

/// A request id: 1 to 128 printable ASCII characters.
#[derive(Clone)]
pub(super) struct RequestId(HeaderValue);

impl RequestId {
    fn of(headers: &HeaderMap) -> Self {
        match headers.get(REQUEST_ID) {
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

    pub(super) fn as_str(&self) -> &str {
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
