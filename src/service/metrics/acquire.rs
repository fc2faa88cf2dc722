//! Metrics of acquire requests, their waits, and streams.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use super::Labelled;
use crate::domain::{Claim, Conflict, ConflictKind, GrantKind, Mode, NameGroups, Refused};
use crate::service::local_waiters::WaiterCounts;
use crate::service::{AcquireAnswer, AcquireOutcome};
use crate::store::StoreError;
use crate::telemetry::Metrics;

const WAIT: &str = "leasehold_acquire_wait_seconds";

pub(super) const BUCKETS: (&str, &[f64]) = (
    WAIT,
    &[
        0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    ],
);

const OUTCOMES: [&str; 15] = [
    "granted",
    "replayed",
    "reentered",
    "held",
    "cooling",
    "queued",
    "contradicts",
    "too_many_waiters",
    "too_many_locks",
    "wait_timeout",
    "draining",
    "disconnected",
    "ended",
    "recovering",
    "error",
];
/// The outcomes by group, of which there are few, because there may be many groups.
const GROUP_OUTCOMES: [&str; 5] = [
    "granted",
    "refused",
    "wait_timeout",
    "disconnected",
    "error",
];
/// The outcomes of waits.
const ENDS: [&str; 9] = [
    "granted",
    "replayed",
    "reentered",
    "contradicts",
    "wait_timeout",
    "draining",
    "disconnected",
    "ended",
    "error",
];

pub(in crate::service) struct AcquireMetrics {
    exclusive: Labelled<Counter>,
    shared: Labelled<Counter>,
    waits: Labelled<Histogram>,
    long_polls: Gauge,
    streams: Labelled<Gauge>,
    waiters: Gauge,
    contended: Gauge,
    by_group: Option<Box<GroupMetrics>>,
}

/// Acquires by the group of the lock, which operators choose.
struct GroupMetrics {
    groups: NameGroups,
    acquires: Box<[Labelled<Counter>]>,
}

/// Counts something as open until dropped.
pub(in crate::service) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

impl Open {
    fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl AcquireMetrics {
    pub(super) fn new(registry: &Metrics) -> Self {
        let acquires = |mode| {
            Labelled::new(&OUTCOMES, |outcome| {
                let labels = [("outcome", outcome), ("mode", mode)];
                let help = "Acquire requests on this process, by outcome.";
                registry.counter("leasehold_acquire_requests_total", help, &labels)
            })
        };
        let waits = |outcome| {
            let help = "How long requests waited in a queue, by outcome; requests that did not wait are left out.";
            registry.histogram(WAIT, help, &[("outcome", outcome)])
        };
        let streams = |stream| {
            let help =
                "Open event streams of this process: hold holds a lock, events reports events.";
            registry.gauge("leasehold_sse_subscribers", help, &[("stream", stream)])
        };
        Self {
            exclusive: acquires("exclusive"),
            shared: acquires("shared"),
            waits: Labelled::new(&ENDS, waits),
            long_polls: registry.gauge(
                "leasehold_local_long_polls",
                "Acquire requests of this process that may wait and have no answer yet.",
                &[],
            ),
            streams: Labelled::new(&["hold", "events"], streams),
            waiters: registry.gauge(
                "leasehold_waiters",
                "Requests that wait on this process, long polls and streams, as of the last check.",
                &[],
            ),
            contended: registry.gauge(
                "leasehold_contended_locks",
                "Locks that requests of this process wait for, as of the last check.",
                &[],
            ),
            by_group: None,
        }
    }

    /// Registers the series of the groups, if there are any.
    pub(super) fn by_group(mut self, registry: &Metrics, groups: &NameGroups) -> Self {
        let acquires = |group: &str| {
            Labelled::new(&GROUP_OUTCOMES, |outcome| {
                let labels = [("group", group), ("outcome", outcome)];
                let help =
                    "Acquire requests on this process, by the group of the lock and by outcome.";
                registry.counter("leasehold_group_acquire_requests_total", help, &labels)
            })
        };
        self.by_group = (!groups.is_empty()).then(|| {
            Box::new(GroupMetrics {
                groups: groups.clone(),
                acquires: groups.labels().map(acquires).collect(),
            })
        });
        self
    }

    pub(in crate::service) fn record(
        &self,
        claim: &Claim,
        answer: &Result<AcquireAnswer, StoreError>,
    ) {
        self.count(claim, outcome(answer));
    }

    pub(in crate::service) fn disconnected(&self, claim: &Claim) {
        self.count(claim, "disconnected");
    }

    /// Returns the outcome.
    pub(in crate::service) fn waited(
        &self,
        waited: Duration,
        answer: &Result<AcquireAnswer, StoreError>,
        is_disconnected: bool,
    ) -> &'static str {
        let end = if is_disconnected {
            "disconnected"
        } else {
            outcome(answer)
        };
        // The other outcomes cannot follow a wait.
        if let Some(wait) = self.waits.get(end) {
            wait.record(waited.as_secs_f64());
        }
        end
    }

