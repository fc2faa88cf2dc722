//! How the steps of the state are recorded in the journal, and the pace of the steps for which no request waits. When a
//! commit writes them is not known here.

use async_trait::async_trait;
use tokio::time::Instant;

use super::super::super::memory::Journal;
use super::super::super::state::{Notification, State, StoreTime};
use super::super::rows::Progress;
use super::{FileJournal, LATE};

/// With more rows than this in one commit, sweeps and evictions wait: all requests wait for the whole commit. Each row may
/// be on another page, and while the disk is full, what replaces them has to fit into what was the reserve.
const ROWS_PER_COMMIT: usize = 512;

#[async_trait]
impl Journal for FileJournal {
    fn record(&self, state: &State, now: StoreTime, notifications: Vec<Notification>) {
        let mut rows = state.encode_changed_rows(self.downtime).peekable();
        if rows.peek().is_none() && notifications.is_empty() {
            return;
        }
        let mut state = self.state();
        state.batch.rows.extend(rows);
        state.batch.notifications.extend(notifications);
        // A check of the clocks may have been later than this step, and the time of commits never goes back.
        state.batch.now = state.batch.now.max(now);
        state.batch.is_due = true;
        drop(state);
        self.changed.notify_one();
    }

    fn is_full(&self) -> bool {
        self.is_full()
    }

    fn is_late(&self) -> bool {
        let state = self.state();
        let is_slow = state.committing.is_some() && state.committing_since.elapsed() >= LATE;
        is_slow || state.trouble.is_some() || Instant::now() < state.late_until
    }

    async fn room(&self) -> bool {
        loop {
            let mut progress = {
                let state = self.state();
                // The next commit may come at any time or never.
                if state.trouble.is_some() || state.is_closed {
                    return false;
                }
                if state.batch.rows.len() <= ROWS_PER_COMMIT {
                    return true;
                }
                state.batch.progress.subscribe()
            };
            // An error says that the batch is gone, too.
            let _ = progress
                .wait_for(|progress| *progress != Progress::Pending)
                .await;
        }
    }
}
