//! Metrics of the store, as seen from this process, and spans of the operations of a store that records none itself.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};
use tokio::time::Instant;

use super::Labelled;
use crate::store::{Fault, NodeHealth, PoolHealth, StoreError, StoreHealth};
use crate::telemetry::Metrics;
use crate::telemetry::traces::{self, SpanKind};

const DURATION: &str = "leasehold_store_operation_duration_seconds";
const OPERATIONS: [&str; 9] = [
    "acquire", "park", "renew", "release", "evict", "withdraw", "inspect", "list", "count",
];

pub(super) const BUCKETS: (&str, &[f64]) = (
    DURATION,
    &[
        0.00025, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0,
    ],
);

pub(in crate::service) struct StoreMetrics {
    answered: Labelled<Histogram>,
    failed: Labelled<Histogram>,
    errors: Labelled<Counter>,
    up: Gauge,
    refused: Gauge,
    recovering: Gauge,
    clock_offset: Gauge,
    held_locks: Gauge,
    scan_steps: Labelled<Counter>,
    pool: PoolMetrics,
    file_bytes: Gauge,
    disk_full: Gauge,
    commits: Labelled<Counter>,
    mismatches: Counter,
    fencing_regressions: Counter,
    nodes: Box<[NodeMetrics]>,
    /// What traces call the store, if it records no spans itself.
    traced_as: Option<&'static str>,
}

/// The metrics of the connections to the store.
struct PoolMetrics {
    connections: Gauge,
    connections_max: Gauge,
    waits: Counter,
    timeouts: Counter,
}

impl PoolMetrics {
    fn new(registry: &Metrics) -> Self {
        Self {
            connections: registry.gauge(
                "leasehold_store_pool_connections",
                "Open connections to the store.",
                &[],
            ),
            connections_max: registry.gauge(
                "leasehold_store_pool_max_connections",
                "The maximum of connections to the store, over all threads.",
                &[],
            ),
            waits: registry.counter(
                "leasehold_store_pool_waits_total",
                "Attempts of requests that found no open connection to the store at once.",
                &[],
            ),
            timeouts: registry.counter(
                "leasehold_store_pool_timeouts_total",
                "Attempts of requests that found no connection to the store in time.",
                &[],
            ),
        }
    }

    fn health(&self, pool: PoolHealth) {
        self.connections.set(f64::from(pool.open));
        self.connections_max.set(f64::from(pool.max));
        self.waits.absolute(pool.waits);
        self.timeouts.absolute(pool.timeouts);
    }
}

/// The metrics of one node of a quorum.
struct NodeMetrics {
    votes: Gauge,
    clock_offset: Gauge,
    dropped_follow_ups: Counter,
    disagreements: Counter,
}

impl NodeMetrics {
    fn new(registry: &Metrics, node: &NodeHealth) -> Self {
        let labels = [("node", node.address.as_str())];
        Self {
            votes: registry.gauge(
                "leasehold_quorum_node_votes",
                "1 if the node of the quorum counts towards a majority, else 0.",
                &labels,
            ),
            clock_offset: registry.gauge(
                "leasehold_quorum_node_clock_offset_seconds",
                "By how much the clock of the node is ahead of this machine's.",
                &labels,
            ),
            dropped_follow_ups: registry.counter(
                "leasehold_quorum_node_dropped_total",
                "Operations that the node has missed, dropped because too many were waiting for it.",
                &labels,
            ),
            disagreements: registry.counter(
                "leasehold_quorum_node_disagreements_total",
                "Inspections of a lock that the node shows in another state than the majority.",
                &labels,
            ),
        }
    }

    fn health(&self, health: &NodeHealth) {
        self.votes.set(f64::from(u8::from(health.votes)));
        self.dropped_follow_ups.absolute(health.dropped_follow_ups);
        self.disagreements.absolute(health.disagreements);
        if let Some(offset_ms) = health.clock_offset_ms {
            self.clock_offset.set(offset_ms as f64 / 1_000.0);
        }
    }
}

/// The durations of the operations with this result.
fn durations(registry: &Metrics, result: &'static str) -> Labelled<Histogram> {
    Labelled::new(&OPERATIONS, |operation| {
        let labels = [("operation", operation), ("result", result)];
        let help = "How long operations of the store took, as seen from this process.";
        registry.histogram(DURATION, help, &labels)
    })
}

