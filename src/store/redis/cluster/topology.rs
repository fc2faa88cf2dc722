//! Reads `CLUSTER NODES`: what the nodes of a Redis Cluster say about themselves and their slots, taken together.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::moves::SlotMove;
use super::partitions;
use crate::store::redis::transport::Endpoint;

/// The nodes, and the primary of each partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store::redis) struct Topology {
    /// All nodes that are known, by their ids.
    pub(in crate::store::redis) nodes: BTreeMap<String, NodeLine>,
    /// The ids of those that have answered.
    pub(super) answered: BTreeSet<String>,
    /// By partition, the id of the primary that has its slot.
    owners: Vec<Option<String>>,
}

impl Topology {
    /// Merges the answers of several nodes.
    pub(in crate::store::redis) fn of(answers: &[Vec<NodeLine>]) -> Self {
        let mut nodes: BTreeMap<String, NodeLine> = BTreeMap::new();
        for line in answers.iter().flatten() {
            let known = nodes.entry(line.id.clone()).or_insert_with(|| line.clone());
            let moves = match line.is_myself {
                true => line.moves.clone(),
                false => std::mem::take(&mut known.moves),
            };
            if line.config_epoch > known.config_epoch {
                *known = line.clone();
            }
            known.moves = moves;
        }
        let owner = |partition| {
            let slot = partitions::slot(partition);
            let claims = answers.iter().flatten();
            let claims = claims.filter(|it| it.is_primary && it.has(slot));
            claims
                .max_by_key(|it| it.config_epoch)
                .map(|it| it.id.clone())
        };
        let own = answers.iter().flatten().filter(|line| line.is_myself);
        Self {
            owners: (0..partitions::COUNT).map(owner).collect(),
            answered: own.map(|line| line.id.clone()).collect(),
            nodes,
        }
    }

    /// The primary that has a partition.
    pub(in crate::store::redis) fn owner(&self, partition: usize) -> Option<&NodeLine> {
        self.nodes.get(self.owners.get(partition)?.as_ref()?)
    }

    /// The first partition of each primary that has some.
    pub(in crate::store::redis) fn representatives(&self) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let is_first = |partition: &usize| {
            let owner = self.owners.get(*partition).and_then(Option::as_ref);
            owner.is_some_and(|id| seen.insert(id))
        };
        (0..partitions::COUNT).filter(is_first).collect()
    }

    /// The partitions that have the same primary as this one, itself included.
    pub(in crate::store::redis) fn partitions_beside(&self, partition: usize) -> Vec<usize> {
        let owner_of = |partition: usize| self.owners.get(partition)?.as_ref();
        let is_beside = |other: &usize| owner_of(*other) == owner_of(partition);
        (0..self.owners.len()).filter(is_beside).collect()
    }

    /// Whether no owner gives a slot away, as every healthy primary has said.
    pub(in crate::store::redis) fn is_settled(&self) -> bool {
        self.silent_primary().is_none() && self.leaving().next().is_none()
    }

    /// A healthy primary that has not answered.
    pub(in crate::store::redis) fn silent_primary(&self) -> Option<&NodeLine> {
        let mut primaries = self
            .nodes
            .values()
            .filter(|it| it.is_primary && it.is_healthy);
        primaries.find(|node| !self.answered.contains(&node.id))
    }

    /// The first partition of a node; none if it has none.
    pub(in crate::store::redis) fn first_of(&self, node: &NodeLine) -> Option<usize> {
        let mut owners = self.owners.iter();
        owners.position(|owner| owner.as_ref() == Some(&node.id))
    }

    /// The partitions that a primary has.
    pub(in crate::store::redis) fn partitions_of(&self, id: &str) -> usize {
        let owners = self.owners.iter().flatten();
        owners.filter(|owner| *owner == id).count()
    }

    /// How many partitions have no primary.
    pub(in crate::store::redis) fn count_without_primary(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// Whether both have the same primaries with the same partitions.
    pub(in crate::store::redis) fn has_same_owners(&self, other: &Self) -> bool {
        self.owners == other.owners
    }

    /// The ids of the primaries.
    pub(in crate::store::redis) fn primaries(&self) -> BTreeSet<&String> {
        let primaries = self.nodes.values().filter(|node| node.is_primary);
        primaries.map(|node| &node.id).collect()
    }
}

impl NodeLine {
    /// Its address as operators write it.
    pub(in crate::store::redis) fn place(&self) -> String {
        format!("{}:{}", self.endpoint.0, self.endpoint.1)
    }

    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }
}

/// One line of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct NodeLine {
    pub(in crate::store::redis) id: String,
    pub(in crate::store::redis) endpoint: Endpoint,
    pub(in crate::store::redis) is_myself: bool,
    pub(in crate::store::redis) is_primary: bool,
    /// Whether the node that answers takes it for one that takes part in the cluster.
    pub(in crate::store::redis) is_healthy: bool,
    /// The larger one of two nodes with the same slot has it.
    pub(in crate::store::redis) config_epoch: u64,
    pub(in crate::store::redis) slots: Vec<RangeInclusive<u16>>,
    /// The slots of partitions that are on their way from or to it. Only a node itself knows that.
    pub(in crate::store::redis) moves: Vec<SlotMove>,
}

