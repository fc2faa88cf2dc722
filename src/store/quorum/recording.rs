//! Having decided tokens recorded: what a node answers to that, and with which tokens to try again.

use super::answers::ByNode;
use crate::domain::{Attempt, Fence};
use crate::store::assignment::{FenceChange, PermitUse};

/// How often tokens are decided for one grant, if some may be those of other claims that share the locks.
pub(super) const RECORDINGS_MAX: u8 = 8;

/// By how much tokens that are decided again are at most ahead of what the nodes have given. Nodes propose the time in
/// microseconds, and would pass a token that is not ahead before it arrives.
const LEAD_MAX_US: u64 = 2_000;

/// What a node has done with the decided tokens.
#[derive(Clone, Debug)]
pub(super) enum Recording {
    /// The claim has them. Who takes permits of each lock, if the claim takes some of a limit.
    Recorded(Vec<Vec<PermitUse>>),
    /// The node does not hold the claim's leases.
    NotHeld,
    /// They may be those of other leases. The largest that the node has given, for each lock.
    Taken(Vec<u64>),
}

/// Who takes permits at the nodes that have recorded the tokens.
pub(super) fn recorded(
    recordings: &ByNode<Recording>,
) -> impl Iterator<Item = &Vec<Vec<PermitUse>>> {
    recordings
        .received()
        .filter_map(|recording| match recording {
            Recording::Recorded(permits_used) => Some(permits_used),
            Recording::NotHeld | Recording::Taken(_) => None,
        })
}

/// The largest tokens that the nodes report which have refused the decided ones.
pub(super) fn taken(recordings: &ByNode<Recording>) -> impl Iterator<Item = &[u64]> {
    recordings
        .received()
        .filter_map(|recording| match recording {
            Recording::Taken(counters) => Some(&counters[..]),
            Recording::Recorded(_) | Recording::NotHeld => None,
        })
}

/// Tokens that are larger than those that were decided before and than all that these nodes have given. None if no node
/// has refused them for that reason.
pub(super) fn fences_above<'a>(
    decided: &[Fence],
    taken: impl Iterator<Item = &'a [u64]>,
) -> Option<Vec<Fence>> {
    let mut is_taken = false;
    let mut largest: Vec<u64> = decided.iter().map(|fence| fence.get()).collect();
    for counters in taken {
        is_taken = true;
        for (largest, counter) in largest.iter_mut().zip(counters) {
            *largest = (*largest).max(*counter);
        }
    }
    // Claims that meet at several nodes would meet again if they decided the same tokens.
    let lead = fastrand::u64(1..=LEAD_MAX_US);
    let above = largest.iter().map(|largest| Fence::new(largest + lead));
    above.collect::<Option<_>>().filter(|_| is_taken)
}

/// The change of each lease from its present token to the decided one, by the attempt that knows the present one.
pub(super) fn changes(
    present: &[Fence],
    decided: &[Fence],
    is_recorded: bool,
    attempt: Option<Attempt>,
) -> Vec<FenceChange> {
    let pairs = present.iter().zip(decided);
    let changes = pairs.map(|(present, decided)| FenceChange {
        proposed: *present,
        decided: *decided,
        is_recorded,
        attempt,
        gives_options: false,
    });
    changes.collect()
}
