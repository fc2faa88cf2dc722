//! Room for operations of the store: what one peer and all together may have under way, a share for renewals and releases
//! that nothing else can take, a small one for listings, which look at all locks, and one for event streams. Who is let in
//! keeps its room until the operation is over.

use std::time::Duration;

use axum::http::Extensions;
use tokio::time::Instant;

use super::app::{App, Settings};
use super::problem::Problem;
use crate::limits::{Gate, Limit, Slot};
use crate::server::Peer;
use crate::service::LockService;

/// What an operation does, as far as its room is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// It looks at something.
    Ask,
    /// It asks for so many locks, and takes as many times as long as one lock takes.
    Claim(usize),
    /// It looks at all locks.
    List,
    /// It is told of events for as long as it likes. It does not wait for its turn.
    Watch,
    /// It keeps a lease or ends one: whoever cannot do that loses a lock, or blocks it.
    Keep,
}

/// The room that there is for all.
#[derive(Debug)]
pub(super) struct Admission {
    ask: Gate,
    list: Gate,
    watch: Gate,
    keep: Gate,
    /// How long an operation waits for its turn.
    patience: Duration,
}

impl Admission {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            ask: Gate::new(settings.operations_max),
            list: Gate::new(settings.listings_max),
            watch: Gate::new(settings.event_streams_max),
            keep: Gate::new(settings.renewals_max),
            patience: settings.admission_timeout,
        }
    }
}

impl App {
    /// The service for one operation, as soon as there is room for it.
    ///
    /// # Errors
    /// There was none in time.
    pub(super) async fn admit(
        &self,
        operation: Operation,
        extensions: &Extensions,
    ) -> Result<LockService, Problem> {
        let slot = self.slot(operation, extensions).await?;
        Ok(self.service().within(slot))
    }

    /// Room for one operation.
    ///
    /// # Errors
    /// There was none in time.
    pub(super) async fn slot(
        &self,
        operation: Operation,
        extensions: &Extensions,
    ) -> Result<Slot, Problem> {
        let admission = self.admission();
        let peer = extensions.get().and_then(Peer::limits);
        let patience = match operation {
            Operation::Watch => Duration::ZERO,
            Operation::Ask | Operation::Claim(_) | Operation::List | Operation::Keep => {
                admission.patience
            }
        };
        let deadline = Instant::now() + patience;
        let (of_all, of_peer) = match operation {
            Operation::Ask | Operation::Claim(_) => (
                (&admission.ask, Limit::Operations),
                peer.map(|peer| (peer, &peer.operations, Limit::OperationsPerPeer)),
            ),
            Operation::List => (
                (&admission.list, Limit::Listings),
                peer.map(|peer| (peer, &peer.listings, Limit::ListingsPerPeer)),
            ),
            Operation::Watch => (
                (&admission.watch, Limit::EventStreams),
                peer.map(|peer| (peer, &peer.event_streams, Limit::EventStreamsPerPeer)),
            ),
            Operation::Keep => (
                (&admission.keep, Limit::Renewals),
                peer.map(|peer| (peer, &peer.renewals, Limit::RenewalsPerPeer)),
            ),
        };
        let counts = match operation {
            Operation::Claim(locks) => locks,
            Operation::Ask | Operation::List | Operation::Watch | Operation::Keep => 1,
        };
        let slot = Slot::take(of_all, of_peer, counts, deadline).await;
        slot.map_err(|limit| {
            self.refusals().count(limit);
            Problem::over_limit(limit)
        })
    }
}
