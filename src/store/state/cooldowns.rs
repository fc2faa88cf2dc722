//! What ended leases of one lock keep taken (`lock_delay`, `min_hold`), and until when. `lock` decides what follows from it.

use std::collections::BTreeMap;

use super::StoreTime;
use super::lease::permits;
use crate::domain::{Fence, Mode};

/// The cool-downs of one lock, by their ends and the fencing tokens of the leases. All have one mode.
#[derive(Debug, Default)]
pub(super) struct Cooldowns {
    modes: BTreeMap<(StoreTime, Fence), Mode>,
    /// How many permits they take together.
    permits: u64,
}

impl Cooldowns {
    pub(super) fn insert(&mut self, until: StoreTime, fence: Fence, mode: Mode) {
        self.remove(until, fence);
        self.modes.insert((until, fence), mode);
        self.permits += permits(mode);
    }

    pub(super) fn remove(&mut self, until: StoreTime, fence: Fence) -> Option<Mode> {
        let mode = self.modes.remove(&(until, fence))?;
        self.permits -= permits(mode);
        Some(mode)
    }

    /// Removes the one that ends first, if it has ended by `now`.
    pub(super) fn remove_ended(&mut self, now: StoreTime) -> Option<(StoreTime, Fence)> {
        let (&(until, fence), _) = self.modes.first_key_value()?;
        if until > now {
            return None;
        }
        self.remove(until, fence);
        Some((until, fence))
    }

    pub(super) fn get(&self, until: StoreTime, fence: Fence) -> Option<Mode> {
        self.modes.get(&(until, fence)).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (StoreTime, Fence, Mode)> {
        let modes = self.modes.iter();
        modes.map(|((until, fence), mode)| (*until, *fence, *mode))
    }

    pub(super) fn mode(&self) -> Option<Mode> {
        self.modes.values().next().copied()
    }

    pub(super) fn permits(&self) -> u64 {
        self.permits
    }

    /// When the first one ends.
    pub(super) fn first_end(&self) -> Option<StoreTime> {
        Some(self.modes.first_key_value()?.0.0)
    }

    /// When the last one ends.
    pub(super) fn last_end(&self) -> Option<StoreTime> {
        Some(self.modes.last_key_value()?.0.0)
    }

    pub(super) fn len(&self) -> usize {
        self.modes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.modes.is_empty()
    }
}
