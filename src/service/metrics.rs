//! Metrics of leases, and in `store` of the store. Metrics of HTTP are in `http`.
//!
//! Every series exists from the start, and no client can choose the value of a label.

mod acquire;
mod store;

use std::ops::Index;
use std::time::Duration;

use metrics::{Counter, Histogram};

use super::QueueFull;
use crate::domain::{Acquired, Evicted, NameGroups, NotHolder, Refused, Released, Renewed};
use crate::limits::{Limit, Refusals};
use crate::store::{Fault, NodeHealth, StoreError};
use crate::telemetry::Metrics;
use acquire::AcquireMetrics;
pub(super) use acquire::Open;
use store::StoreMetrics;

const HOLD_DURATION: &str = "leasehold_hold_duration_seconds";
const RENEW_REMAINING: &str = "leasehold_renew_slack_ratio";

/// The buckets of the histograms. A registry needs them before it creates the histograms.
pub const BUCKETS: [(&str, &[f64]); 4] = [
    (
        HOLD_DURATION,
        &[
            0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
        ],
    ),
    (
        RENEW_REMAINING,
        &[0.05, 0.1, 0.2, 0.33, 0.5, 0.66, 0.8, 1.0],
    ),
    acquire::BUCKETS,
    store::BUCKETS,
];

