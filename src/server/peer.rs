//! Peers: the remote address of a connection or of the client of a trusted proxy, and the limits that apply to all that
//! one peer does. What a proxy says about its client is read in `forwarded`.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use axum::http::HeaderMap;
use tokio::sync::Semaphore;
use tokio::task::yield_now;

use super::forwarded;
use super::peer_address::{PeerAddress, network_of};
use super::user_timeout::UserTimeout;
use crate::config::{AddressBlock, CertificateName, ServerConfig, half};
use crate::limits::{Budget, BudgetPermit, Gate, Limit, PeerLimits, RequestPermit};

/// A peer with fewer connections than this may use the reserved ones; the same number holds for requests.
const FEW: usize = 4;
/// How many requests of a peer may begin at a time that came right behind another one of their connection.
const PIPELINED: usize = 4;
/// The map of peers is swept when it has grown to twice its size after the last sweep, or to twice this.
const SWEEP_MIN: usize = 64;

/// The remote end of a connection, or the client of a trusted proxy. Handlers find it in the extensions of their request.
/// Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Peer {
    address: PeerAddress,
    is_trusted_proxy: bool,
    /// Where the clients of a trusted proxy are counted; `None` if what it says about them does not count.
    clients: Option<Arc<Peers>>,
    limits: Arc<PeerLimits>,
    user_timeout: UserTimeout,
    certificate: Option<Arc<[CertificateName]>>,
    request: Option<Result<RequestPermit, Limit>>,
}

impl Peer {
    /// A peer without limits, for requests to an app without a [`Server`](super::Server).
    #[must_use]
    pub fn unlimited(address: SocketAddr) -> Self {
        Self {
            address: address.into(),
            is_trusted_proxy: false,
            clients: None,
            limits: Shares::unlimited().limits(),
            user_timeout: UserTimeout::default(),
            certificate: None,
            request: None,
        }
    }

    /// The same peer, as a trusted proxy.
    #[must_use]
    pub fn trusted(self) -> Self {
        Self {
            is_trusted_proxy: true,
            ..self
        }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> PeerAddress {
        self.address
    }

    /// The address under which the peer is counted.
    #[must_use]
    pub fn network(&self) -> IpAddr {
        network_of(self.address.ip())
    }

    /// Whether it is configured as a trusted proxy, which forwards requests of many clients.
    #[must_use]
    pub fn is_trusted_proxy(&self) -> bool {
        self.is_trusted_proxy
    }

    /// The limits of this peer, shared by all of its connections. `None` for a trusted proxy.
    #[must_use]
    pub fn limits(&self) -> Option<&Arc<PeerLimits>> {
        (!self.is_trusted_proxy).then_some(&self.limits)
    }

    /// The peer of a request on this connection: a trusted proxy may say which of its clients it is from.
    pub(super) fn of_request(&self, headers: &HeaderMap) -> Self {
        match self
            .clients
            .as_ref()
            .and_then(|peers| peers.client(headers))
        {
            Some((ip, limits)) => Self {
                address: PeerAddress::Forwarded(ip),
                is_trusted_proxy: false,
                clients: None,
                limits,
                ..self.clone()
            },
            None => self.clone(),
        }
    }

    /// How long the peer may leave sent data unacknowledged on this connection.
    #[must_use]
    pub fn user_timeout(&self) -> &UserTimeout {
        &self.user_timeout
    }

    /// The share of this request in the limits on requests. Work that outlives the client keeps it.
    #[must_use]
    pub fn request(&self) -> Option<&RequestPermit> {
        self.request.as_ref()?.as_ref().ok()
    }

    /// The limit on requests that this request exceeds. Handlers refuse it.
    #[must_use]
    pub fn over_limit(&self) -> Option<Limit> {
        self.request.as_ref()?.as_ref().err().copied()
    }

    /// The names in the certificate that it has shown; `None` if it has shown none.
    #[must_use]
    pub fn certificate(&self) -> Option<&[CertificateName]> {
        self.certificate.as_deref()
    }

    /// The same peer, with the names in its certificate.
    #[must_use]
    pub fn with_certificate(self, certificate: Option<Arc<[CertificateName]>>) -> Self {
        Self {
            certificate,
            ..self
        }
    }

    /// The same peer, in a request with this share, or over this limit.
    #[must_use]
    pub fn in_request(self, request: Result<RequestPermit, Limit>) -> Self {
        Self {
            request: Some(request),
            ..self
        }
    }

    fn uses_few(&self, of: &Budget) -> bool {
        of.used() < FEW
    }

    /// Waits for the turn of a request that came right behind another one of its connection. All of them of one peer take
    /// turns, and yield to everybody else: otherwise 3,000 connections that are full of requests would all be served
    /// before a connection with a single one.
    pub(super) fn turn(&self) -> impl Future<Output = ()> + Send + use<> {
        let pipelined = Arc::clone(&self.limits.pipelined);
        async move {
            let _turn = pipelined.acquire().await;
            yield_now().await;
        }
    }

    /// Counts a TLS handshake, or returns the limit that is reached.
    pub(super) fn begin_handshake(&self, all: &Budget) -> Result<[BudgetPermit; 2], Limit> {
        let own = &self.limits.handshakes;
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if self.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::TlsHandshakesPerPeer),
        };
        let one = all.take(1).ok_or(Limit::TlsHandshakes)?;
        Ok([taken, one])
    }

    /// Counts an HTTP/2 connection, or returns the limit that is reached.
    pub(super) fn begin_http2(&self, all: &Budget) -> Result<[BudgetPermit; 2], Limit> {
        let own = &self.limits.http2_connections;
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if self.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::Http2ConnectionsPerPeer),
        };
        let one = all.take(1).ok_or(Limit::Http2Connections)?;
        Ok([taken, one])
    }

    /// Counts a request of the peer, or returns the limit that is reached. A peer with few other requests may exceed
    /// the limit for all peers, so that probes always get a response; not one that a proxy names, which costs its sender
    /// no connection.
    pub(super) fn begin_request(&self, all: &Budget) -> Result<RequestPermit, Limit> {
        let own = &self.limits.requests;
        let is_forwarded = matches!(self.address, PeerAddress::Forwarded(_));
        let is_small = !is_forwarded && self.uses_few(own);
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if self.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::RequestsPerPeer),
        };
        match all.take(1) {
            Some(one) => Ok(self.permit(taken, one)),
            None if is_small => Ok(self.permit(taken, all.take_anyway(1))),
            None => Err(Limit::Requests),
        }
    }

    fn permit(&self, of_peer: BudgetPermit, of_all: BudgetPermit) -> RequestPermit {
        let peer = Arc::clone(&self.limits);
        RequestPermit::new(of_peer, of_all, peer)
    }
}

