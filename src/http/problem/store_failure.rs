//! Problems for operations that the store did not answer. Clients get the kind of the failure; the log has its cause.

use std::time::Duration;

use super::body::ProblemOutcome;
use super::{Code, Problem};
use crate::store::{Fault, StoreError};

/// When to retry after a store failure.
const RETRY_STORE: Duration = Duration::from_secs(1);
/// The same, for failures that an operator has to fix first.
const RETRY_STORE_LASTING: Duration = Duration::from_secs(5);

impl Problem {
    /// The store failed to answer a read. Whatever it did, nothing has changed.
    pub(in crate::http) fn of_read(error: StoreError) -> Self {
        let detail = format!("{}; nothing was changed", what_failed(error.fault()));
        let mut refusal = Self::from(error);
        refusal.0.detail = detail.into();
        refusal.0.extras.outcome = Some(ProblemOutcome::NothingDone);
        refusal
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let fault = error.fault();
        let (outcome, effect) = match &error {
            StoreError::Unavailable { .. } => (ProblemOutcome::NothingDone, "nothing was done"),
            StoreError::Unknown { .. } => (
                ProblemOutcome::Unknown,
                "whether the request took effect is unknown",
            ),
        };
        let detail = format!("{}; {effect}", what_failed(fault));
        let is_full = fault.is_full();
        let code = match is_full {
            true => Code::StoreFull,
            false => Code::StoreUnavailable,
        };
        let retry_after = match is_full || fault.is_lasting() {
            true => RETRY_STORE_LASTING,
            false => RETRY_STORE,
        };
        let mut refusal = Self::new(code, detail);
        refusal.0.extras.outcome = Some(outcome);
        refusal.0.cause = Some(error.to_string());
        refusal.retry_after(retry_after)
    }
}

/// The part of a store failure that clients may see. The log has the cause.
fn what_failed(fault: Fault) -> &'static str {
    match fault {
        Fault::Timeout => "the store did not answer in time",
        Fault::Io => "the store could not be reached, or the connection broke",
        Fault::Auth => {
            "the store refuses the user or the password of the service; see /readyz?verbose"
        }
        Fault::Permission => {
            "the user of the service lacks a right in the store; see /readyz?verbose"
        }
        Fault::Database => "the store has no database of the configured number",
        Fault::Cluster => "the store is a node of a cluster, which the service cannot use",
        Fault::ClusterDown => {
            "the Redis Cluster is down, or its part with a lock; see /readyz?verbose"
        }
        Fault::Tls => "there is no TLS connection to the store; see /readyz?verbose",
        Fault::Protocol => {
            "another program answers at the address of the store; see /readyz?verbose"
        }
        Fault::Replica => "the store is a replica, which accepts no writes",
        Fault::ReadOnly => {
            "the store accepts no writes: it lacks replicas, or cannot write to its disk"
        }
        Fault::Unreplicated => "too few replicas of the store confirm what is written to it",
        Fault::Moving => {
            "the Redis Cluster has not finished moving the slot of a lock to another node"
        }
        Fault::Busy => "the store is starting or busy",
        Fault::Crowded => {
            "the database of the store has too many keys to list locks; if some are of other programs, give Leasehold a database of its own"
        }
        Fault::Full => {
            "the store has no room for another claim; leases can be renewed and released"
        }
        Fault::Limit => {
            "the store is full: memory.locks_max leases and places; leases can be renewed and released"
        }
        Fault::Refused => {
            "no leases are granted, because the configuration of the store would lose them; see /readyz?verbose"
        }
        Fault::Corrupt => "the store sent an invalid answer",
    }
}
