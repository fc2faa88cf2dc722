//! Until when a change of a lease may be carried out at a node. Nodes cannot tell which of two changes is the later one.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Claim, HoldCount};

/// By when a change of a lease has reached a node, or is not carried out there. The answer to the change waits as long for
/// the slowest node: whatever changes the lease after that answer must not be undone by a message that is late.
pub(super) const CHANGE_WITHIN: Duration = Duration::from_millis(500);

/// When a node that did not grant what a majority has granted is asked again: what was in the way there is mostly the lease
/// of a contender that is being rolled back.
pub(super) const CATCH_UP_PAUSES: [Duration; 2] =
    [Duration::from_millis(20), Duration::from_millis(150)];

/// How long one step of catching up may take.
pub(super) const CATCH_UP_MAX: Duration = Duration::from_secs(1);

/// How long a renewal may take to give a node its lease back.
pub(super) const RESTORE_MAX: Duration = Duration::from_secs(2);

/// For how long after its deadline a grant or a renewal may give a node the lease that it lacks.
pub(super) const GIVEN_MAX: Duration = Duration::from_secs(4);

const _: () = {
    // One step with each pause, and the last token.
    let [first, second] = CATCH_UP_PAUSES;
    let catch_up = first.as_millis() + second.as_millis() + 3 * CATCH_UP_MAX.as_millis();
    assert!(catch_up < GIVEN_MAX.as_millis() && RESTORE_MAX.as_millis() < GIVEN_MAX.as_millis());
};

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
