//! The request id and the peer of a request, for responses and logs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::extract::Request;
use axum::http::Extensions;

use super::RequestId;
use crate::server::Peer;

/// The id of a request and its peer. Handlers find both in the extensions.
pub(in crate::http) struct Requester {
    pub(in crate::http) request_id: RequestId,
    /// A client, or the proxy in front of it; `None` in tests without a connection.
    pub(in crate::http) peer: Option<Peer>,
}

impl Requester {
    /// Adds an id to the extensions of the request, where its peer is already.
    pub(super) fn of(request: &mut Request) -> Self {
        let request_id = RequestId::of(request.headers());
        let extensions = request.extensions_mut();
        extensions.insert(request_id.clone());
        let peer = extensions.get().cloned();
        Self { request_id, peer }
    }

    /// The requester in these extensions.
    pub(in crate::http) fn find(extensions: &Extensions) -> Self {
        Self {
            request_id: extensions.get().cloned().unwrap_or_default(),
            peer: extensions.get().cloned(),
        }
    }

    /// The address and port of the peer, for the log.
    pub(in crate::http) fn address(&self) -> Option<SocketAddr> {
        self.peer.as_ref().map(Peer::address)
    }

    /// The address under which the peer is counted.
    pub(in crate::http) fn ip(&self) -> IpAddr {
        self.address()
            .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip())
    }

    /// Whether the peer forwards requests of many clients, so that per-peer limits do not apply to it.
    pub(in crate::http) fn is_trusted_proxy(&self) -> bool {
        self.peer.as_ref().is_some_and(Peer::is_trusted_proxy)
    }
}