/// The series of one family by one label. They are few, so a linear search is faster than hashing.
struct Labelled<T>(Box<[(&'static str, T)]>);

impl<T> Labelled<T> {
    fn new(values: &[&'static str], series: impl Fn(&'static str) -> T) -> Self {
        Self(values.iter().map(|&value| (value, series(value))).collect())
    }

    fn get(&self, value: &str) -> Option<&T> {
        let found = self.0.iter().find(|(known, _)| *known == value);
        found.map(|(_, series)| series)
    }
}

impl<T> Index<&str> for Labelled<T> {
    type Output = T;

    fn index(&self, value: &str) -> &T {
        self.get(value).expect("every value is registered")
    }
}

/// The metrics of one service.
pub struct LockMetrics {
    pub(super) acquires: AcquireMetrics,
    renewals: Labelled<Counter>,
    releases: Labelled<Counter>,
    withdrawals: Labelled<Counter>,
    held_for: Labelled<Histogram>,
    renew_remaining: Histogram,
    expired: Counter,
    evicted: Counter,
    undelivered: Counter,
    pub(super) store: StoreMetrics,
    refusals: Refusals,
}

impl LockMetrics {
    /// Registers every series.
    #[must_use]
    pub fn new(registry: &Metrics) -> Self {
        let renewals = |outcome| {
            let help = "Renewals on this process, by outcome.";
            registry.counter("leasehold_renewals_total", help, &[("outcome", outcome)])
        };
        let releases = |outcome| {
            let help = "Releases on this process, by outcome.";
            registry.counter("leasehold_releases_total", help, &[("outcome", outcome)])
        };
        let withdrawals = |outcome| {
            let help = "Rollbacks after a lost answer or a lost client; after given_up the grant ends with its TTL.";
            registry.counter("leasehold_withdrawals_total", help, &[("outcome", outcome)])
        };
        let held_for = |end| {
            let help = "How long leases were held, by their end; expired ones count when the lock is granted again, and at most 100 of an eviction.";
            registry.histogram(HOLD_DURATION, help, &[("end", end)])
        };
        let plain = |name, help| registry.counter(name, help, &[]);
        Self {
            acquires: AcquireMetrics::new(registry),
            renewals: Labelled::new(&["ok", "expired", "lost", "evicted", "released", "unknown", "contradicts", "error"], renewals),
            releases: Labelled::new(
                &["ok", "stepped_back", "left_queue", "repeated", "expired", "lost", "evicted", "released", "unknown", "error"],
                releases,
            ),
            withdrawals: Labelled::new(&["done", "given_up"], withdrawals),
            held_for: Labelled::new(&["released", "expired", "forced"], held_for),
            renew_remaining: registry.histogram(
                RENEW_REMAINING,
                "The share of its TTL that a lease had left when it was renewed; small values mean that clients renew late.",
                &[],
            ),
            expired: plain(
                "leasehold_leases_expired_total",
                "Leases that expired; counted when their lock is granted again.",
            ),
            evicted: plain("leasehold_force_releases_total", "Holders that an operator evicted."),
            undelivered: plain(
                "leasehold_grants_undelivered_total",
                "Grants that were rolled back because the client was gone before the answer.",
            ),
            store: StoreMetrics::new(registry),
            refusals: Refusals::new(registry),
        }
    }

    /// The same, with spans of the operations of a store of this kind.
    pub(super) fn traced_as(mut self, store: Option<&'static str>) -> Self {
        self.store = self.store.traced_as(store);
        self
    }

    /// The same, with the series of the nodes of a quorum.
    #[must_use]
    pub fn of_nodes(mut self, registry: &Metrics, nodes: &[NodeHealth]) -> Self {
        self.store = self.store.of_nodes(registry, nodes);
        self
    }

    /// The same, with the series of groups of lock names.
    #[must_use]
    pub fn by_group(mut self, registry: &Metrics, groups: &NameGroups) -> Self {
        self.acquires = self.acquires.by_group(registry, groups);
        self
    }

    /// Counts one acquire sent to the store; a waiting request sends several.
    pub(super) fn store_acquire(&self, took: Duration, answer: &Result<Acquired, StoreError>) {
        self.store.operation("acquire", took, answer);
        if matches!(answer, Err(error) if error.fault() == Fault::Limit) {
            self.refusals.count(Limit::Locks);
        }
        if let Ok(Acquired::Refused(Refused::TooManyWaiters { .. })) = answer {
            self.refusals.count(Limit::WaitersPerLock);
        }
        if let Ok(Acquired::Granted(granted)) = answer {
            for previous in &granted.expired {
                self.expired.increment(1);
                self.held_for["expired"].record(previous.held_for.as_secs_f64());
            }
        }
    }

    /// Counts a claim that was not queued because of a limit.
    pub(super) fn queue_full(&self, queue_full: &QueueFull) {
        match queue_full {
            QueueFull::Process { .. } => self.refusals.count(Limit::Waiters),
            QueueFull::Peer => self.refusals.count(Limit::WaitersPerPeer),
            QueueFull::Principal => self.refusals.count(Limit::WaitersPerPrincipal),
        }
    }

    /// Counts a claim that was refused because its principal, or all together, have too many leases.
    pub(super) fn too_many_leases(&self, of_all: bool) {
        self.refusals.count(match of_all {
            true => Limit::LocksHeld,
            false => Limit::LocksPerPrincipal,
        });
    }

    /// Counts a stream that fell behind by more events than are kept.
    pub(super) fn fell_behind(&self) {
        self.refusals.count(Limit::EventsKept);
    }

    pub(super) fn renew(&self, took: Duration, answer: &Result<Renewed, StoreError>) {
        self.store.operation("renew", took, answer);
        let outcome = match answer {
            Ok(Renewed::Extended(renewals)) => {
                // A renewal may shorten the TTL; then more than the new TTL can be left, which counts as 1.
                for renewal in renewals {
                    let ratio = renewal.remaining_before.as_secs_f64()
                        / renewal.lease.ttl.get().as_secs_f64();
                    self.renew_remaining.record(ratio.min(1.0));
                }
                "ok"
            }
            Ok(Renewed::NotHolder(lost)) => lost
                .first()
                .map_or("unknown", |lost| not_holder(&lost.reason)),
            Ok(Renewed::Mismatched(_)) => "contradicts",
            Err(_) => "error",
        };
        self.renewals[outcome].increment(1);
    }

    /// Counts each lock separately.
    pub(super) fn release(&self, took: Duration, answer: &Result<Vec<Released>, StoreError>) {
        self.store.operation("release", took, answer);
        let Ok(released) = answer else {
            return self.releases["error"].increment(1);
        };
        for released in released {
            let outcome = match released {
                Released::Freed { held_for, .. } => {
                    self.held_for["released"].record(held_for.as_secs_f64());
                    "ok"
                }
                Released::SteppedBack(_) => "stepped_back",
                Released::LeftQueue => "left_queue",
                Released::Repeated => "repeated",
                Released::NotHolder(reason) => not_holder(reason),
            };
            self.releases[outcome].increment(1);
        }
    }

    pub(super) fn evict(&self, took: Duration, answer: &Result<Evicted, StoreError>) {
        self.store.operation("evict", took, answer);
        let Ok(Evicted { holders, .. }) = answer else {
            return;
        };
        self.evicted.increment(holders.total);
        for holder in &holders.listed {
            // The store's current time is the end of the lease minus its remaining time.
            let now_ms = holder
                .expires_at
                .unix_ms()
                .saturating_sub(holder.expires_in.as_millis() as u64);
            let held_ms = now_ms.saturating_sub(holder.acquired_at.unix_ms());
            self.held_for["forced"].record(Duration::from_millis(held_ms).as_secs_f64());
        }
    }

    /// Counts a rollback after its last retry.
    pub(super) fn withdrawn(&self, is_done: bool) {
        self.withdrawals[if is_done { "done" } else { "given_up" }].increment(1);
    }

    pub(super) fn undelivered(&self) {
        self.undelivered.increment(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_by_its_value() {
        let labelled = Labelled::new(&["a", "b"], |value| value);
        assert_eq!((labelled.get("b"), labelled.get("c")), (Some(&"b"), None));
    }

    #[test]
    fn a_stream_that_fell_behind_is_counted() {
        let registry = Metrics::new();
        let metrics = LockMetrics::new(&registry);
        metrics.fell_behind();
        let counted = "leasehold_refused_total{limit=\"events_kept\"} 1";
        assert!(registry.render().contains(counted), "{}", registry.render());
    }
}
