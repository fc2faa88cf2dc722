//! What the nodes of a Redis Cluster say about themselves and their slots, taken together.

use std::collections::{BTreeMap, BTreeSet};

use super::nodes::NodeLine;
use super::partitions;

/// The nodes, and the primary of each partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology {
    /// All nodes that are known, by their ids.
    pub(super) nodes: BTreeMap<String, NodeLine>,
    /// The ids of those that have answered.
    answered: BTreeSet<String>,
    /// By partition, the id of the primary that has its slot.
    owners: Vec<Option<String>>,
}

impl Topology {
    /// Merges the answers of several nodes.
    pub(super) fn of(answers: &[Vec<NodeLine>]) -> Self {
        let mut nodes: BTreeMap<String, NodeLine> = BTreeMap::new();
        for line in answers.iter().flatten() {
            let known = nodes.entry(line.id.clone()).or_insert_with(|| line.clone());
            let is_moving = known.is_moving || line.is_moving;
            if line.config_epoch > known.config_epoch {
                *known = line.clone();
            }
            known.is_moving = is_moving;
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
    pub(super) fn owner(&self, partition: usize) -> Option<&NodeLine> {
        self.nodes.get(self.owners.get(partition)?.as_ref()?)
    }

    /// The first partition of each primary that has some.
    pub(super) fn representatives(&self) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let is_first = |partition: &usize| {
            let owner = self.owners.get(*partition).and_then(Option::as_ref);
            owner.is_some_and(|id| seen.insert(id))
        };
        (0..partitions::COUNT).filter(is_first).collect()
    }

    /// Whether no slot is on its way, as every healthy primary has said.
    pub(super) fn is_settled(&self) -> bool {
        let mut primaries = self
            .nodes
            .values()
            .filter(|it| it.is_primary && it.is_healthy);
        primaries.all(|node| self.answered.contains(&node.id))
            && !self.nodes.values().any(|node| node.is_moving)
    }

    /// The partitions that a primary has.
    pub(super) fn partitions_of(&self, id: &str) -> usize {
        let owners = self.owners.iter().flatten();
        owners.filter(|owner| *owner == id).count()
    }

    /// How many partitions have no primary.
    pub(super) fn homeless(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// Whether both have the same primaries with the same partitions.
    pub(super) fn has_same_owners(&self, other: &Self) -> bool {
        self.owners == other.owners
    }

    /// The ids of the primaries.
    pub(super) fn primaries(&self) -> BTreeSet<&String> {
        let primaries = self.nodes.values().filter(|node| node.is_primary);
        primaries.map(|node| &node.id).collect()
    }
}

impl NodeLine {
    /// Its address as operators write it.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.endpoint.0, self.endpoint.1)
    }

    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::nodes;

    fn answer(owner: &str, epoch: u64) -> Vec<NodeLine> {
        let line = |id: &str, port: u16, epoch, slots| {
            format!("{id} 127.0.0.1:{port}@1 master - 0 0 {epoch} connected {slots}\n")
        };
        let slots = |id| if id == owner { "0-16383" } else { "" };
        let text = line("a", 1, if owner == "a" { epoch } else { 1 }, slots("a"))
            + &line("b", 2, if owner == "b" { epoch } else { 2 }, slots("b"));
        nodes::lines(&text, "")
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
        let mut moving = answer_of("b");
        moving[1].is_moving = true;
        assert!(!Topology::of(&[answer_of("a"), moving]).is_settled());
    }

    #[test]
    fn a_partition_whose_slot_no_primary_has_is_homeless() {
        let mut lines = answer("a", 1);
        lines[0].slots = vec![0..=8_191];
        let topology = Topology::of(&[lines]);
        assert_eq!(topology.homeless(), partitions::COUNT / 2);
    }
}
