//! Reads `CLUSTER NODES`: the nodes of a Redis Cluster, and the slots of each, as one of them knows them.

use std::ops::RangeInclusive;

use super::partitions;
use super::transport::Endpoint;

/// One line of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeLine {
    pub(super) id: String,
    pub(super) endpoint: Endpoint,
    pub(super) is_myself: bool,
    pub(super) is_primary: bool,
    /// Whether the node that answers takes it for one that takes part in the cluster.
    pub(super) is_healthy: bool,
    /// The larger one of two nodes with the same slot has it.
    pub(super) config_epoch: u64,
    pub(super) slots: Vec<RangeInclusive<u16>>,
    /// Whether a slot is on its way from or to it. Only a node itself knows that.
    pub(super) is_moving: bool,
}

/// What a node knows about itself and the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterView {
    /// Its own id.
    pub(super) own_id: String,
    /// The ids of all healthy primaries, with a space between two.
    pub(super) primaries: String,
}

impl ClusterView {
    pub(super) fn parse(answer: &str) -> Self {
        let nodes = lines(answer, "");
        let own = nodes.iter().find(|node| node.is_myself);
        let primaries = nodes.iter().filter(|it| it.is_primary && it.is_healthy);
        let primaries: Vec<_> = primaries.map(|node| node.id.as_str()).collect();
        Self {
            own_id: own.map(|node| node.id.clone()).unwrap_or_default(),
            primaries: primaries.join(" "),
        }
    }
}

/// The nodes in an answer of the node at `asked`, which may not know its own address yet.
pub(super) fn lines(answer: &str, asked: &str) -> Vec<NodeLine> {
    answer
        .lines()
        .filter_map(|text| line(text, asked))
        .collect()
}

/// `id host:port@bus_port[,hostname[,…]] flags primary ping pong config_epoch link slots…`
fn line(text: &str, asked: &str) -> Option<NodeLine> {
    let mut words = text.split(' ');
    let id = words.next()?.to_owned();
    let address = words.next()?;
    let flags: Vec<&str> = words.next()?.split(',').collect();
    let config_epoch = words.nth(3)?.parse().ok()?;
    let _link = words.next()?;
    let (mut slots, mut is_moving) = (Vec::new(), false);
    for word in words {
        is_moving |= is_of_partition(word);
        slots.extend(range(word));
    }
    let has = |flag| flags.contains(&flag);
    Some(NodeLine {
        id,
        endpoint: endpoint(address, asked)?,
        is_myself: has("myself"),
        is_primary: has("master"),
        is_healthy: !["fail", "fail?", "handshake", "noaddr"]
            .into_iter()
            .any(has),
        config_epoch,
        slots,
        is_moving,
    })
}

/// Whether this is `[7->-id]` or `[7-<-id]`, and the slot is one that a partition has.
fn is_of_partition(word: &str) -> bool {
    let slot = word.strip_prefix('[').and_then(|rest| rest.split_once('-'));
    let slot = slot.and_then(|(slot, _)| slot.parse::<u16>().ok());
    slot.is_some_and(|slot| (0..partitions::COUNT).any(|it| partitions::slot(it) == slot))
}

/// `7-9`, or `7` alone; none for a slot that moves, which is in brackets.
fn range(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// A host name is what the certificate of a node is for, if it announces one.
fn endpoint(address: &str, asked: &str) -> Option<Endpoint> {
    let (address, more) = address.split_once('@')?;
    let (host, port) = address.rsplit_once(':')?;
    let announced = more.split(',').nth(1).filter(|name| !name.is_empty());
    let host = match announced.unwrap_or(host) {
        "" => asked,
        host => host.trim_matches(['[', ']']),
    };
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "07c3 127.0.0.1:30004@31004 slave e7d1 0 1426238317239 4 connected\n\
        67ed :30002@31002,,shard-id=69bc myself,master - 0 1426238316232 2 connected 5461-10922 [93->-e7d1] [5540->-e7d1]\n\
        292f 10.0.0.3:30003@31003,three.example master,fail? - 0 1426238318243 3 connected 0 10923-16383\n";

    #[test]
    fn nodes_are_read_with_their_slots() {
        let nodes = lines(ANSWER, "seed");
        let [replica, own, failing] = &nodes[..] else {
            panic!("three nodes, but: {nodes:?}");
        };
        assert!(!replica.is_primary && replica.is_healthy);
        assert_eq!(own.endpoint, ("seed".to_owned(), 30_002));
        assert_eq!(own.slots, [5461..=10_922]);
        assert!(own.is_moving && own.is_healthy && own.config_epoch == 2);
        assert_eq!(failing.endpoint, ("three.example".to_owned(), 30_003));
        assert_eq!(failing.slots, [0..=0, 10_923..=16_383]);
        assert!(failing.is_primary && !failing.is_healthy);
    }

    /// Nothing of ours is in it.
    #[test]
    fn a_slot_that_moves_may_be_of_no_partition() {
        let moving = |text: &str| text.split(' ').any(is_of_partition);
        assert!(!moving("0-5460 [93->-e7d1]"));
        assert!(moving(&format!("0-5460 [{}-<-e7d1]", partitions::slot(3))));
    }

    #[test]
    fn a_view_has_the_healthy_primaries() {
        let view = ClusterView::parse(ANSWER);
        assert_eq!(
            (view.own_id.as_str(), view.primaries.as_str()),
            ("67ed", "67ed")
        );
    }
}