    pub(in crate::service) fn long_poll(&self) -> Open {
        Open::new(&self.long_polls)
    }

    pub(in crate::service) fn stream(&self, stream: &'static str) -> Open {
        Open::new(&self.streams[stream])
    }

    pub(in crate::service) fn waiters(&self, counts: WaiterCounts) {
        self.waiters.set(counts.waiters as f64);
        self.contended.set(counts.locks as f64);
    }

    fn count(&self, claim: &Claim, outcome: &str) {
        self.of(claim)[outcome].increment(1);
        if let (Some(by_group), Some(name)) = (&self.by_group, claim.names.first()) {
            let group = by_group.groups.of(name);
            by_group.acquires[group][group_outcome(outcome)].increment(1);
        }
    }

    fn of(&self, claim: &Claim) -> &Labelled<Counter> {
        match claim.mode {
            Mode::Exclusive => &self.exclusive,
            Mode::Shared(_) => &self.shared,
        }
    }
}

fn outcome(answer: &Result<AcquireAnswer, StoreError>) -> &'static str {
    let Ok(answer) = answer else {
        return "error";
    };
    match &answer.outcome {
        AcquireOutcome::Granted(granted) => match granted.kind {
            GrantKind::New => "granted",
            GrantKind::Reentered => "reentered",
            GrantKind::Replayed => "replayed",
        },
        AcquireOutcome::Refused(refused) => match refused {
            Refused::Blocked(blocked_by) => blocked_by.first().map_or("held", blocked),
            Refused::Mismatched(_) => "contradicts",
            Refused::TooManyWaiters { .. } => "too_many_waiters",
            Refused::Ended(_) => "ended",
            Refused::Recovering { .. } => "recovering",
            Refused::TooManyLeases { .. } => "too_many_locks",
        },
        AcquireOutcome::TooManyWaiters(_) => "too_many_waiters",
        AcquireOutcome::TimedOut(_) => "wait_timeout",
        AcquireOutcome::Draining(_) => "draining",
    }
}

fn group_outcome(outcome: &str) -> &str {
    match outcome {
        "granted" | "replayed" | "reentered" => "granted",
        "wait_timeout" | "disconnected" => outcome,
        "draining" | "recovering" | "error" => "error",
        _ => "refused",
    }
}

fn blocked(first: &Conflict) -> &'static str {
    match first.by {
        ConflictKind::Holders(_) => "held",
        ConflictKind::Cooling { .. } => "cooling",
        ConflictKind::Waiters => "queued",
    }
}

#[cfg(test)]
mod tests {
    use super::group_outcome;

    #[test]
    fn groups_have_the_outcomes_that_their_teams_can_act_on() {
        let all = [
            ("granted", "granted"),
            ("reentered", "granted"),
            ("wait_timeout", "wait_timeout"),
            ("disconnected", "disconnected"),
            ("error", "error"),
            ("recovering", "error"),
            ("blocked", "refused"),
        ];
        for (outcome, group) in all {
            assert_eq!(group_outcome(outcome), group);
        }
    }
}
