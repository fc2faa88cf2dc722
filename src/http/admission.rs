//! Admission control for store operations: how many may be in flight, per peer and in all. Renewals and releases have a
//! limit of their own that nothing else can use up; so do listings (a small one, since they read all locks) and event
//! streams. An admitted operation keeps its slot until it is over.

use std::slice;
use std::time::Duration;

use tokio::time::Instant;

use super::app::{App, HttpSettings};
use super::problem::Problem;
use super::requester::Requester;
use crate::domain::{Claim, LockName, Metadata};
use crate::limits::{Gate, LeaseBudget, Limit, Slot};
use crate::server::Peer;
use crate::service::LockService;

/// The kind of an operation, which determines its limit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation<'a> {
    /// Inspects one lock.
    Inspect(&'a LockName),
    /// Acquires the locks of a claim.
    Acquire {
        claim: &'a Claim,
        /// Whether the claim may enter their queues.
        waits: bool,
    },
    /// Lists locks.
    List,
    /// Streams events until the client disconnects. It never waits for a slot.
    Watch,
    /// Renews or releases this many leases: a client that cannot do so loses a lock, or blocks it for others.
    Keep(usize),
    /// Evicts the holders of one lock.
    Evict,
}

/// The weight of an operation on several locks, for each of them: it blocks the store for all others until it is done. A
/// refused acquire of 64 locks does so for 3.6 ms, a renewal for 1.8 ms, with 100 holders each.
const WEIGHT_OF_EACH: usize = 4;
/// The weight of an acquire that may enter a queue: entering and leaving it takes the store longer than a refusal.
const WEIGHT_OF_WAIT: usize = 4;
/// The weight of an eviction, which takes several steps.
const WEIGHT_OF_EVICTION: usize = 4;
/// An answer that lists this many holders takes the store longer by about one refusal.
const HOLDERS_OF_WEIGHT: usize = 4;
/// Redis parses and copies the owner and the metadata of a claim: 4 KiB of them take it as long as four plain requests.
const BYTES_OF_WEIGHT: usize = 1024;

impl Operation<'_> {
    /// How long the store is busy with it, as a multiple of the shortest operations.
    fn weight(self, service: &LockService) -> usize {
        let listed = |names| service.expected_holders(names) / HOLDERS_OF_WEIGHT;
        match self {
            Self::List | Self::Watch | Self::Keep(1) => 1,
            Self::Inspect(name) => 1 + listed(slice::from_ref(name)),
            Self::Acquire { claim, waits } => {
                let least = match (claim.names.len(), waits) {
                    (1, false) => 1,
                    (1, true) => WEIGHT_OF_WAIT,
                    (several, _) => WEIGHT_OF_EACH * several,
                };
                let metadata = claim.metadata.as_ref().map_or("", Metadata::as_json);
                let texts = claim.owner.as_str().len() + metadata.len();
                least + texts / BYTES_OF_WEIGHT + listed(&claim.names)
            }
            Self::Keep(several) => WEIGHT_OF_EACH * several,
            Self::Evict => WEIGHT_OF_EVICTION,
        }
    }
}

/// The limits over all peers.
#[derive(Debug)]
pub(super) struct Admission {
    operations: Gate,
    listings: Gate,
    event_streams: Gate,
    renewals: Gate,
    /// How long an operation waits for a slot.
    timeout: Duration,
}

impl Admission {
    pub(super) fn new(settings: &HttpSettings) -> Self {
        Self {
            operations: Gate::new(settings.operations_max),
            listings: Gate::new(settings.listings_max),
            event_streams: Gate::new(settings.event_streams_max),
            renewals: Gate::new(settings.renewals_max),
            timeout: settings.admission_timeout,
        }
    }

    /// The renewals of all peers. Those of streams count, too.
    pub(super) fn renewals(&self) -> &Gate {
        &self.renewals
    }
}

impl App {
    /// Waits for a slot and returns the service to run one operation with.
    ///
    /// # Errors
    /// No slot was free in time.
    pub(super) async fn admit(
        &self,
        operation: Operation<'_>,
        requester: &Requester,
    ) -> Result<LockService, Problem> {
        let slot = self.slot(operation, requester).await?;
        Ok(self.service().within(slot))
    }

    /// Waits for a slot for one operation.
    ///
    /// # Errors
    /// No slot was free in time.
    pub(super) async fn slot(
        &self,
        operation: Operation<'_>,
        requester: &Requester,
    ) -> Result<Slot, Problem> {
        let admission = self.admission();
        let request = requester.peer.as_ref().and_then(Peer::request).cloned();
        let peer = requester.limits();
        let timeout = match operation {
            Operation::Watch => Duration::ZERO,
            Operation::Inspect(_)
            | Operation::Acquire { .. }
            | Operation::List
            | Operation::Keep(_)
            | Operation::Evict => admission.timeout,
        };
        let deadline = Instant::now() + timeout;
        let (of_all, of_peer) = match operation {
            Operation::Inspect(_) | Operation::Acquire { .. } => (
                (&admission.operations, Limit::Operations),
                peer.map(|peer| (peer, &peer.operations, Limit::OperationsPerPeer)),
            ),
            Operation::List => (
                (&admission.listings, Limit::Listings),
                peer.map(|peer| (peer, &peer.listings, Limit::ListingsPerPeer)),
            ),
            Operation::Watch => (
                (&admission.event_streams, Limit::EventStreams),
                peer.map(|peer| (peer, &peer.event_streams, Limit::EventStreamsPerPeer)),
            ),
            Operation::Keep(_) | Operation::Evict => (
                (&admission.renewals, Limit::Renewals),
                peer.map(|peer| (peer, &peer.renewals, Limit::RenewalsPerPeer)),
            ),
        };
        let slot = Slot::take(
            of_all,
            of_peer,
            request,
            || operation.weight(self.service()),
            deadline,
        )
        .await;
        let slot = slot.map_err(|limit| {
            self.refusals().count(limit);
            Problem::over_limit(limit)
        })?;
        let leases = LeaseBudget::of(requester.leases(), self.leases());
        Ok(slot.with_quota(requester.places().cloned(), leases))
    }
}
