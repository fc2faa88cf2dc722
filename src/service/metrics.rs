//! What is counted about leases and about the store. HTTP's own figures are counted where HTTP is known.
//!
//! Every series is there from the start, and none has a label that a client chooses.

use std::collections::HashMap;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::domain::{Acquired, Holder, NotHolder, Released, Renewed};
use crate::store::{Fault, StoreError, StoreHealth};
use crate::telemetry::Metrics;

const OPERATIONS: [&str; 7] = [
    "acquire", "renew", "release", "evict", "withdraw", "inspect", "list",
];
const ACQUIRE_OUTCOMES: [&str; 8] = [
    "granted",
    "replayed",
    "reentered",
    "held",
    "cooling",
    "ended",
    "recovering",
    "error",
];
const RENEW_OUTCOMES: [&str; 7] = [
    "ok", "expired", "lost", "evicted", "released", "unknown", "error",
];
const RELEASE_OUTCOMES: [&str; 8] = [
    "ok",
    "stepped_back",
    "repeated",
    "expired",
    "lost",
    "evicted",
    "unknown",
    "error",
];
const HOLD_BUCKETS: [f64; 11] = [
    0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];
const SLACK_BUCKETS: [f64; 8] = [0.05, 0.1, 0.2, 0.33, 0.5, 0.66, 0.8, 1.0];
const STORE_BUCKETS: [f64; 11] = [
    0.00025, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0,
];

/// The buckets of the histograms, which a registry wants to know before it is asked for them.
pub const BUCKETS: [(&str, &[f64]); 3] = [
    ("leasehold_hold_duration_seconds", &HOLD_BUCKETS),
    ("leasehold_renew_slack_ratio", &SLACK_BUCKETS),
    ("leasehold_store_operation_duration_seconds", &STORE_BUCKETS),
];

/// Counters by one label, all made at the start.
type Labelled<T> = HashMap<&'static str, T>;

/// The figures of one service.
pub struct LockMetrics {
    acquires: Labelled<Counter>,
    renewals: Labelled<Counter>,
    releases: Labelled<Counter>,
    held_for: Labelled<Histogram>,
    renew_slack: Histogram,
    expired: Counter,
    evicted: Counter,
    undelivered: Counter,
    withdrawals: Labelled<Counter>,
    operations: HashMap<(&'static str, &'static str), Histogram>,
    store_errors: Labelled<Counter>,
    store: StoreGauges,
}

struct StoreGauges {
    up: Gauge,
    refused: Gauge,
    recovering: Gauge,
    clock_offset: Gauge,
    held_locks: Gauge,
    connections: Gauge,
    connections_max: Gauge,
    mismatches: Counter,
}

impl LockMetrics {
    /// Registers every series.
    #[must_use]
    pub fn new(registry: &Metrics) -> Self {
        let counters = |name, help, label, values: &[&'static str]| -> Labelled<Counter> {
            values
                .iter()
                .map(|&value| (value, registry.counter(name, help, &[(label, value)])))
                .collect()
        };
        let acquires = ACQUIRE_OUTCOMES.into_iter().map(|outcome| {
            let labels = [("outcome", outcome), ("mode", "exclusive")];
            let help = "Acquire requests by what came of them, on this process.";
            (
                outcome,
                registry.counter("leasehold_acquire_requests_total", help, &labels),
            )
        });
        let held_for = ["released", "expired", "forced"].into_iter().map(|end| {
            let help = "How long leases were held, by how they ended; expired ones when the lock is granted again.";
            let name = "leasehold_hold_duration_seconds";
            (end, registry.histogram(name, help, &[("end", end)]))
        });
        let operations = OPERATIONS.into_iter().flat_map(|operation| {
            ["ok", "error"].map(|result| {
                let labels = [("operation", operation), ("result", result)];
                let help = "How long operations of the store took, as seen from this process.";
                let name = "leasehold_store_operation_duration_seconds";
                ((operation, result), registry.histogram(name, help, &labels))
            })
        });
        let slack_help = "What share of its TTL a lease had left when it was renewed; small means that clients renew late.";
        Self {
            acquires: acquires.collect(),
            renewals: counters(
                "leasehold_renewals_total",
                "Renewals by what came of them, on this process.",
                "outcome",
                &RENEW_OUTCOMES,
            ),
            releases: counters(
                "leasehold_releases_total",
                "Releases by what came of them, on this process.",
                "outcome",
                &RELEASE_OUTCOMES,
            ),
            held_for: held_for.collect(),
            renew_slack: registry.histogram("leasehold_renew_slack_ratio", slack_help, &[]),
            expired: registry.counter(
                "leasehold_leases_expired_total",
                "Leases that ran out; counted when their lock is granted again.",
                &[],
            ),
            evicted: registry.counter(
                "leasehold_force_releases_total",
                "Holders that an operator evicted.",
                &[],
            ),
            undelivered: registry.counter(
                "leasehold_grants_undelivered_total",
                "Grants that were given back because the client was gone before the answer.",
                &[],
            ),
            withdrawals: counters(
                "leasehold_withdrawals_total",
                "Grants taken back after a lost answer or a lost client; given_up ones end with their TTL.",
                "outcome",
                &["done", "given_up"],
            ),
            operations: operations.collect(),
            store_errors: Fault::ALL
                .map(Fault::label)
                .into_iter()
                .map(|kind| {
                    let help = "Operations that the store could not do, by kind.";
                    (
                        kind,
                        registry.counter("leasehold_store_errors_total", help, &[("kind", kind)]),
                    )
                })
                .collect(),
            store: StoreGauges::new(registry),
        }
    }

