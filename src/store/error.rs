//! The errors that a store may return. What clients see of them is up to HTTP.

use std::fmt;

use thiserror::Error;

/// The longest text about a failure.
const DETAIL_BYTES_MAX: usize = 1024;

/// Why a store could not do an operation.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// Nothing was done.
    #[error("{fault}: {detail}; nothing was done")]
    Unavailable {
        /// The kind, for metrics.
        fault: Fault,
        /// For the log, not for callers.
        detail: String,
    },
    /// It may or may not have been done.
    #[error("{fault}: {detail}; the outcome is unknown")]
    Unknown {
        /// The kind, for metrics.
        fault: Fault,
        /// For the log, not for callers.
        detail: String,
    },
}

impl StoreError {
    /// Nothing was done.
    pub(crate) fn unavailable(fault: Fault, detail: impl fmt::Display) -> Self {
        Self::Unavailable {
            fault,
            detail: short(detail),
        }
    }

    /// It may or may not have been done.
    pub(crate) fn unknown(fault: Fault, detail: impl fmt::Display) -> Self {
        Self::Unknown {
            fault,
            detail: short(detail),
        }
    }

    /// What happened, for the log and for operators.
    #[must_use]
    pub fn detail(&self) -> &str {
        match self {
            Self::Unavailable { detail, .. } | Self::Unknown { detail, .. } => detail,
        }
    }

    /// The kind, for metrics.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unavailable { fault, .. } | Self::Unknown { fault, .. } => *fault,
        }
    }
}

/// A text that a server may have written, no longer than a line of the log should be.
fn short(detail: impl fmt::Display) -> String {
    let mut text = detail.to_string();
    if text.len() > DETAIL_BYTES_MAX {
        text.truncate(text.floor_char_boundary(DETAIL_BYTES_MAX));
        text.push('…');
    }
    text
}

/// Kinds of failure, few enough for a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No answer before the deadline.
    Timeout,
    /// No connection, or the connection broke.
    Io,
    /// The store refused the user or the password.
    Auth,
    /// The user lacks a right.
    Permission,
    /// The store has no database of this number.
    Database,
    /// The store is a node of a cluster and should not be, or the reverse.
    Cluster,
    /// The cluster is down, or a part of it.
    ClusterDown,
    /// There is no TLS connection: no TLS on one side, or a certificate that is refused.
    Tls,
    /// The other side speaks another protocol.
    Protocol,
    /// The store is a replica.
    Replica,
    /// The store has too few replicas to accept writes, or cannot write to its disk.
    ReadOnly,
    /// Too few replicas of the store have confirmed a write.
    Unreplicated,
    /// The slot of a lock is on its way from one node of a cluster to another.
    Moving,
    /// The store is starting or busy with a script.
    Busy,
    /// The database has so many keys, of whomever, that a listing cannot end in time.
    Crowded,
    /// The store is out of memory.
    Full,
    /// The store has reached its own limit on what it keeps.
    Limit,
    /// The store is configured in a way that would lose leases.
    Refused,
    /// The store sent an answer that it should never send.
    Corrupt,
}

impl Fault {
    /// All kinds, so that the metrics exist from the start.
    pub const ALL: [Self; 19] = [
        Self::Timeout,
        Self::Io,
        Self::Auth,
        Self::Permission,
        Self::Database,
        Self::Cluster,
        Self::ClusterDown,
        Self::Tls,
        Self::Protocol,
        Self::Replica,
        Self::ReadOnly,
        Self::Unreplicated,
        Self::Moving,
        Self::Busy,
        Self::Crowded,
        Self::Full,
        Self::Limit,
        Self::Refused,
        Self::Corrupt,
    ];

    /// Whether it lasts until somebody changes the configuration, of the store or of Leasehold.
    #[must_use]
    pub fn is_lasting(self) -> bool {
        match self {
            Self::Auth
            | Self::Permission
            | Self::Database
            | Self::Cluster
            | Self::Tls
            | Self::Protocol
            | Self::Crowded
            | Self::Refused => true,
            Self::Timeout
            | Self::Io
            | Self::ClusterDown
            | Self::Replica
            | Self::ReadOnly
            | Self::Unreplicated
            | Self::Moving
            | Self::Busy
            | Self::Full
            | Self::Limit
            | Self::Corrupt => false,
        }
    }

    /// Whether the store has no room for another claim; leases can be renewed and released, and their grants repeated.
    #[must_use]
    pub fn is_full(self) -> bool {
        matches!(self, Self::Full | Self::Limit)
    }

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Io => "io",
            Self::Auth => "auth",
            Self::Permission => "permission",
            Self::Database => "database",
            Self::Cluster => "cluster",
            Self::ClusterDown => "cluster_down",
            Self::Tls => "tls",
            Self::Protocol => "protocol",
            Self::Replica => "replica",
            Self::ReadOnly => "readonly",
            Self::Unreplicated => "unreplicated",
            Self::Moving => "moving",
            Self::Busy => "busy",
            Self::Crowded => "crowded",
            Self::Full => "full",
            Self::Limit => "limit",
            Self::Refused => "refused",
            Self::Corrupt => "corrupt",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_cut_between_two_characters() {
        let said = "ä".repeat(DETAIL_BYTES_MAX);
        let error = StoreError::unavailable(Fault::Io, format!("a{said}"));
        let expected = format!("a{}…", &said[..DETAIL_BYTES_MAX - 2]);
        assert_eq!(error.detail(), expected);
        assert_eq!(StoreError::unknown(Fault::Io, "lost").detail(), "lost");
    }
}
