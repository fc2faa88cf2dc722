//! When the clocks are written although nothing has changed. How they are written is not known here.

use std::time::Duration;

use super::FileJournal;
use crate::store::state::StoreTime;

/// How old the clocks on the disk may become while there are leases but no changes.
const CLOCKS_AGE_MAX: Duration = Duration::from_secs(10);

/// The same when a process has just started, for the second of its regular checks. Otherwise no lease would end while the
/// process crashes again and again, a few seconds after its start.
const FIRST_CLOCKS_AGE_MAX: Duration = Duration::from_secs(1);

impl FileJournal {
    /// Writes the clocks if they are old: a lease lasts longer after a restart by that time.
    pub(in crate::store::file) fn write_clocks(&self, now: StoreTime) {
        let mut state = self.state();
        let age_max = match state.has_written_clocks {
            true => CLOCKS_AGE_MAX,
            false => FIRST_CLOCKS_AGE_MAX,
        };
        if state.written_at + age_max <= now && state.trouble.is_none() {
            state.has_written_clocks = true;
            state.batch.now = state.batch.now.max(now);
            state.batch.is_due = true;
            drop(state);
            self.changed.notify_one();
        }
    }
}
