//! Fencing tokens: the numbers that order the grants of a lock. The counters live in the stores.

use std::fmt;

/// Orders the grants of one lock: a later grant always has a larger one. Public.
///
/// `max(last + 1, the store's time in microseconds)` is a hybrid logical clock in one word (Kulkarni et al., "Logical
/// Physical Clocks", 2014): it grows even when the clock stops or steps back, and when the counter is lost and the
/// clock is right, it stays larger than everything granted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The largest fencing token, 2^53 - 1: JSON numbers represent it exactly in every language.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Takes a number that a store handed out.
    #[must_use]
    pub fn new(value: u64) -> Option<Self> {
        (value <= Self::MAX).then_some(Self(value))
    }

    /// The fencing token of the grant after `last`, at the store's time `now_us` (microseconds since 1970).
    ///
    /// None when the numbers are exhausted, which a correct clock reaches in the year 2255.
    #[must_use]
    pub fn after(last: u64, now_us: u64) -> Option<Self> {
        Self::new(last.checked_add(1)?.max(now_us))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_within_one_microsecond_and_when_the_clock_steps_back() {
        let first = Fence::after(0, 1_000).expect("far from the end");
        let second = Fence::after(first.get(), 1_000).expect("far from the end");
        let third = Fence::after(second.get(), 10).expect("far from the end");
        assert_eq!(
            [first.get(), second.get(), third.get()],
            [1_000, 1_001, 1_002]
        );
    }

    #[test]
    fn a_lost_counter_continues_from_the_clock() {
        assert_eq!(Fence::after(0, 7_000).map(Fence::get), Some(7_000));
    }

    #[test]
    fn the_last_number_is_granted_and_none_after_it() {
        assert_eq!(
            Fence::after(Fence::MAX - 1, 0).map(Fence::get),
            Some(Fence::MAX)
        );
        assert_eq!(Fence::after(Fence::MAX, 0), None);
        assert_eq!(Fence::after(u64::MAX, 0), None);
    }
}
