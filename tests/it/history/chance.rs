//! Random numbers from a seed, so that a seed gives the same plans again (SplitMix64).

use std::time::Duration;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    /// The sequence for one part of a run.
    pub(super) fn new(seed: u64, part: u64) -> Self {
        let mut chance = Self(seed ^ part.wrapping_mul(0xA24B_AED4_963E_E407));
        chance.next();
        chance
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Any number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// An index into something of this length.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is below a usize")
    }

    /// True with this probability.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A duration between these numbers of milliseconds.
    pub(super) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }

    pub(super) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }

    /// A random token.
    pub(super) fn token(&mut self) -> String {
        let (high, low) = (u128::from(self.next()), u128::from(self.next()));
        uuid::Builder::from_random_bytes((high << 64 | low).to_be_bytes())
            .into_uuid()
            .to_string()
    }

    pub(super) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.index(last + 1));
        }
    }
}
