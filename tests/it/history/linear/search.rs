//! The search for an order: all configurations that explain the answers so far, from one sending or answer to the next.

use std::collections::{BTreeSet, HashSet};

use super::operations::LockHistory;
use super::register::{Configuration, Held};

/// What the search found.
#[derive(Debug)]
pub(super) enum Verdict {
    Linearizable,
    /// No order explains this operation. Before it, these leases were held in one of the orders that explain the rest.
    Rejected {
        operation: usize,
        before: Vec<Held>,
    },
    /// There were too many configurations.
    Undecided,
}

/// What happens at a time, in the order in which it counts at the same time: what touches is concurrent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Sent,
    Answered,
}

/// Searches for an order of the operations.
pub(super) fn search(lock: &LockHistory, configurations_max: usize) -> Verdict {
    let mut events = Vec::new();
    for (operation, one) in lock.operations.iter().enumerate() {
        events.push((one.sent, Moment::Sent, operation));
        events.push((one.at, Moment::Answered, operation));
    }
    events.sort_unstable();
    let mut configurations = HashSet::from([Configuration::default()]);
    let mut pending = BTreeSet::new();
    let mut visited = 0;
    for (now, moment, operation) in events {
        let mut reached = HashSet::new();
        let before = configurations.iter().next().cloned().unwrap_or_default();
        if moment == Moment::Sent {
            pending.insert(operation);
            let of_this = BTreeSet::from([operation]);
            for mut configuration in configurations {
                configuration.take_reads(lock, &of_this);
                reached.insert(configuration);
            }
        } else {
            for configuration in configurations {
                let after = match configuration.has_done(lock, operation) {
                    true => vec![configuration],
                    false => configuration.after(lock, operation, &pending, now),
                };
                reached.extend(after.into_iter().map(|mut after| {
                    after.take_reads(lock, &pending);
                    after.forget(operation);
                    after
                }));
            }
            pending.remove(&operation);
        }
        visited += reached.len();
        if reached.is_empty() {
            return Verdict::Rejected {
                operation,
                before: before.held,
            };
        }
        if visited > configurations_max {
            return Verdict::Undecided;
        }
        configurations = reached;
    }
    Verdict::Linearizable
}