    pub(super) fn acquire(&self, took: Duration, answer: &Result<Acquired, StoreError>) {
        self.operation("acquire", took, answer);
        let outcome = match answer {
            Ok(Acquired::Granted { after_expiry, .. }) => {
                if let Some(held_for) = after_expiry {
                    self.expired.increment(1);
                    self.held_for["expired"].record(held_for.as_secs_f64());
                }
                "granted"
            }
            Ok(Acquired::Replayed(_)) => "replayed",
            Ok(Acquired::Reentered(_)) => "reentered",
            Ok(Acquired::Held(_)) => "held",
            Ok(Acquired::Cooling { .. }) => "cooling",
            Ok(Acquired::Ended(_)) => "ended",
            Ok(Acquired::Recovering { .. }) => "recovering",
            Err(_) => "error",
        };
        self.acquires[outcome].increment(1);
    }

    pub(super) fn renew(&self, took: Duration, answer: &Result<Renewed, StoreError>) {
        self.operation("renew", took, answer);
        let outcome = match answer {
            Ok(Renewed::Extended(renewal)) => {
                // A renewal may shorten the TTL; more than a whole lease left is still just early.
                let ratio = renewal.slack.as_secs_f64() / renewal.lease.ttl.get().as_secs_f64();
                self.renew_slack.record(ratio.min(1.0));
                "ok"
            }
            Ok(Renewed::NotHolder(reason)) => not_holder(reason),
            Err(_) => "error",
        };
        self.renewals[outcome].increment(1);
    }

    pub(super) fn release(&self, took: Duration, answer: &Result<Released, StoreError>) {
        self.operation("release", took, answer);
        let outcome = match answer {
            Ok(Released::Freed { held_for }) => {
                self.held_for["released"].record(held_for.as_secs_f64());
                "ok"
            }
            Ok(Released::SteppedBack(_)) => "stepped_back",
            Ok(Released::Repeated | Released::NotHolder(NotHolder::Released)) => "repeated",
            Ok(Released::NotHolder(reason)) => not_holder(reason),
            Err(_) => "error",
        };
        self.releases[outcome].increment(1);
    }

    pub(super) fn evict(&self, took: Duration, answer: &Result<Vec<Holder>, StoreError>) {
        self.operation("evict", took, answer);
        for holder in answer.iter().flatten() {
            self.evicted.increment(1);
            // The store's own "now" is the end of the lease less what was left of it.
            let now_ms = holder
                .expires_at
                .unix_ms()
                .saturating_sub(holder.expires_in.as_millis() as u64);
            let held_ms = now_ms.saturating_sub(holder.acquired_at.unix_ms());
            self.held_for["forced"].record(Duration::from_millis(held_ms).as_secs_f64());
        }
    }

    pub(super) fn read<T>(
        &self,
        operation: &'static str,
        took: Duration,
        answer: &Result<T, StoreError>,
    ) {
        self.operation(operation, took, answer);
    }

    pub(super) fn undelivered(&self) {
        self.undelivered.increment(1);
    }

    pub(super) fn withdraw(&self, took: Duration, answer: &Result<(), StoreError>) {
        self.operation("withdraw", took, answer);
    }

    pub(super) fn withdrawn(&self, done: bool) {
        self.withdrawals[if done { "done" } else { "given_up" }].increment(1);
    }

    pub(super) fn health(&self, health: &StoreHealth) {
        let store = &self.store;
        store.up.set(f64::from(u8::from(health.up)));
        store
            .refused
            .set(f64::from(u8::from(health.refused.is_some())));
        store
            .recovering
            .set(health.recovering_for.unwrap_or_default().as_secs_f64());
        store.mismatches.absolute(health.response_mismatches);
        if let Some(held) = health.held_locks {
            store.held_locks.set(held as f64);
        }
        if let Some(offset_ms) = health.clock_offset_ms {
            store.clock_offset.set(offset_ms as f64 / 1_000.0);
        }
        if let Some(pool) = health.pool {
            store.connections.set(f64::from(pool.open));
            store.connections_max.set(f64::from(pool.max));
        }
    }

    fn operation<T>(
        &self,
        operation: &'static str,
        took: Duration,
        answer: &Result<T, StoreError>,
    ) {
        let result = if answer.is_ok() { "ok" } else { "error" };
        self.operations[&(operation, result)].record(took.as_secs_f64());
        if let Err(error) = answer {
            self.store_errors[error.fault().label()].increment(1);
        }
    }
}

impl StoreGauges {
    fn new(registry: &Metrics) -> Self {
        let gauge = |name, help| registry.gauge(name, help, &[]);
        Self {
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
                "How long new grants still wait for leases that the store may have forgotten.",
            ),
            clock_offset: gauge(
                "leasehold_store_clock_offset_seconds",
                "By how much the store's clock is ahead of this machine's.",
            ),
            held_locks: gauge(
                "leasehold_held_locks",
                "Locks held in the store at the last count. Every process reports the same: use max, not sum.",
            ),
            connections: gauge(
                "leasehold_store_pool_connections",
                "Open connections to the store.",
            ),
            connections_max: gauge(
                "leasehold_store_pool_max_connections",
                "Connections to the store as configured.",
            ),
            mismatches: registry.counter(
                "leasehold_store_response_mismatches_total",
                "Answers of the store that did not belong to their request; must stay 0.",
                &[],
            ),
        }
    }
}

impl std::fmt::Debug for LockMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockMetrics")
    }
}

fn not_holder(reason: &NotHolder) -> &'static str {
    match reason {
        NotHolder::Expired => "expired",
        NotHolder::Lost => "lost",
        NotHolder::Evicted { .. } => "evicted",
        NotHolder::Released => "released",
        NotHolder::Unknown => "unknown",
    }
}
