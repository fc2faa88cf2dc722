//! Slots on their way from one node to another, and what operators are told about them.

use super::partitions;
use super::topology::{NodeLine, Topology};
use crate::store::Finding;
use crate::store::redis::redirection::HOW_TO_END;

/// A slot of a partition that is on its way, as one of the two nodes knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct SlotMove {
    slot: u16,
    /// Whether it is on its way from the node that knows it, rather than to it.
    is_leaving: bool,
    /// The id of the other node.
    other: String,
}

impl SlotMove {
    /// `[7->-id]` or `[7-<-id]`; none if no partition has the slot.
    pub(super) fn parse(word: &str) -> Option<Self> {
        let (slot, rest) = word.strip_prefix('[')?.strip_suffix(']')?.split_once('-')?;
        let (direction, other) = rest.split_once('-')?;
        let slot = slot.parse().ok()?;
        let is_of_partition = (0..partitions::COUNT).any(|it| partitions::slot(it) == slot);
        is_of_partition.then(|| Self {
            slot,
            is_leaving: direction == ">",
            other: other.to_owned(),
        })
    }
}

impl Topology {
    /// The slots that their owners give away. What another node knows of a move is not yet true, or is left over from one:
    /// it has none of the keys.
    pub(super) fn leaving(&self) -> impl Iterator<Item = (&NodeLine, &SlotMove)> {
        let partitions = 0..partitions::COUNT;
        partitions.filter_map(|partition| {
            let (owner, slot) = (self.owner(partition)?, partitions::slot(partition));
            let mut moves = owner.moves.iter();
            let leaving = moves.find(|it| it.is_leaving && it.slot == slot);
            leaving.map(|it| (owner, it))
        })
    }

    /// The slots of which Redis refuses most requests, because their owners give them away.
    pub(in crate::store::redis) fn moving_finding(&self) -> Option<Finding> {
        let moving: Vec<_> = self
            .leaving()
            .map(|(owner, slot_move)| self.sentence(owner, slot_move))
            .collect();
        (!moving.is_empty()).then(|| Finding {
            topic: "moving_slots",
            is_fine: false,
            detail: format!(
                "{}; Redis refuses most requests for locks in such a slot until then; {HOW_TO_END}",
                moving.join(", ")
            ),
        })
    }

    fn sentence(&self, from: &NodeLine, slot_move: &SlotMove) -> String {
        let SlotMove { slot, other, .. } = slot_move;
        let imports = |to: &NodeLine| {
            let mut known = to.moves.iter();
            known.any(|it| it.slot == *slot && it.other == from.id && !it.is_leaving)
        };
        let target = self.nodes.get(other);
        let (from, to) = (
            from.place(),
            target.map_or_else(|| other.clone(), NodeLine::place),
        );
        // One that has not answered may import it.
        match self.answered.contains(other) && !target.is_some_and(imports) {
            true => {
                format!("slot {slot} is MIGRATING from {from} to {to}, which does not import it")
            }
            false if target.is_some_and(|target| !target.is_healthy) => {
                format!("slot {slot} is on its way from {from} to {to}, which is down")
            }
            false => format!("slot {slot} is on its way from {from} to {to}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::node_lines;
    use super::*;

    /// Nothing of ours is in it.
    #[test]
    fn a_slot_that_moves_may_be_of_no_partition() {
        let count = |text: &str| text.split(' ').filter_map(SlotMove::parse).count();
        assert_eq!(count("0-5460 [93->-e7d1]"), 0);
        assert_eq!(
            count(&format!("0-5460 [{}-<-e7d1]", partitions::slot(3))),
            1
        );
    }

    #[test]
    fn a_slot_that_the_other_node_does_not_import_is_named_as_such() {
        let slot = partitions::slot(3);
        let answer = |of_a: &str, of_b: &str| {
            let line = |id: &str, port: u8, own: &str| {
                let myself = if own.is_empty() { "" } else { "myself," };
                format!("{id} 127.0.0.1:{port}@1 {myself}master - 0 0 1 connected {own}\n")
            };
            node_lines(&(line("a", 1, of_a) + &line("b", 2, of_b)), "")
        };
        let leaving = answer(&format!("0-16383 [{slot}->-b]"), "");
        let importing = answer("", &format!("[{slot}-<-a]"));
        let said = |answers: &[Vec<NodeLine>]| {
            let finding = Topology::of(answers).moving_finding()?;
            assert!(!finding.is_fine);
            Some(finding.detail.split(';').next()?.to_owned())
        };
        let begun = format!("slot {slot} is on its way from 127.0.0.1:1 to 127.0.0.1:2");
        assert_eq!(said(std::slice::from_ref(&leaving)), Some(begun.clone()));
        assert_eq!(said(&[leaving.clone(), importing.clone()]), Some(begun));
        let half = format!(
            "slot {slot} is MIGRATING from 127.0.0.1:1 to 127.0.0.1:2, which does not import it"
        );
        assert_eq!(said(&[answer("", "7"), leaving.clone()]), Some(half));
        let mut down = leaving;
        down[1].is_healthy = false;
        let begun =
            format!("slot {slot} is on its way from 127.0.0.1:1 to 127.0.0.1:2, which is down");
        assert_eq!(said(&[down]), Some(begun));
        // Its owner does not know of the move, and refuses nothing.
        assert_eq!(said(&[answer("7", ""), importing]), None);
    }
}
