//! How many keys a step of a scan visits: as many as Redis visits in a tenth of a millisecond, because a request of
//! anybody may have to wait for a whole step. The keys of locks take longer than others, because a step reads what it
//! finds, and all take longer on a slow machine.

use std::time::Duration;

/// How long Redis may work for a step. A shorter step would take a larger part of its time for itself, so that a listing
/// would take longer.
const STEP_TIME: Duration = Duration::from_micros(100);
const KEYS_MIN: usize = 10;
/// Some may be found twice, and take longer together with what Redis does besides.
pub(super) const KEYS_MAX: usize = 100;

/// The number of keys of the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepSize(usize);

impl StepSize {
    /// For the first step.
    pub(super) const FIRST: Self = Self(KEYS_MIN);

    pub(super) fn keys(self) -> usize {
        self.0
    }

    /// The size after a step for which Redis worked so long. Some versions do not say how long.
    #[must_use]
    pub(super) fn after(self, worked: Option<Duration>) -> Self {
        let Some(worked) = worked else {
            return Self(KEYS_MAX);
        };
        let keys = self.0 as u128 * STEP_TIME.as_micros() / worked.as_micros().max(1);
        let keys = usize::try_from(keys).unwrap_or(KEYS_MAX);
        Self(keys.clamp(KEYS_MIN, KEYS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BESIDES: Duration = Duration::from_micros(20);

    /// How long a step takes and how many keys it visits, after some steps whose keys take this long each.
    fn settled(each: Duration) -> (Duration, usize) {
        let mut size = StepSize::FIRST;
        let takes = |size: StepSize| BESIDES + each * size.keys() as u32;
        for _ in 0..10 {
            size = size.after(Some(takes(size)));
        }
        (takes(size), size.keys())
    }

    #[test]
    fn steps_take_as_long_as_they_may_and_visit_a_bounded_number_of_keys() {
        let (took, keys) = settled(Duration::from_micros(3));
        assert!(took <= STEP_TIME && took > STEP_TIME / 4 * 3, "{took:?}");
        assert!((20..30).contains(&keys), "{keys}");
        assert_eq!(settled(Duration::from_nanos(300)).1, KEYS_MAX);
        assert_eq!(settled(Duration::from_millis(1)).1, KEYS_MIN);
    }

    #[test]
    fn one_step_that_took_long_by_chance_makes_few_others_small() {
        let mut size = StepSize(KEYS_MAX).after(Some(Duration::from_millis(50)));
        assert_eq!(size, StepSize(KEYS_MIN));
        for _ in 0..3 {
            let takes = BESIDES + Duration::from_nanos(300) * size.keys() as u32;
            size = size.after(Some(takes));
        }
        assert_eq!(size, StepSize(KEYS_MAX));
    }

    #[test]
    fn without_its_time_a_step_is_as_large_as_it_may_be() {
        assert_eq!(StepSize::FIRST.after(None), StepSize(KEYS_MAX));
    }
}
