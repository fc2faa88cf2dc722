//! Until when a change of a lease may be carried out at a node. Nodes cannot tell which of two changes is the later one.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Claim, HoldCount};

/// By when a change of a lease has reached a node, or is not carried out there. The answer to the change waits as long for
/// the slowest node: whatever changes the lease after that answer must not be undone by a message that is late.
pub(super) const CHANGE_WITHIN: Duration = Duration::from_millis(500);

/// The deadline of a change of a lease at the nodes, all of which are waited for until then.
pub(super) fn of_change(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + CHANGE_WITHIN)
}

/// The deadline of an acquire at the nodes.
pub(super) fn of_acquire(claim: &Claim, deadline: Instant) -> Instant {
    match may_re_enter(claim) {
        true => of_change(deadline),
        false => deadline,
    }
}

/// Whether an acquire may change a lease that the claim has.
pub(super) fn may_re_enter(claim: &Claim) -> bool {
    claim.hold_count > HoldCount::ONE
}
