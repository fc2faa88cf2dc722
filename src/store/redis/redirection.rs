//! The answers of a Redis Cluster that a command belongs elsewhere: to the node that has its slot, or, while the slot is on
//! its way, to wherever its keys are.

use super::failure::Failure;
use super::transport::Endpoint;
use crate::store::Fault;

/// Where the keys of a refused command are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// Another node has their slot.
    Moved,
    /// Their slot is on its way to this node, and they have arrived there or are nowhere.
    Ask(Endpoint),
}

/// Parts of the text of the error of a command in a script whose key is at another node of a cluster, or may be: those of
/// Redis 7.0 and of Valkey 9, and of the versions between for a command with several keys.
const NOT_LOCAL: [&str; 2] = [
    "ttempted to access a non local key",
    "undeclared keys were accessed during rehashing",
];

/// How an operator ends a move that does not go on.
pub(super) const HOW_TO_END: &str = "end the move with redis-cli --cluster fix";

impl Redirection {
    /// Reads what follows ASK: the slot, and host and port of a node.
    pub(super) fn ask(detail: &str) -> Option<Self> {
        let (_, place) = detail.split_once(' ')?;
        let (host, port) = place.rsplit_once(':')?;
        Some(Self::Ask((host.to_owned(), port.parse().ok()?)))
    }
}

/// Whether a command in a script was refused because its key may be at another node.
pub(super) fn is_not_local(detail: &str) -> bool {
    NOT_LOCAL.iter().any(|words| detail.contains(words))
}

impl Failure {
    /// The failure of a command that one node passed on to another with this failure, and that failed there with the other.
    /// A node sends back what it was passed if it does not import the slot: the move was begun at one node alone, or
    /// has just ended. If nothing was sent to it, because it does not answer, the node that passed it on is fine.
    pub(super) fn passed_on(&self, other: Self) -> Self {
        let is_silent = matches!(other.fault, Fault::Io | Fault::Timeout | Fault::Busy);
        let why = if other.redirection == Some(Redirection::Moved) {
            "and that node does not import the slot"
        } else if is_silent && !other.may_be_done {
            "and that node does not answer"
        } else {
            return other;
        };
        let mut own = self.clone();
        own.detail = format!("{}, {why}; {}", own.detail, HOW_TO_END);
        own
    }

    /// Whether it was refused because the slot of its keys is on its way to another node.
    pub(super) fn is_moving(&self) -> bool {
        self.fault == Fault::Moving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_names_the_node_that_has_the_keys() {
        assert_eq!(
            Redirection::ask("7 2001:db8::1:7001"),
            Some(Redirection::Ask(("2001:db8::1".to_owned(), 7001)))
        );
        assert_eq!(Redirection::ask("7"), None);
    }
}
