//! What a request is known by in answers and logs: its id, and the other end of its connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::extract::Request;
use axum::http::Extensions;

use super::RequestId;
use crate::server::Peer;

/// The id of a request and its peer. Handlers find it among the extensions.
#[derive(Clone, Default)]
pub(in crate::http) struct Requester {
    pub(in crate::http) request_id: RequestId,
    /// A client, or the proxy in front of it; none in tests that have no connection.
    pub(in crate::http) peer: Option<Peer>,
}

impl Requester {
    /// Takes what the server knows of the peer and leaves itself in its place: more extensions than there are would cost
    /// each request a larger map.
    pub(super) fn of(request: &mut Request) -> Self {
        let request_id = RequestId::of(request.headers());
        let extensions = request.extensions_mut();
        let peer = extensions.remove::<Peer>();
        let requester = Self { request_id, peer };
        extensions.insert(requester.clone());
        requester
    }

    /// Who sent the request that has these extensions.
    pub(in crate::http) fn find(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// The peer of the request that has these extensions.
    pub(in crate::http) fn peer_in(extensions: &Extensions) -> Option<&Peer> {
        let requester = extensions.get::<Self>()?;
        requester.peer.as_ref()
    }

    /// The address and port of the peer, for the log.
    pub(in crate::http) fn address(&self) -> Option<SocketAddr> {
        self.peer.as_ref().map(Peer::address)
    }

    /// The address by which the peer is counted.
    pub(in crate::http) fn ip(&self) -> IpAddr {
        self.address()
            .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip())
    }

    /// Whether the peer speaks for many clients, so that what it sends does not count as sent by one.
    pub(in crate::http) fn is_trusted_proxy(&self) -> bool {
        self.peer.as_ref().is_some_and(Peer::is_trusted_proxy)
    }
}