/// What a node knows about itself and the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store::redis) struct ClusterView {
    /// Its own id.
    pub(in crate::store::redis) own_id: String,
    /// The ids of all healthy primaries, with a space between two.
    pub(in crate::store::redis) primaries: String,
}

impl ClusterView {
    pub(in crate::store::redis) fn parse(answer: &str) -> Self {
        let nodes = node_lines(answer, "");
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
pub(in crate::store::redis) fn node_lines(answer: &str, asked: &str) -> Vec<NodeLine> {
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
    let (mut slots, mut moves) = (Vec::new(), Vec::new());
    for word in words {
        moves.extend(SlotMove::parse(word));
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
        moves,
    })
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
        let nodes = node_lines(ANSWER, "seed");
        let [replica, own, failing] = &nodes[..] else {
            panic!("three nodes, but: {nodes:?}");
        };
        assert!(!replica.is_primary && replica.is_healthy);
        assert_eq!(own.endpoint, ("seed".to_owned(), 30_002));
        assert_eq!(own.slots, [5461..=10_922]);
        assert!(own.is_healthy && own.config_epoch == 2);
        // No partition has slot 93.
        let moving = SlotMove::parse("[5540->-e7d1]");
        assert_eq!(own.moves, [moving.expect("a partition has it")]);
        assert_eq!(failing.endpoint, ("three.example".to_owned(), 30_003));
        assert_eq!(failing.slots, [0..=0, 10_923..=16_383]);
        assert!(failing.is_primary && !failing.is_healthy);
    }

    #[test]
    fn a_view_has_the_healthy_primaries() {
        let view = ClusterView::parse(ANSWER);
        assert_eq!(
            (view.own_id.as_str(), view.primaries.as_str()),
            ("67ed", "67ed")
        );
    }

    fn answer(owner: &str, epoch: u64) -> Vec<NodeLine> {
        let line = |id: &str, port: u16, epoch, slots| {
            format!("{id} 127.0.0.1:{port}@1 master - 0 0 {epoch} connected {slots}\n")
        };
        let slots = |id| if id == owner { "0-16383" } else { "" };
        let text = line("a", 1, if owner == "a" { epoch } else { 1 }, slots("a"))
            + &line("b", 2, if owner == "b" { epoch } else { 2 }, slots("b"));
        node_lines(&text, "")
    }

    #[test]
    fn of_two_primaries_with_a_slot_the_one_with_the_later_configuration_has_it() {
        let answers = [answer("a", 3), answer("b", 4)];
        for answers in [answers.clone(), [answers[1].clone(), answers[0].clone()]] {
            let topology = Topology::of(&answers);
            let owner = topology.owner(7).expect("there is one");
            assert_eq!(owner.id, "b");
            assert_eq!(topology.partitions_of("b"), partitions::COUNT);
            assert_eq!(topology.representatives(), [0]);
            let all: Vec<_> = (0..partitions::COUNT).collect();
            assert_eq!(topology.partitions_beside(3), all);
        }
    }

    #[test]
    fn slots_may_be_on_their_way_until_every_primary_has_answered() {
        let answer_of = |id| {
            let mut lines = answer("a", 3);
            lines.iter_mut().for_each(|it| it.is_myself = it.id == id);
            lines
        };
        assert!(!Topology::of(&[answer_of("a")]).is_settled());
        assert!(Topology::of(&[answer_of("a"), answer_of("b")]).is_settled());
        let moving = |id, number: usize, word: &str| {
            let word = word.replace("SLOT", &partitions::slot(3).to_string());
            let mut lines = answer_of(id);
            lines[number].moves.extend(SlotMove::parse(&word));
            Topology::of(&[lines, answer_of(if id == "a" { "b" } else { "a" })])
        };
        let leaving = moving("a", 0, "[SLOT->-b]");
        assert!(!leaving.is_settled());
        assert!(leaving.moving_finding().is_some());
        // The move has not begun, or is over: the owner has all keys.
        for of_other in ["[SLOT-<-a]", "[SLOT->-a]"] {
            let settled = moving("b", 1, of_other);
            assert!(settled.is_settled(), "{of_other}");
            assert!(settled.moving_finding().is_none(), "{of_other}");
        }
    }

    #[test]
    fn a_partition_whose_slot_no_primary_has_is_homeless() {
        let mut lines = answer("a", 1);
        lines[0].slots = vec![0..=8_191];
        let topology = Topology::of(&[lines]);
        assert_eq!(topology.count_without_primary(), partitions::COUNT / 2);
    }
}