/// One peer's share of each limit.
#[derive(Clone, Debug)]
struct Shares {
    connections: usize,
    http2_connections: usize,
    handshakes: usize,
    requests: usize,
    answer_bytes: usize,
    body_bytes: usize,
    operations: usize,
    listings: usize,
    event_streams: usize,
    renewals: usize,
}

impl Shares {
    fn unlimited() -> Self {
        Self {
            connections: usize::MAX,
            http2_connections: usize::MAX,
            handshakes: usize::MAX,
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
            handshakes: Budget::new(self.handshakes),
            requests: Budget::new(self.requests),
            answer_bytes: Budget::new(self.answer_bytes),
            body_bytes: Budget::new(self.body_bytes),
            operations: Gate::new(self.operations),
            listings: Gate::new(self.listings),
            event_streams: Gate::new(self.event_streams),
            places: Budget::new(usize::MAX),
            renewals: Gate::new(self.renewals),
            closings: Gate::new(self.renewals),
            pipelined: Arc::new(Semaphore::new(PIPELINED)),
        })
    }
}

/// The limits of all peers that are connected, or whose requests are under way.
#[derive(Debug)]
pub(super) struct Peers {
    shares: Shares,
    trusted_proxies: Vec<AddressBlock>,
    /// Whether trusted proxies say where their clients are.
    forwarded_for: bool,
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
                handshakes: half(config.tls_handshakes_max),
                requests: half(config.requests_max),
                answer_bytes: half(config.answer_bytes_max),
                body_bytes: half(config.body_bytes_total_max),
                operations: half(config.operations_max),
                listings: half(config.listings_max),
                event_streams: half(config.event_streams_max),
                renewals: half(config.renewals_max),
            },
            trusted_proxies: config.trusted_proxies.clone(),
            forwarded_for: config.forwarded_for,
            known: Mutex::new(KnownPeers {
                peers: HashMap::new(),
                sweep_at: 2 * SWEEP_MIN,
            }),
        }
    }

    /// Counts a connection of the peer, or returns the limit that is reached. `is_reserve`: only the connections
    /// reserved for peers with few connections are left.
    pub(super) fn connect(
        self: &Arc<Self>,
        address: PeerAddress,
        is_reserve: bool,
    ) -> Result<(Peer, BudgetPermit), Limit> {
        let ip = address.ip();
        // What stands for a user is no address of a proxy, whatever network is named.
        let is_local = matches!(address, PeerAddress::Unix { .. });
        let is_trusted_proxy = !is_local && self.is_trusted(ip);
        let peer = Peer {
            address,
            is_trusted_proxy,
            clients: (is_trusted_proxy && self.forwarded_for).then(|| Arc::clone(self)),
            limits: self.limits_of(ip),
            user_timeout: UserTimeout::default(),
            certificate: None,
            request: None,
        };
        let own = &peer.limits.connections;
        if is_reserve && !peer.uses_few(own) {
            return Err(Limit::ConnectionsReserved);
        }
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if peer.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::ConnectionsPerPeer),
        };
        Ok((peer, taken))
    }

    /// The client of a request of a trusted proxy, if the proxy says where it is.
    fn client(&self, headers: &HeaderMap) -> Option<(IpAddr, Arc<PeerLimits>)> {
        let ip = forwarded::client_address(headers, |ip| self.is_trusted(ip))?;
        Some((ip, self.limits_of(ip)))
    }

    fn is_trusted(&self, ip: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|block| block.contains(ip))
    }

    fn limits_of(&self, ip: IpAddr) -> Arc<PeerLimits> {
        let key = network_of(ip);
        if let Some(limits) = self.known().peers.get(&key).and_then(Weak::upgrade) {
            return limits;
        }
        // Allocated while no other peer waits for the map.
        let limits = self.shares.limits();
        let mut known = self.known();
        // Another connection of the peer may have come first; both have one share.
        if let Some(earlier) = known.peers.get(&key).and_then(Weak::upgrade) {
            return earlier;
        }
        if known.peers.len() >= known.sweep_at {
            known.peers.retain(|_, limits| limits.strong_count() > 0);
            known.sweep_at = 2 * known.peers.len().max(SWEEP_MIN);
        }
        known.peers.insert(key, Arc::downgrade(&limits));
        limits
    }

    fn known(&self) -> MutexGuard<'_, KnownPeers> {
        // Poisoning is harmless: a map of weak references is valid after a panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