impl StoreMetrics {
    pub(super) fn new(registry: &Metrics) -> Self {
        let errors = |kind| {
            let help = "Operations that failed in the store, by kind.";
            registry.counter("leasehold_store_errors_total", help, &[("kind", kind)])
        };
        let gauge = |name, help| registry.gauge(name, help, &[]);
        let counter = |name, help| registry.counter(name, help, &[]);
        Self {
            answered: durations(registry, "ok"),
            failed: durations(registry, "error"),
            errors: Labelled::new(&Fault::ALL.map(Fault::label), errors),
            up: gauge(
                "leasehold_store_up",
                "1 if the store answered last time, else 0.",
            ),
            refused: gauge(
                "leasehold_store_refused",
                "1 if grants are refused because the store is configured so that it would lose leases.",
            ),
            recovering: gauge(
                "leasehold_store_recovering_seconds",
                "How long new grants still wait, because the store was away or may have lost data.",
            ),
            clock_offset: gauge(
                "leasehold_store_clock_offset_seconds",
                "By how much the store's clock is ahead of this machine's.",
            ),
            held_locks: gauge(
                "leasehold_held_locks",
                "Locks held in the store at the last count. Every process reports the same: use max, not sum.",
            ),
            scan_steps: Labelled::new(&["listing", "count"], |work| {
                let help = "Steps of this process that visited all locks; each keeps the store busy for a fraction of a millisecond.";
                registry.counter("leasehold_store_scan_steps_total", help, &[("work", work)])
            }),
            pool: PoolMetrics::new(registry),
            file_bytes: gauge(
                "leasehold_store_file_bytes",
                "The size of the file of a file store; 0 for other stores.",
            ),
            disk_full: gauge(
                "leasehold_store_disk_full",
                "1 if a file store refuses new claims because its disk is full, else 0.",
            ),
            commits: Labelled::new(&["ok", "error"], |result| {
                let help = "Commits of a file store to its disk, each with the changes of many operations.";
                let labels = [("result", result)];
                registry.counter("leasehold_store_commits_total", help, &labels)
            }),
            mismatches: counter(
                "leasehold_store_response_mismatches_total",
                "Answers of the store that did not belong to their request; must stay 0.",
            ),
            fencing_regressions: counter(
                "leasehold_store_fencing_regressions_total",
                "Tries of claims that were not granted because the store's fencing counter was missing or too small: it has lost data.",
            ),
            nodes: Box::default(),
            traced_as: None,
        }
    }

    /// Has spans of the operations recorded, for a store of this kind; `None` for one that does so itself.
    pub(super) fn traced_as(mut self, store: Option<&'static str>) -> Self {
        self.traced_as = store;
        self
    }

    /// Registers the series of the nodes of a quorum.
    pub(super) fn of_nodes(mut self, registry: &Metrics, nodes: &[NodeHealth]) -> Self {
        let nodes = nodes.iter().map(|node| NodeMetrics::new(registry, node));
        self.nodes = nodes.collect();
        self
    }

    pub(in crate::service) fn operation<T>(
        &self,
        operation: &'static str,
        took: Duration,
        answer: &Result<T, StoreError>,
    ) {
        self.trace(operation, took, answer.as_ref().err());
        match answer {
            Ok(_) => self.answered[operation].record(took.as_secs_f64()),
            Err(error) => {
                self.failed[operation].record(took.as_secs_f64());
                self.errors[error.fault().label()].increment(1);
            }
        }
    }

    /// Records an operation that is over now, within the span of its request.
    fn trace(&self, operation: &'static str, took: Duration, error: Option<&StoreError>) {
        let (Some(store), Some(scope)) = (self.traced_as, traces::current()) else {
            return;
        };
        let began = Instant::now() - took;
        scope.record(SpanKind::Internal, began, |span| {
            span.name(format!("store {operation}"));
            span.text("leasehold.store", store);
            span.text("leasehold.operation", operation);
            if let Some(error) = error {
                span.text("error.type", error.fault().label());
                span.fail();
            }
        });
    }

    pub(in crate::service) fn health(&self, health: &StoreHealth) {
        self.up.set(f64::from(u8::from(health.up)));
        self.refused
            .set(f64::from(u8::from(health.refused.is_some())));
        self.recovering
            .set(health.recovering_for.unwrap_or_default().as_secs_f64());
        self.mismatches.absolute(health.response_mismatches);
        self.fencing_regressions
            .absolute(health.fencing_regressions);
        self.scan_steps["listing"].absolute(health.scan_steps.listings);
        self.scan_steps["count"].absolute(health.scan_steps.counts);
        if let Some(held) = health.held_locks {
            self.held_locks.set(held as f64);
        }
        if let Some(offset_ms) = health.clock_offset_ms {
            self.clock_offset.set(offset_ms as f64 / 1_000.0);
        }
        if let Some(pool) = health.pool {
            self.pool.health(pool);
        }
        for (metrics, node) in self.nodes.iter().zip(&health.nodes) {
            metrics.health(node);
        }
        if let Some(disk) = health.disk {
            self.file_bytes.set(disk.file_bytes as f64);
            self.disk_full.set(f64::from(u8::from(!disk.has_reserve)));
            self.commits["ok"].absolute(disk.commits);
            self.commits["error"].absolute(disk.failed_commits);
        }
    }
}
