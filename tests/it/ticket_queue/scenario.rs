//! The scenarios: their claims, and the faults that may happen.

use super::Mistake;

/// The number of waiting claims.
pub(super) const CLAIMS: usize = 3;
pub(super) const PROCESSES: usize = 2;
/// How often a claim may be posted.
pub(super) const ATTEMPTS: usize = 2;
/// The wait of a claim with a limited wait.
pub(super) const WAIT: u8 = 2;
/// The process that crashes or is paused, if any.
pub(super) const UNLUCKY: usize = 0;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scenario {
    /// The process that each claim is posted to first.
    pub(super) homes: [usize; CLAIMS],
    /// Whether a claim is posted again to the same process, rather than to the other one.
    pub(super) returns_home: bool,
    /// The claims that share the lock with each other.
    pub(super) shares: [bool; CLAIMS],
    /// The claims that wait for a limited time when they are posted first.
    pub(super) is_impatient: [bool; CLAIMS],
    /// The claims whose client may hang up while it waits.
    pub(super) may_hang_up: [bool; CLAIMS],
    /// The claims whose client may post them again.
    pub(super) may_come_again: [bool; CLAIMS],
    /// How many store operations may get no reply, and arrive at any time or never.
    pub(super) delays: u8,
    pub(super) may_crash: bool,
    pub(super) may_pause: bool,
    pub(super) mistake: Option<Mistake>,
}

/// The first of the three claims.
pub(super) const FIRST: [bool; CLAIMS] = [true, false, false];

impl Scenario {
    /// Two claims on one process, one on the other; messages may be lost, late, repeated and out of order.
    pub(super) fn calm() -> Self {
        Self {
            homes: [0, 1, 0],
            ..Self::default()
        }
    }

    /// One process crashes, and one of its clients moves to the other.
    pub(super) fn crash() -> Self {
        Self {
            may_crash: true,
            may_come_again: FIRST,
            ..Self::calm()
        }
    }

    /// One process is paused for any time while a claim with a limited wait waits there.
    pub(super) fn pause() -> Self {
        Self {
            may_pause: true,
            is_impatient: FIRST,
            ..Self::calm()
        }
    }

    /// A client disconnects and posts its claim to the other process, possibly before the first one has detected it.
    pub(super) fn hang_up() -> Self {
        Self {
            may_hang_up: FIRST,
            may_come_again: FIRST,
            ..Self::calm()
        }
    }

    /// A client disconnects and posts its claim to the same process.
    pub(super) fn return_home() -> Self {
        Self {
            returns_home: true,
            ..Self::hang_up()
        }
    }

    /// A client disconnects, and one poll arrives late or never.
    pub(super) fn late_poll() -> Self {
        Self {
            may_hang_up: FIRST,
            delays: 1,
            ..Self::calm()
        }
    }

    /// A wait times out and is resumed on the other process, and one poll arrives late or never.
    pub(super) fn resumed_wait() -> Self {
        Self {
            is_impatient: FIRST,
            may_come_again: FIRST,
            delays: 1,
            ..Self::calm()
        }
    }

    /// Two claims share the lock, and one is exclusive.
    pub(super) fn sharing() -> Self {
        Self {
            shares: [true, true, false],
            may_hang_up: [true, false, true],
            ..Self::calm()
        }
    }
}
