//! What one lock of the [memory store](super) guards. When notifications are delivered is not known here.

use std::sync::Arc;

use super::Journal;
use crate::store::state::{Applied, Notification, State, StoreTime};

/// The state, and the notifications of its steps that are not delivered yet.
pub(super) struct Guarded {
    pub(super) state: State,
    pub(super) pending: Vec<Notification>,
    pub(super) journal: Option<Arc<dyn Journal>>,
}

impl Guarded {
    pub(super) fn step<T>(
        &mut self,
        now: StoreTime,
        step: impl FnOnce(&mut State, StoreTime) -> Applied<'_, T>,
    ) -> T {
        if let Some(journal) = &self.journal {
            self.state.admit_claims(!journal.is_full());
        }
        let Applied {
            answer,
            notifications,
            ..
        } = step(&mut self.state, now);
        match &self.journal {
            Some(journal) => journal.record(&self.state, now, notifications),
            None => self.pending.extend(notifications),
        }
        answer
    }
}
