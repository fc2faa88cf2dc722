//! All limits, which share one metric, and the counters of what they refused. Where each one is enforced is not known here.

use std::sync::Arc;

use metrics::Counter;

use crate::telemetry::Metrics;

/// Every limit whose refusals are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Connections of one peer address.
    ConnectionsPerPeer,
    /// The last connections, reserved for peers with few connections.
    ConnectionsReserved,
    /// TLS handshakes of one peer address.
    TlsHandshakesPerPeer,
    /// TLS handshakes in total.
    TlsHandshakes,
    /// HTTP/2 connections of one peer address.
    Http2ConnectionsPerPeer,
    /// HTTP/2 connections in total.
    Http2Connections,
    /// Bytes that an HTTP/2 connection sends beyond its requests.
    Http2Flood,
    /// Requests of one peer address.
    RequestsPerPeer,
    /// Requests in total.
    Requests,
    /// Time to receive the head of a request.
    HeadTimeout,
    /// Bytes and headers of the head of one request.
    HeadSize,
    /// Bytes of one token of an issuer.
    TokenSize,
    /// Time to receive the body of a request.
    BodyTimeout,
    /// Bytes of one request body.
    BodySize,
    /// Time in which a peer must accept a part of a response.
    WriteTimeout,
    /// Time in which a peer must accept a whole response.
    AnswerTimeout,
    /// Bytes of large request bodies in flight from one peer address.
    BodyBytesPerPeer,
    /// Bytes of large request bodies in flight in total.
    BodyBytes,
    /// Bytes of large responses in flight to one peer address.
    AnswerBytesPerPeer,
    /// Bytes of large responses in flight in total.
    AnswerBytes,
    /// Operations in flight for one peer address, except renewals, releases and listings.
    OperationsPerPeer,
    /// Operations in flight in total, except renewals, releases and listings.
    Operations,
    /// Renewals and releases in flight for one peer address.
    RenewalsPerPeer,
    /// Renewals and releases in flight in total.
    Renewals,
    /// Listings in flight for one peer address.
    ListingsPerPeer,
    /// Listings in flight in total.
    Listings,
    /// Event streams of one peer address.
    EventStreamsPerPeer,
    /// Event streams in total.
    EventStreams,
    /// Recent events, kept for streams that fall behind.
    EventsKept,
    /// Places in queues, of waiters of one peer address.
    WaitersPerPeer,
    /// Places in queues, of all waiters.
    Waiters,
    /// Places in the queue of one lock.
    WaitersPerLock,
    /// Requests per second of all clients, except renewals and releases.
    RequestRate,
    /// Requests per second of one principal, except renewals and releases.
    RequestRatePerPrincipal,
    /// Places in queues, of waiters of one principal.
    WaitersPerPrincipal,
    /// Leases of one principal.
    LocksPerPrincipal,
    /// Leases of all together.
    LocksHeld,
    /// Leases and places in queues that the embedded store keeps.
    Locks,
}

impl Limit {
    /// Every limit.
    pub const ALL: [Self; 38] = [
        Self::ConnectionsPerPeer,
        Self::ConnectionsReserved,
        Self::TlsHandshakesPerPeer,
        Self::TlsHandshakes,
        Self::Http2ConnectionsPerPeer,
        Self::Http2Connections,
        Self::Http2Flood,
        Self::RequestsPerPeer,
        Self::Requests,
        Self::HeadTimeout,
        Self::HeadSize,
        Self::TokenSize,
        Self::BodyTimeout,
        Self::BodySize,
        Self::WriteTimeout,
        Self::AnswerTimeout,
        Self::BodyBytesPerPeer,
        Self::BodyBytes,
        Self::AnswerBytesPerPeer,
        Self::AnswerBytes,
        Self::OperationsPerPeer,
        Self::Operations,
        Self::RenewalsPerPeer,
        Self::Renewals,
        Self::ListingsPerPeer,
        Self::Listings,
        Self::EventStreamsPerPeer,
        Self::EventStreams,
        Self::EventsKept,
        Self::WaitersPerPeer,
        Self::Waiters,
        Self::WaitersPerLock,
        Self::RequestRate,
        Self::RequestRatePerPrincipal,
        Self::WaitersPerPrincipal,
        Self::LocksPerPrincipal,
        Self::LocksHeld,
        Self::Locks,
    ];

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::ConnectionsPerPeer => "connections_per_peer",
            Self::ConnectionsReserved => "connections_reserved",
            Self::TlsHandshakesPerPeer => "tls_handshakes_per_peer",
            Self::TlsHandshakes => "tls_handshakes",
            Self::Http2ConnectionsPerPeer => "http2_connections_per_peer",
            Self::Http2Connections => "http2_connections",
            Self::Http2Flood => "http2_flood",
            Self::RequestsPerPeer => "requests_per_peer",
            Self::Requests => "requests",
            Self::HeadTimeout => "head_timeout",
            Self::HeadSize => "head_size",
            Self::TokenSize => "token_size",
            Self::BodyTimeout => "body_timeout",
            Self::BodySize => "body_size",
            Self::WriteTimeout => "write_timeout",
            Self::AnswerTimeout => "answer_timeout",
            Self::BodyBytesPerPeer => "body_bytes_per_peer",
            Self::BodyBytes => "body_bytes",
            Self::AnswerBytesPerPeer => "answer_bytes_per_peer",
            Self::AnswerBytes => "answer_bytes",
            Self::OperationsPerPeer => "operations_per_peer",
            Self::Operations => "operations",
            Self::RenewalsPerPeer => "renewals_per_peer",
            Self::Renewals => "renewals",
            Self::ListingsPerPeer => "listings_per_peer",
            Self::Listings => "listings",
            Self::EventStreamsPerPeer => "event_streams_per_peer",
            Self::EventStreams => "event_streams",
            Self::EventsKept => "events_kept",
            Self::WaitersPerPeer => "waiters_per_peer",
            Self::Waiters => "waiters",
            Self::WaitersPerLock => "waiters_per_lock",
            Self::RequestRate => "request_rate",
            Self::RequestRatePerPrincipal => "request_rate_per_principal",
            Self::WaitersPerPrincipal => "waiters_per_principal",
            Self::LocksPerPrincipal => "locks_per_principal",
            Self::LocksHeld => "locks_held",
            Self::Locks => "locks",
        }
    }
}

/// Counters of what limits refused. Clones share them.
#[derive(Clone)]
pub struct Refusals(Arc<[Counter]>);

impl Refusals {
    /// Registers a counter for each limit.
    #[must_use]
    pub fn new(registry: &Metrics) -> Self {
        let help = "What limits refused or ended on this process, by limit.";
        let counter = |limit: Limit| {
            registry.counter("leasehold_refused_total", help, &[("limit", limit.label())])
        };
        Self(Limit::ALL.map(counter).into())
    }

    /// Counters that no metric shows.
    #[must_use]
    pub fn uncounted() -> Self {
        Self(Limit::ALL.map(|_| Counter::noop()).into())
    }

    /// Counts something that the limit refused or ended.
    pub fn count(&self, limit: Limit) {
        self.0[limit as usize].increment(1);
    }
}

impl std::fmt::Debug for Refusals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refusals")
    }
}
