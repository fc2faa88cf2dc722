//! Peers: the remote address of a connection or of the client of a trusted proxy, and the limits that apply to all that
//! one peer does. What a proxy says about its client is read in `forwarded`; the limits are kept in `peer_table`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::HeaderMap;
use tokio::task::yield_now;

use super::forwarded;
use super::peer_address::{PeerAddress, network_of};
use super::peer_table::{PeerTable, Shares};
use super::user_timeout::UserTimeout;
use crate::config::{AddressBlock, CertificateName, ServerConfig};
use crate::limits::{Budget, BudgetPermit, Limit, PeerLimits, RequestPermit};

/// A peer with fewer connections than this may use the reserved ones; the same number holds for requests.
const FEW: usize = 4;

/// The remote end of a connection, or the client of a trusted proxy. Handlers find it in the extensions of their request.
/// Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Peer {
    address: PeerAddress,
    is_trusted_proxy: bool,
    /// Where the clients of a trusted proxy are counted; `None` if what it says about them does not count.
    clients: Option<Arc<Peers>>,
    /// Its limits in this process, whichever address it has connected to.
    limits: Arc<PeerLimits>,
    /// Its share of the connections and requests of this address; `None` where that is its share in the process.
    of_address: OfAddress,
    user_timeout: UserTimeout,
    is_encrypted: bool,
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
            of_address: None,
            user_timeout: UserTimeout::default(),
            is_encrypted: false,
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
            Some((ip, limits, of_address)) => Self {
                address: PeerAddress::Forwarded(ip),
                is_trusted_proxy: false,
                clients: None,
                limits,
                of_address,
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

    /// Whether its connection has the TLS of this process.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// The same peer, after a TLS handshake in which it has shown a certificate with these names, or none.
    #[must_use]
    pub fn after_handshake(self, certificate: Option<Arc<[CertificateName]>>) -> Self {
        Self {
            is_encrypted: true,
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
        let pipelined = Arc::clone(&self.limits_here().pipelined);
        async move {
            let _turn = pipelined.acquire().await;
            yield_now().await;
        }
    }

    /// Counts a TLS handshake, or returns the limit that is reached.
    pub(super) fn begin_handshake(&self, all: &Budget) -> Result<[BudgetPermit; 2], Limit> {
        let own = &self.limits_here().handshakes;
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
        let own = &self.limits_here().http2_connections;
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if self.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::Http2ConnectionsPerPeer),
        };
        let one = all.take(1).ok_or(Limit::Http2Connections)?;
        Ok([taken, one])
    }

    /// Counts a request of the peer at its address, or returns the limit that is reached. A peer with few other requests may
    /// exceed the limit for all peers, so that probes always get a response; not one that a proxy names, which costs its
    /// sender no connection.
    pub(super) fn begin_request(&self, all: &Budget) -> Result<RequestPermit, Limit> {
        self.take_request(self.limits_here(), all)
    }

    /// The same peer, in a request that counts among all of the process: `all` are those of the server whose limits it has.
    #[must_use]
    pub fn in_request_of_process(self, all: &Budget) -> Self {
        let request = self.take_request(&self.limits, all);
        self.in_request(request)
    }

    fn take_request(&self, limits: &Arc<PeerLimits>, all: &Budget) -> Result<RequestPermit, Limit> {
        let own = &limits.requests;
        let is_forwarded = matches!(self.address, PeerAddress::Forwarded(_));
        let is_small = !is_forwarded && self.uses_few(own);
        let taken = match own.take(1) {
            Some(taken) => taken,
            None if self.is_trusted_proxy => own.take_anyway(1),
            None => return Err(Limit::RequestsPerPeer),
        };
        let one = match all.take(1) {
            Some(one) => one,
            None if is_small => all.take_anyway(1),
            None => return Err(Limit::Requests),
        };
        Ok(RequestPermit::new(taken, one, Arc::clone(limits)))
    }

    /// Its share of what the address has by itself that it has connected to. `None` for a trusted proxy.
    #[must_use]
    pub fn limits_of_address(&self) -> Option<&Arc<PeerLimits>> {
        (!self.is_trusted_proxy).then_some(self.limits_here())
    }

    /// Its share of the connections, handshakes and requests of the address that it has connected to.
    fn limits_here(&self) -> &Arc<PeerLimits> {
        self.of_address.as_ref().unwrap_or(&self.limits)
    }
}

/// The peers of one address: their limits, and which of them are proxies.
#[derive(Debug)]
pub(super) struct Peers {
    /// One for all addresses of the process.
    of_process: Arc<PeerTable>,
    /// For an address whose connections and requests do not count at the others. Only these shares of it are used.
    of_address: Option<PeerTable>,
    trusted_proxies: Vec<AddressBlock>,
    /// Whether trusted proxies say where their clients are.
    forwarded_for: bool,
}

impl Peers {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            of_process: Arc::new(PeerTable::new(config)),
            of_address: None,
            trusted_proxies: config.trusted_proxies.clone(),
            forwarded_for: config.forwarded_for,
        }
    }

    /// The peers of another address of the process, whose connections and requests have limits of their own.
    pub(super) fn of_another_address(&self, config: &ServerConfig) -> Self {
        Self {
            of_process: Arc::clone(&self.of_process),
            of_address: Some(PeerTable::new(config)),
            trusted_proxies: self.trusted_proxies.clone(),
            forwarded_for: self.forwarded_for,
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
        let (limits, of_address) = self.limits_of(ip);
        let peer = Peer {
            address,
            is_trusted_proxy,
            clients: (is_trusted_proxy && self.forwarded_for).then(|| Arc::clone(self)),
            limits,
            of_address,
            user_timeout: UserTimeout::default(),
            is_encrypted: false,
            certificate: None,
            request: None,
        };
        let own = &peer.limits_here().connections;
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

    /// The client of a request of a trusted proxy, if the proxy says where it is, and its limits.
    fn client(&self, headers: &HeaderMap) -> Option<(IpAddr, Arc<PeerLimits>, OfAddress)> {
        let ip = forwarded::client_address(headers, |ip| self.is_trusted(ip))?;
        let (limits, of_address) = self.limits_of(ip);
        Some((ip, limits, of_address))
    }

    fn is_trusted(&self, ip: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|block| block.contains(ip))
    }

    fn limits_of(&self, ip: IpAddr) -> (Arc<PeerLimits>, OfAddress) {
        let of_address = self.of_address.as_ref();
        (
            self.of_process.limits_of(ip),
            of_address.map(|peers| peers.limits_of(ip)),
        )
    }
}

/// A peer's share of what one address has for itself.
type OfAddress = Option<Arc<PeerLimits>>;
