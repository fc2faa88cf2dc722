//! The answers of a Redis Cluster that a command belongs elsewhere: to the node that has its slot, or, while the slot is on
//! its way, to wherever its keys are.

use super::failure::Failure;
use super::transport::Endpoint;

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
/// Part of the text of an error of a command with several keys, of which some have moved and some have not.
const TRY_AGAIN: &str = "Multiple keys request during rehashing of slot";

impl Redirection {
    /// Reads what follows MOVED or ASK: the slot, and host and port of a node.
    pub(super) fn parse(code: &str, detail: &str) -> Option<Self> {
        if code == "MOVED" {
            return Some(Self::Moved);
        }
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
    /// The same failure, where another try may succeed if the slot of the keys is on its way.
    pub(super) fn passing_if_moving(self) -> Self {
        match self.redirection.is_some() || self.is_moving() {
            true => self.passing(),
            false => self,
        }
    }

    /// Whether it was refused because the slot of its keys is on its way to another node.
    pub(super) fn is_moving(&self) -> bool {
        let is_asked = matches!(self.redirection, Some(Redirection::Ask(_)));
        is_asked || self.detail.contains(TRY_AGAIN) || is_not_local(&self.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_names_the_node_that_has_the_keys() {
        assert_eq!(
            Redirection::parse("MOVED", "7 127.0.0.1:7001"),
            Some(Redirection::Moved)
        );
        assert_eq!(
            Redirection::parse("ASK", "7 2001:db8::1:7001"),
            Some(Redirection::Ask(("2001:db8::1".to_owned(), 7001)))
        );
        assert_eq!(Redirection::parse("ASK", "7"), None);
    }
}
