//! What has changed and is not on the disk yet, and who waits for it. One task writes it: all that has come together
//! since the last commit is the next commit. How rows are written is not known here.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};

use super::super::memory::{self, deliver};
use super::super::state::{Downtime, Notification, State, StoreTime};
use super::super::{Fault, Listener, StoreError};
use super::disk::{Clocks, Disk, Rows};
use crate::backoff::Backoff;

/// After a failed commit, the next one is tried after this time, doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// With more rows than this in one commit, sweeps wait: everybody else waits for the whole commit.
const ROWS_PER_SWEEP: usize = 2_048;

/// The changes since the last commit.
pub(super) struct FileJournal {
    state: Mutex<JournalState>,
    changed: Notify,
    downtime: Downtime,
    pub(super) listener: OnceLock<Arc<dyn Listener>>,
    commits: AtomicU64,
    failed_commits: AtomicU64,
}

struct JournalState {
    batch: Batch,
    /// The commit in progress.
    committing: Option<watch::Receiver<Progress>>,
    /// Why the last commit failed. Nothing is changed until one succeeds: the state would be ever further ahead of the
    /// disk, and nothing of it could be reported.
    trouble: Option<String>,
    /// When clocks were written last.
    written_at: StoreTime,
    is_closed: bool,
}

/// What one commit writes, and the notifications that follow it.
struct Batch {
    rows: Rows,
    notifications: Vec<Notification>,
    /// The time of the last step.
    now: StoreTime,
    /// Whether there is something to do.
    is_due: bool,
    progress: watch::Sender<Progress>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Pending,
    Written,
    Failed,
}

impl FileJournal {
    /// An empty journal of a store that was last written at this time.
    pub(super) fn new(downtime: Downtime, written_at: StoreTime) -> Self {
        Self {
            state: Mutex::new(JournalState {
                batch: Batch::new(written_at),
                committing: None,
                trouble: None,
                written_at,
                is_closed: false,
            }),
            changed: Notify::new(),
            downtime,
            listener: OnceLock::new(),
            commits: AtomicU64::new(0),
            failed_commits: AtomicU64::new(0),
        }
    }

    /// Fails if changes cannot be written at present.
    pub(super) fn accepts(&self) -> Result<(), StoreError> {
        let state = self.state();
        let unavailable = |detail: &dyn Display| StoreError::unavailable(Fault::ReadOnly, detail);
        match &state.trouble {
            Some(trouble) => Err(unavailable(trouble)),
            None if state.is_closed => Err(unavailable(&"the store is closed")),
            None => Ok(()),
        }
    }

    /// Why changes cannot be written at present.
    pub(super) fn trouble(&self) -> Option<String> {
        self.state().trouble.clone()
    }

    /// How many commits have succeeded, and how many have failed.
    pub(super) fn commits(&self) -> [u64; 2] {
        [&self.commits, &self.failed_commits].map(|count| count.load(Ordering::Relaxed))
    }

    /// Waits until everything that steps have changed so far is on the disk.
    ///
    /// # Errors
    /// A commit failed, or none has succeeded before the deadline. The changes may be on the disk or not.
    pub(super) async fn written(&self, deadline: Instant) -> Result<(), StoreError> {
        let progress = {
            let state = self.state();
            match state.batch.is_due {
                true => Some(state.batch.progress.subscribe()),
                false => state.committing.clone(),
            }
        };
        let Some(mut progress) = progress else {
            return Ok(());
        };
        let over = async {
            let over = progress.wait_for(|progress| *progress != Progress::Pending);
            over.await.map(|progress| *progress)
        };
        match timeout_at(deadline, over).await {
            Ok(Ok(Progress::Written)) => Ok(()),
            Ok(_) => {
                let trouble = self.trouble();
                let detail = trouble.as_deref().unwrap_or("the commit failed");
                Err(StoreError::unknown(Fault::ReadOnly, detail))
            }
            Err(_) => {
                let detail = "the disk did not confirm the commit in time";
                Err(StoreError::unknown(Fault::Timeout, detail))
            }
        }
    }

