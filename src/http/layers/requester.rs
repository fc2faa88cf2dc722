//! What a request is known by in answers and logs: its id, and the other end of its connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::extract::{ConnectInfo, Request};
use axum::http::Extensions;

use super::RequestId;

/// The id of a request and its peer. Handlers find it among the extensions.
#[derive(Clone, Default)]
pub(in crate::http) struct Requester {
    pub(in crate::http) request_id: RequestId,
    /// A client, or the proxy in front of it; none in tests that have no connection.
    pub(in crate::http) peer: Option<SocketAddr>,
}

impl Requester {
    /// Takes what the server knows of the peer and leaves itself in its place: more extensions than there are would cost
    /// each request a larger map.
    pub(super) fn of(request: &mut Request) -> Self {
        let request_id = RequestId::of(request.headers());
        let extensions = request.extensions_mut();
        let peer = extensions.remove::<ConnectInfo<SocketAddr>>();
        let peer = peer.map(|ConnectInfo(peer)| peer);
        let requester = Self { request_id, peer };
        extensions.insert(requester.clone());
        requester
    }

    /// Who sent the request that has these extensions.
    pub(in crate::http) fn find(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// The address by which the peer is counted.
    pub(in crate::http) fn ip(&self) -> IpAddr {
        self.peer
            .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip())
    }
}
