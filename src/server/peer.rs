//! Peers: who is at the other end of a connection, and what one of them has in use on all of its connections together.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::user_timeout::UserTimeout;
use crate::config::{AddressBlock, ServerConfig, half};
use crate::limits::{Budget, Gate, Limit, PeerLimits, Taken};

/// As many connections as a peer may have that is let in though only the reserve is left, and as many requests.
const HARDLY_ANY: usize = 4;
/// The map of peers is cleared of those that are gone whenever it has grown to twice this or to twice its size.
const SWEEP_MIN: usize = 64;

/// Who is at the other end of a connection. Handlers find it among the extensions of their request. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Peer {
    address: SocketAddr,
    is_trusted_proxy: bool,
    limits: Arc<PeerLimits>,
    patience: UserTimeout,
}

impl Peer {
    /// A peer that no limit holds for. A [`Server`](super::Server) knows its peers; this is for requests that come to an
    /// app without one.
    #[must_use]
    pub fn unlimited(address: SocketAddr) -> Self {
        Self {
            address,
            is_trusted_proxy: false,
            limits: Shares::of_all().limits(),
            patience: UserTimeout::default(),
        }
    }

    /// The same peer as a proxy that is trusted.
    #[must_use]
    pub fn trusted(self) -> Self {
        Self {
            is_trusted_proxy: true,
            ..self
        }
    }

    /// The address and port that the connection comes from: the client's own, or that of the last proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it is a proxy that is configured to be trusted: it speaks for many clients, and what it says of their
    /// addresses is believed.
    #[must_use]
    pub fn is_trusted_proxy(&self) -> bool {
        self.is_trusted_proxy
    }

    /// What it has in use, together with its other connections. A trusted proxy is not limited by it.
    #[must_use]
    pub fn limits(&self) -> Option<&Arc<PeerLimits>> {
        (!self.is_trusted_proxy).then_some(&self.limits)
    }

    /// How long it may leave unacknowledged what is sent to it on this connection.
    #[must_use]
    pub fn user_timeout(&self) -> &UserTimeout {
        &self.patience
    }

    fn has_hardly_any(&self, of: &Budget) -> bool {
        of.used() < HARDLY_ANY
    }

    /// Counts a connection of HTTP/2, or says which limit is in the way.
    pub(super) fn begin_http2(&self, all: &Budget) -> Result<[Taken; 2], Limit> {
        let own = &self.limits.http2_connections;
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if self.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::Http2ConnectionsPerPeer),
        };
        let one = all.take(1).ok_or(Limit::Http2Connections)?;
        Ok([taken, one])
    }

    /// Counts a request of the peer, or says which limit is in the way. A peer that has hardly any others is let in
    /// though all together have too many, so that probes are always answered.
    pub(super) fn begin_request(&self, all: &Budget) -> Result<[Taken; 2], Limit> {
        let own = &self.limits.requests;
        let is_small = self.has_hardly_any(own);
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if self.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::RequestsPerPeer),
        };
        match all.take(1) {
            Some(one) => Ok([taken, one]),
            None if is_small => Ok([taken, all.take_anyway(1)]),
            None => Err(Limit::Requests),
        }
    }
}

/// The most that one peer may have of each limit.
#[derive(Clone, Debug)]
struct Shares {
    connections: usize,
    http2_connections: usize,
    requests: usize,
    answer_bytes: usize,
    body_bytes: usize,
    operations: usize,
    listings: usize,
    event_streams: usize,
    renewals: usize,
}

impl Shares {
    fn of_all() -> Self {
        Self {
            connections: usize::MAX,
            http2_connections: usize::MAX,
            requests: usize::MAX,
            answer_bytes: usize::MAX,
            body_bytes: usize::MAX,
            operations: usize::MAX,
            listings: usize::MAX,
            event_streams: usize::MAX,
            renewals: usize::MAX,
        }
    }

    fn limits(&self) -> Arc<PeerLimits> {
        Arc::new(PeerLimits {
            connections: Budget::new(self.connections),
            http2_connections: Budget::new(self.http2_connections),
            requests: Budget::new(self.requests),
            answer_bytes: Budget::new(self.answer_bytes),
            body_bytes: Budget::new(self.body_bytes),
            operations: Gate::new(self.operations),
            listings: Gate::new(self.listings),
            event_streams: Gate::new(self.event_streams),
            places: Budget::new(usize::MAX),
            renewals: Gate::new(self.renewals),
        })
    }
}

/// All peers that have something in use.
#[derive(Debug)]
pub(super) struct Peers {
    shares: Shares,
    trusted_proxies: Vec<AddressBlock>,
    known: Mutex<KnownPeers>,
}

#[derive(Debug)]
struct KnownPeers {
    peers: HashMap<IpAddr, Weak<PeerLimits>>,
    sweep_at: usize,
}

impl Peers {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            shares: Shares {
                connections: config.connections_of_peer(),
                http2_connections: half(config.http2_connections_max),
                requests: half(config.requests_max),
                answer_bytes: half(config.answer_bytes_max),
                body_bytes: half(config.body_bytes_total_max),
                operations: half(config.operations_max),
                listings: half(config.listings_max),
                event_streams: half(config.event_streams_max),
                renewals: half(config.renewals_max),
            },
            trusted_proxies: config.trusted_proxies.clone(),
            known: Mutex::new(KnownPeers {
                peers: HashMap::new(),
                sweep_at: 2 * SWEEP_MIN,
            }),
        }
    }

    /// Counts a connection of the peer, or says which limit is in the way. `is_reserve` says that only those connections
    /// are left that are kept for peers that have hardly any.
    pub(super) fn connect(
        &self,
        address: SocketAddr,
        is_reserve: bool,
    ) -> Result<(Peer, Taken), Limit> {
        let ip = address.ip().to_canonical();
        let peer = Peer {
            address,
            is_trusted_proxy: self.trusted_proxies.iter().any(|block| block.contains(ip)),
            limits: self.limits_of(ip),
            patience: UserTimeout::default(),
        };
        let own = &peer.limits.connections;
        if is_reserve && !peer.has_hardly_any(own) {
            return Err(Limit::ConnectionsReserved);
        }
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if peer.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::ConnectionsPerPeer),
        };
        Ok((peer, taken))
    }

    fn limits_of(&self, ip: IpAddr) -> Arc<PeerLimits> {
        // A map of weak references is whole whoever panicked.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = network_of(ip);
        if let Some(limits) = known.peers.get(&key).and_then(Weak::upgrade) {
            return limits;
        }
        if known.peers.len() >= known.sweep_at {
            known.peers.retain(|_, limits| limits.strong_count() > 0);
            known.sweep_at = 2 * known.peers.len().max(SWEEP_MIN);
        }
        let limits = self.shares.limits();
        known.peers.insert(key, Arc::downgrade(&limits));
        limits
    }
}

/// What counts as one peer. Whoever has one IPv6 address usually has 2^64 of them (RFC 6177).
#[must_use]
pub fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(network.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let key = |text: &str| network_of(text.parse().expect("an address"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1:2:3"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
    }
}