    /// Writes the clocks if they were written longer than `age` ago: a lease lasts longer after a restart by that time.
    pub(super) fn write_clocks(&self, now: StoreTime, age: Duration) {
        let mut state = self.state();
        if state.written_at + age <= now && state.trouble.is_none() {
            state.batch.now = state.batch.now.max(now);
            state.batch.is_due = true;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Ends the journal: what is not written yet is written, with these clocks, if that is possible.
    pub(super) fn close(&self, now: StoreTime) {
        let mut state = self.state();
        state.is_closed = true;
        state.batch.now = state.batch.now.max(now);
        state.batch.is_due = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Writes batch after batch until the journal is closed.
    pub(super) async fn write_to(self: Arc<Self>, disk: Disk) {
        let disk = Arc::new(Mutex::new(disk));
        let mut backoff = Backoff::default();
        while let Some((batch, is_last)) = self.next().await {
            let (disk, clocks) = (Arc::clone(&disk), self.clocks(batch.now));
            // Cancellation safety: this task ends with its runtime only, and the commit then succeeds or not, unreported.
            let written = tokio::task::spawn_blocking(move || {
                let mut disk = disk.lock().unwrap_or_else(|panicked| panicked.into_inner());
                let written = disk.write(&batch.rows, clocks);
                (batch, written.map_err(|error| error.to_string()))
            });
            match written.await {
                Ok((batch, Ok(()))) => {
                    backoff.reset();
                    self.succeeded(batch);
                }
                Ok((batch, Err(error))) => {
                    self.failed(batch, error);
                    if is_last {
                        return;
                    }
                    sleep(backoff.next(PAUSE_MIN, PAUSE_MAX)).await;
                }
                // What was to be written is lost, so that nothing that follows could be relied on.
                Err(panicked) => {
                    return self.broken(format!("writing to the disk panicked: {panicked}"));
                }
            }
            if is_last {
                return;
            }
        }
    }

    /// The next batch that is due, and whether it is the last one.
    async fn next(&self) -> Option<(Batch, bool)> {
        loop {
            {
                let mut state = self.state();
                if state.batch.is_due {
                    let now = state.batch.now;
                    let batch = std::mem::replace(&mut state.batch, Batch::new(now));
                    state.committing = Some(batch.progress.subscribe());
                    return Some((batch, state.is_closed));
                }
                if state.is_closed {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    fn succeeded(&self, batch: Batch) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = self.state();
            if state.trouble.take().is_some() {
                tracing::info!("the store writes to its disk again");
            }
            state.written_at = batch.now;
            state.committing = None;
        }
        batch.progress.send_replace(Progress::Written);
        if let Some(listener) = self.listener.get() {
            deliver(batch.notifications, listener.as_ref());
        }
    }

    /// Puts the batch back before what came since, so that the next commit writes both.
    fn failed(&self, mut batch: Batch, error: String) {
        self.failed_commits.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        if state.trouble.is_none() {
            tracing::error!(
                error,
                "the store cannot write to its disk; nothing is granted until it can"
            );
        }
        state.trouble = Some(format!("cannot write to the disk: {error}"));
        state.committing = None;
        let since = &mut state.batch;
        batch.rows.append(&mut since.rows);
        batch.notifications.append(&mut since.notifications);
        since.rows = std::mem::take(&mut batch.rows);
        since.notifications = std::mem::take(&mut batch.notifications);
        since.is_due = true;
        drop(state);
        batch.progress.send_replace(Progress::Failed);
    }

    fn broken(&self, error: String) {
        tracing::error!(error, "the store is closed; restart the process");
        let mut state = self.state();
        state.trouble = Some(format!("{error}; restart the process"));
        state.is_closed = true;
        state.committing = None;
    }

    fn clocks(&self, store: StoreTime) -> Clocks {
        let rows = self.downtime.clock_of_rows(store);
        Clocks { store, rows }
    }

    fn state(&self) -> MutexGuard<'_, JournalState> {
        self.state
            .lock()
            .expect("nothing panics while it holds the journal")
    }
}

#[async_trait]
impl memory::Journal for FileJournal {
    fn record(&self, state: &State, now: StoreTime, notifications: Vec<Notification>) {
        let mut rows = state.encode_changed_rows(self.downtime).peekable();
        if rows.peek().is_none() && notifications.is_empty() {
            return;
        }
        let mut state = self.state();
        state.batch.rows.extend(rows);
        state.batch.notifications.extend(notifications);
        state.batch.now = now;
        state.batch.is_due = true;
        drop(state);
        self.changed.notify_one();
    }

    async fn room(&self) {
        loop {
            let progress = {
                let state = self.state();
                match state.batch.rows.len() {
                    ..=ROWS_PER_SWEEP => return,
                    _ => state.batch.progress.subscribe(),
                }
            };
            let mut progress = progress;
            // An error says that the batch is gone, too.
            let _ = progress
                .wait_for(|progress| *progress != Progress::Pending)
                .await;
        }
    }
}

impl Batch {
    fn new(now: StoreTime) -> Self {
        Self {
            rows: Rows::new(),
            notifications: Vec::new(),
            now,
            is_due: false,
            progress: watch::Sender::new(Progress::Pending),
        }
    }
}
