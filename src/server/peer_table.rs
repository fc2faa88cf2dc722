//! The limits of each peer: one share for each network that is connected, or whose requests are under way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Semaphore;

use super::peer_address::network_of;
use crate::config::{ServerConfig, half};
use crate::limits::{Budget, Gate, PeerLimits};

/// How many requests of a peer may begin at a time that came right behind another one of their connection.
const PIPELINED: usize = 4;
/// The map of peers is swept when it has grown to twice its size after the last sweep, or to twice this.
const SWEEP_MIN: usize = 64;

/// The limits of all peers that are connected, or whose requests are under way.
#[derive(Debug)]
pub(super) struct PeerTable {
    shares: Shares,
    known: Mutex<KnownPeers>,
}

#[derive(Debug)]
struct KnownPeers {
    peers: HashMap<IpAddr, Weak<PeerLimits>>,
    sweep_at: usize,
}

impl PeerTable {
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
            known: Mutex::new(KnownPeers {
                peers: HashMap::new(),
                sweep_at: 2 * SWEEP_MIN,
            }),
        }
    }

    /// The limits of the peer with this address.
    pub(super) fn limits_of(&self, ip: IpAddr) -> Arc<PeerLimits> {
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

/// One peer's share of each limit.
#[derive(Clone, Debug)]
pub(super) struct Shares {
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
    pub(super) fn unlimited() -> Self {
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

    pub(super) fn limits(&self) -> Arc<PeerLimits> {
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
