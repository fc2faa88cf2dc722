//! Who takes part in a story, and what may go wrong in it.

use super::Mistake;

/// The claims that come to wait.
pub(super) const CLAIMS: usize = 3;
pub(super) const PROCESSES: usize = 2;
/// How often a claim may be posted.
pub(super) const ATTEMPTS: usize = 2;
/// How long an impatient claim waits.
pub(super) const WAIT: u8 = 2;
/// The process that crashes or stands still, if one does.
pub(super) const UNLUCKY: usize = 0;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scenario {
    /// The process that each claim is posted to first.
    pub(super) homes: [usize; CLAIMS],
    /// Whether a claim that is posted again is posted to the same process, and not to the other.
    pub(super) returns_home: bool,
    /// The claims that share the lock with each other.
    pub(super) shares: [bool; CLAIMS],
    /// The claims that wait for a limited time when they are posted first.
    pub(super) is_impatient: [bool; CLAIMS],
    /// The claims whose client may hang up while it waits.
    pub(super) may_hang_up: [bool; CLAIMS],
    /// The claims whose client may post them again.
    pub(super) may_come_again: [bool; CLAIMS],
    /// How many requests to the store may get no answer, and arrive at any time or never.
    pub(super) delays: u8,
    pub(super) may_crash: bool,
    pub(super) may_stand_still: bool,
    pub(super) mistake: Option<Mistake>,
}

/// The first of the three claims.
pub(super) const FIRST: [bool; CLAIMS] = [true, false, false];

impl Scenario {
    /// Two claims on one process, one on the other, and messages that may be lost, late, repeated and out of order.
    pub(super) fn calm() -> Self {
        Self {
            homes: [0, 1, 0],
            ..Self::default()
        }
    }

    /// One process dies, and one of its clients goes to the other.
    pub(super) fn crash() -> Self {
        Self {
            may_crash: true,
            may_come_again: FIRST,
            ..Self::calm()
        }
    }

    /// One process stands still for any time while a claim waits there that does not wait for ever.
    pub(super) fn pause() -> Self {
        Self {
            may_stand_still: true,
            is_impatient: FIRST,
            ..Self::calm()
        }
    }

    /// A client hangs up and posts its claim to the other process, perhaps before the first has noticed.
    pub(super) fn hang_up() -> Self {
        Self {
            may_hang_up: FIRST,
            may_come_again: FIRST,
            ..Self::calm()
        }
    }

    /// A client hangs up and posts its claim to the same process.
    pub(super) fn return_home() -> Self {
        Self {
            returns_home: true,
            ..Self::hang_up()
        }
    }

    /// A client hangs up, and one ask arrives late or never.
    pub(super) fn late_ask() -> Self {
        Self {
            may_hang_up: FIRST,
            delays: 1,
            ..Self::calm()
        }
    }

    /// A wait runs out and goes on at the other process, and one ask arrives late or never.
    pub(super) fn resumed_wait() -> Self {
        Self {
            is_impatient: FIRST,
            may_come_again: FIRST,
            delays: 1,
            ..Self::calm()
        }
    }

    /// Two share the lock, and one wants it alone.
    pub(super) fn sharing() -> Self {
        Self {
            shares: [true, true, false],
            may_hang_up: [true, false, true],
            ..Self::calm()
        }
    }
}
